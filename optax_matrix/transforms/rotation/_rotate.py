"""Running a transformation in an adaptively rotated frame."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from optax_matrix.arguments import (
    Decay,
    Kernel,
    PositiveInt,
    checked,
)
from optax_matrix.linalg import cholesky_qr
from optax_matrix.transforms._arguments import Transformation
from optax_matrix.transforms.numerics import widened
from optax_matrix.transforms.rotation._frames import (
    into,
    leading_square,
    no_rotation,
    out_of,
    without_noise,
)
from optax_matrix.transforms.rotation._policies import (
    Policy,
    PolicyName,
    PolicyStep,
    find_policy,
    is_due,
    on_sides,
)
from optax_matrix.transforms.second_moments import mix_gram, no_gram
from optax_matrix.transforms.sides import MatrixSides, no_pair, views_of


class RotateState(NamedTuple):
    """State of `rotate`, all of it at least float32.

    Attributes:
        count: Number of updates; not where every update refreshes the rotation.
        momentum: State of the momentum, in the frame of the parameters.
        rotation: Per leaf a ``Pair`` of orthogonal matrices, ``(..., p, p)``. Rows and
            columns are those that the base sees.
        gram: Per leaf a ``Pair`` of averaged Gram matrices, or of None.
        base_state: State of the base.
    """

    count: Any
    momentum: Any
    rotation: Any
    gram: Any
    base_state: Any


@checked
def rotate(
    base: Transformation,
    *,
    policy: PolicyName | PolicyStep = "aro",
    side: MatrixSides = "short",
    qr: Kernel = cholesky_qr,
    update_interval: PositiveInt = 1,
    statistics: Literal["momentum", "gradient"] = "momentum",
    decay: Decay = 0.999,
    momentum: Transformation | None = None,
    lag: bool = False,
) -> optax.GradientTransformationExtraArgs:
    r"""Runs a transformation in a frame that follows the momentum or the gradient.

    .. math::
        R_t = \mathrm{policy}(M_t, R_{t-1}, f), \qquad
        \Delta_t = R_t \, f(R_t^\top M_t)

    with f the ``base``, and on both sides :math:`\Delta = R f(R^\top M Q) Q^\top`, R
    following from :math:`M Q_{t-1}` and Q from :math:`M^\top R_{t-1}`.

    ===============  ===================================================================
    ``aro``          :math:`\mathrm{qr}(M D^\top)`, :math:`D = f(R_{t-1}^\top M)`
    ``polar``        the polar factor of :math:`M D^\top`
    ``rgd``          ten steps of ascent on :math:`\langle M, R f(R^\top M) \rangle`
    ``eigen``        one power step, :math:`\mathrm{qr}(S R_{t-1})`
    ``eigen_exact``  the eigenvectors of :math:`S`
    ``identity``     :math:`R_{t-1}`, from :math:`R_0 = I`
    ===============  ===================================================================

    :math:`S` is :math:`M M^\top`, or with ``statistics="gradient"`` the average of
    :math:`G G^\top`. The look-ahead D advances the base's state in scratch only; the
    state that is kept has seen the new frame alone.

    Args:
        base: A transformation of stacks. It sees the rotated side as rows (with
            ``side="in"`` matrices come transposed), and no parameters.
        policy: A name from the table, or a function of a `Side` to the rotation.
        side: ``"out"`` (rows), ``"in"`` (columns), ``"short"`` (rows if there are not
            more of them), ``"both"``; or a dict that says it, or ``"none"``, for each
            leaf of a dict of stacks.
        qr: Kernel of orthonormal columns, `linalg.cholesky_qr` or
            `linalg.qr_householder`.
        update_interval: The rotation is renewed at update 1 and every so many.
        statistics: Where :math:`S` comes from, ``"momentum"`` or ``"gradient"``. The
            latter hands the rotated gradient to the base, as ``gradient``, from which
            `scale_by_second_moment` takes its squares.
        decay: Decay rate of the average of :math:`G G^\top`.
        momentum: What makes :math:`M` of the updates, such as ``optax.ema(0.9,
            debias=False)``, in the frame of the parameters; None if M comes in.
        lag: Whether the rotation is renewed after the update, for the next one.

    Returns:
        A transformation of trees whose leaves are ``(..., m, n)``. A zero momentum
        leaves its rotation alone. What is rounding noise in the rotated momentum,
        entries below :math:`4 \epsilon \sqrt{\max(m, n)}` of their column's norm (of
        the largest entry, if both sides rotate), is zero for the base: else sign, row
        norm and the like blow it up to full size. Where more rows rotate than there are
        columns, q, the first q columns of R span the range of the momentum that
        ``aro``, ``eigen`` or ``eigen_exact`` made it from, and the rows beyond are zero
        for the base, too. So the update stays in that range: outside is at most 2e-8 of
        it times the condition number (measured in float32). If the momentum is singular
        besides, most of the update may be outside: in the first step or two (under
        signs and ``aro``, wherever leading rows of signs are dependent), and with
        ``eigen_exact`` in all if the other singular values differ by 100.

    Raises:
        ValueError: If an argument is out of range or a policy needs the base's answer
            while the statistics are those of the gradient; by `init` if a leaf has
            fewer than two axes.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax
        >>> import optax_matrix as om
        >>> tx = om.rotate(om.equilibrate(om.linalg.sinkhorn), side="out")
        >>> w = {"w": jnp.array([[3.0, 1.0], [1.0, 2.0]])}
        >>> updates, state = tx.update(w, tx.init(w))
        >>> bool(jnp.isfinite(updates["w"]).all())
        True

    References:
        ARO, Eq. 4, Algorithm 3; the policies of Sections 5.2 to 5.4. With statistics
        of the gradient, the family of SOAP, Eigen-Adam and SPlus. Deviations: the
        second moment of a base is that of the new frame (Remark 7; the line in Section
        4.3 that mixes both is a misprint); the noise, above.
    """
    rotating = _Rotate(
        base=optax.with_extra_args_support(base),
        policy=find_policy(policy, statistics),
        side=side,
        qr=qr,
        interval=update_interval,
        accumulates=statistics == "gradient",
        decay=decay,
        momentum=momentum,
        lag=lag,
    )
    return optax.GradientTransformationExtraArgs(rotating.init, rotating.update)


@dataclasses.dataclass(frozen=True)
class _Rotate:
    base: optax.GradientTransformationExtraArgs
    policy: Policy
    side: Any
    qr: Callable[..., jax.Array]
    interval: int
    accumulates: bool
    decay: ArrayLike
    momentum: optax.GradientTransformation | None
    lag: bool

    def init(self, params: Any) -> RotateState:
        views = views_of(self.side, params)
        start = lambda v, x: v.turn(jnp.zeros_like(widened(x)))
        seen = jax.tree.map(start, views, params)
        pairs = lambda f: jax.tree.map(lambda v, x: v.pair(f, x), views, seen)
        return RotateState(
            count=None if self.interval == 1 else jnp.zeros((), jnp.int32),
            momentum=None if self.momentum is None else self.momentum.init(params),
            rotation=pairs(no_rotation),
            gram=pairs(no_gram) if self.accumulates else None,
            base_state=self.base.init(seen),
        )

    def update(
        self, updates: Any, state: Any, params: Any = None, **extra_args: Any
    ) -> tuple[Any, RotateState]:
        del params
        views = views_of(self.side, updates)
        turned = partial(jax.tree.map, lambda v, x: v.turn(widened(x)), views)
        mean, momentum = updates, None
        if self.momentum is not None:
            mean, momentum = self.momentum.update(updates, state.momentum)
        mean, gram = turned(mean), state.gram
        if self.accumulates:
            extra_args["gradient"] = gradient = turned(updates)
            mix = lambda x, old: mix_gram(old, x, self.decay)
            pair = lambda v, x, old: v.pair(mix, x, old)
            gram = jax.tree.map(pair, views, gradient, gram)
        due = self.interval == 1 or is_due(state.count, self.interval, self.accumulates)
        answer = partial(self._answer, mean, state.base_state, extra_args)
        new = self._next_rotation(answer, mean, gram, state.rotation, due)
        used = state.rotation if self.lag else new
        spans = self.policy.spans and not (self.accumulates or self.lag) and due
        out, base_state = answer(used, spans)
        back = lambda v, x, pair, like: v.turn(out_of(x, pair)).astype(like.dtype)
        out = jax.tree.map(back, views, out, used, updates)
        count = None if state.count is None else optax.safe_increment(state.count)
        return out, RotateState(count, momentum, new, gram, base_state)

    def _answer(self, mean, base_state, extra_args, rotation, spans: Any = False):
        """What the base makes of the momentum under a rotation, and its new state."""
        rotated = jax.tree.map(into, mean, rotation)
        if spans is not False:
            rotated = jax.tree.map(partial(leading_square, spans), rotated, rotation)
        if self.policy.turns:
            rotated = jax.tree.map(without_noise, rotated, rotation, mean)
        if self.accumulates:
            gradient = jax.tree.map(into, extra_args["gradient"], rotation)
            extra_args = {**extra_args, "gradient": gradient}
        return self.base.update(rotated, base_state, **extra_args)

    def _next_rotation(
        self, answer: Callable, mean: Any, gram: Any, last: Any, due: Any
    ) -> Any:
        """The rotation after this momentum or gradient, or the old if none is due."""
        grams = jax.tree.map(no_pair, mean) if gram is None else gram
        step = partial(on_sides, self.policy.step, self.qr)

        def renewed(rotation):
            for _ in range(self.policy.rounds):
                # What does not look ahead gets M in the place of D.
                ahead = answer(rotation)[0] if self.policy.looks else mean
                rotation = jax.tree.map(step, mean, ahead, rotation, grams)
            return rotation

        if due is True:
            return renewed(last)
        return jax.lax.cond(due, renewed, lambda old: old, last)
