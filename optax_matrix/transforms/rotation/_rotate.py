"""Running a transformation in a frame that follows the momentum (ARO)."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import optax

from optax_matrix._arguments import Kernel, PositiveInt, checked
from optax_matrix._surroundings.observation import in_another_frame
from optax_matrix.linalg import cholesky_qr
from optax_matrix.transforms.arguments import Transformation
from optax_matrix.transforms.rotation._frames import (
    NextFrame,
    in_frame,
    no_rotation,
    out_of,
)
from optax_matrix.transforms.rotation._policies import (
    Policy,
    PolicyLike,
    PolicyName,
    find_policy,
)
from optax_matrix.transforms.sides import (
    MatrixSides,
    side_views,
    turned,
    turned_back,
    turned_zeros,
)
from optax_matrix.transforms.turns import begun, counted, no_turns


class RotateState(NamedTuple):
    """State of `rotate`, all of it at least float32.

    Attributes:
        count: Per leaf and matrix the number of updates since its first gradient,
            int32 ``(...)``; None where every update renews the rotation.
        rotation: Per leaf a ``Pair`` of orthogonal matrices, ``(..., p, p)``. Rows and
            columns are those that the base sees.
        base_state: State of the base.
    """

    count: Any
    rotation: Any
    base_state: Any


@checked
def rotate(
    base: Transformation,
    *,
    policy: PolicyName | PolicyLike = "aro",
    side: MatrixSides = "short",
    qr: Kernel = cholesky_qr,
    update_interval: PositiveInt = 1,
) -> optax.GradientTransformationExtraArgs:
    r"""Runs a transformation in a frame that follows the momentum M, its input.

    .. math::
        R_t = \mathrm{policy}(M_t, R_{t-1}, f), \qquad
        \Delta_t = R_t \, f(R_t^\top M_t)

    where f is the ``base``; a look-ahead leaves its state as it is. If both sides
    rotate, :math:`\Delta = R f(R^\top M Q) Q^\top`, R follows from
    :math:`M Q_{t-1}`, and Q from :math:`M^\top R_{t-1}`.

    ===============  ===================================================================
    ``aro``          :math:`\mathrm{qr}(M D^\top)`, :math:`D = f(R_{t-1}^\top M)`
    ``polar``        the polar factor of :math:`M D^\top`
    ``rgd``          ten steps of ascent on :math:`\langle M, R f(R^\top M) \rangle`
    ``eigen``        one power step, :math:`\mathrm{qr}(M M^\top R_{t-1})`
    ``eigen_exact``  the eigenvectors of :math:`M M^\top`
    ``identity``     :math:`R_{t-1}`, from :math:`R_0 = I`
    ===============  ===================================================================

    A zero momentum leaves its rotation unchanged. Rows of a rotated momentum that are
    rounding noise are set to zero before the base sees them (``transforms.rotation``
    says when, and what is left of noise).

    Args:
        base: A transformation of stacks. It sees the rotated side as rows (with
            ``side="in"`` matrices are transposed), and gets no parameters. An argument
            ``gradient`` (`with_gradient`) is turned with the momentum.
        policy: A name from the table, a `Policy` such as ``rgd(0.05, rounds=20)``, or a
            function from a `PolicyInput` to the rotation.
        side: ``"out"`` (rows), ``"in"`` (columns), ``"short"`` (rows if there are not
            more rows than columns), ``"both"``; or a dict that gives one of them, or
            ``"none"``, for each leaf of a dict of stacks. Inside `on_matrices` it may
            be a function from the `stacks.Layout` to such a dict.
        qr: Kernel that orthonormalizes columns, `linalg.cholesky_qr` or
            `linalg.qr_householder`.
        update_interval: Number K of updates between renewals of the rotation, at
            updates 1, K + 1, 2K + 1, ... of each matrix, counted from its first
            momentum that is not zero.

    Returns:
        A transformation of trees whose leaves are ``(..., m, n)``.

    Raises:
        ValueError: If an argument is out of range; at `init`, if a leaf has fewer than
            two axes.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> tx = om.rotate(om.equilibrate(om.linalg.sinkhorn), side="out")
        >>> w = {"w": jnp.array([[3.0, 1.0], [1.0, 2.0]])}
        >>> updates, state = tx.update(w, tx.init(w))
        >>> bool(jnp.isfinite(updates["w"]).all())
        True

    References:
        ARO, Eq. 4, Algorithm 3; the policies of Sections 5.2 to 5.4. Deviations: the
        second moment of a base is that of the new frame (Remark 7; the line in Section
        4.3 that mixes both frames is a misprint); noise is set to zero.
    """
    rotating = _Rotate(
        base=optax.with_extra_args_support(base),
        policy=find_policy(policy),
        side=side,
        qr=qr,
        interval=update_interval,
    )
    return optax.GradientTransformationExtraArgs(rotating.init, rotating.update)


@dataclasses.dataclass(frozen=True)
class _Rotate:
    base: optax.GradientTransformationExtraArgs
    policy: Policy
    side: Any
    qr: Callable[..., jax.Array]
    interval: int

    def init(self, params: Any) -> RotateState:
        views = side_views(self.side, params)
        zeros = turned_zeros(views, params)
        start = lambda v, x: v.pair(no_rotation, x)
        return RotateState(
            count=None if self.interval == 1 else no_turns(zeros),
            rotation=jax.tree.map(start, views, zeros),
            base_state=self.base.init(zeros),
        )

    def update(
        self, updates: Any, state: Any, params: Any = None, **extra_args: Any
    ) -> tuple[Any, RotateState]:
        del params
        given = extra_args.pop("gradient", None)
        views = side_views(self.side, updates)
        m, gradient = turned(views, updates), turned(views, given)
        seen = partial(in_frame, self.policy)

        def run(x, **known):
            with in_another_frame():
                return self.base.update(x, state.base_state, **(extra_args | known))

        def answer(rotation, spans=False):
            known = {} if gradient is None else {"gradient": seen(gradient, rotation)}
            return run(seen(m, rotation, spans), **known)

        next_frame = NextFrame(
            self.policy,
            self.qr,
            base=lambda x: run(x)[0],
            ahead=lambda rotation: answer(rotation)[0],
        )
        count, due = self._turn(state.count, m)
        rotation = next_frame(state.rotation, due, m)
        spans = due if self.policy.spans_range else False
        out, base_state = answer(rotation, spans)
        out = jax.tree.map(out_of, out, rotation)
        out = turned_back(views, out, updates)
        return out, RotateState(count, rotation, base_state)

    def _turn(self, count: Any, m: Any) -> tuple[Any, Any]:
        """The new counts, and whether a renewal is due."""
        if self.interval == 1:
            return None, True
        on = begun(count, m)
        at = lambda n, on: on & (n % self.interval == 0)
        return counted(count, on), jax.tree.map(at, count, on)
