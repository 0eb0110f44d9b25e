"""Running a transformation in an adaptively rotated frame."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from optax_matrix.linalg import cholesky_qr
from optax_matrix.linalg._products import full_dot
from optax_matrix.transforms._checks import (
    check_callable,
    check_choice,
    check_decay,
    check_positive_int,
    check_transformation,
)
from optax_matrix.transforms._frames import into, no_rotation, out_of, without_noise
from optax_matrix.transforms._gram import Gram, mix_gram, no_gram
from optax_matrix.transforms._numerics import widened
from optax_matrix.transforms._policies import Policy, Side, find_policy, is_due
from optax_matrix.transforms._sides import Pair, check_side, no_pair, views_of

STATISTICS = ("momentum", "gradient")


class RotateState(NamedTuple):
    """State of `rotate`, all of it at least float32.

    Attributes:
        count: Number of updates; not where every update refreshes the rotation.
        momentum: State of the momentum, in the frame of the parameters.
        rotation: Per leaf a `Pair` of orthogonal matrices, ``(..., p, p)``. Rows and
            columns are those that the base sees.
        gram: Per leaf a `Pair` of averaged Gram matrices, or of None.
        base_state: State of the base.
    """

    count: Any
    momentum: Any
    rotation: Any
    gram: Any
    base_state: Any


def rotate(
    base: optax.GradientTransformation,
    *,
    policy: str | Callable[[Side], jax.Array] = "aro",
    side: Any = "short",
    qr: Callable[..., jax.Array] = cholesky_qr,
    update_interval: int = 1,
    statistics: str = "momentum",
    decay: ArrayLike = 0.999,
    momentum: optax.GradientTransformation | None = None,
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
        base: Any transformation of stacks. It sees the rotated side as rows: with
            ``side="in"`` matrices come to it transposed.
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
        norm and the like blow it up to full size. So with ``aro`` and ``eigen`` a
        momentum of low rank gets an update within its range; the exception is a base of
        signs under ``aro``, where leading rows of signs are dependent.

    Raises:
        ValueError: If an argument is out of range or a policy needs the base's answer
            while the statistics are those of the gradient.

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
    check_transformation("base", base)
    check_choice("statistics", statistics, STATISTICS)
    check_positive_int("update_interval", update_interval)
    check_callable("qr", qr)
    check_decay("decay", decay)
    if momentum is not None:
        check_transformation("momentum", momentum)
    check_side(side)
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
        answer = partial(self._answer, mean, state.base_state, extra_args)
        new = self._next_rotation(answer, mean, gram, state)
        used = state.rotation if self.lag else new
        out, base_state = answer(used)
        back = lambda v, x, pair, like: v.turn(out_of(x, pair)).astype(like.dtype)
        out = jax.tree.map(back, views, out, used, updates)
        count = None if state.count is None else optax.safe_increment(state.count)
        return out, RotateState(count, momentum, new, gram, base_state)

    def _answer(self, mean: Any, base_state: Any, extra_args: Any, rotation: Any):
        """What the base makes of the momentum under a rotation, and its new state."""
        rotated = jax.tree.map(into, mean, rotation)
        if self.policy.turns:
            rotated = jax.tree.map(without_noise, rotated, rotation, mean)
        if self.accumulates:
            gradient = jax.tree.map(into, extra_args["gradient"], rotation)
            extra_args = {**extra_args, "gradient": gradient}
        return self.base.update(rotated, base_state, **extra_args)

    def _next_rotation(self, answer: Callable, mean: Any, gram: Any, state: Any) -> Any:
        """The rotation after this momentum or gradient, or the old if none is due."""
        grams = jax.tree.map(no_pair, mean) if gram is None else gram
        step = partial(_renewed, self.policy.step, self.qr)

        def renewed(rotation):
            for _ in range(self.policy.rounds):
                ahead = mean if self.accumulates else answer(rotation)[0]
                rotation = jax.tree.map(step, mean, ahead, rotation, grams)
            return rotation

        if self.interval == 1:
            return renewed(state.rotation)
        due = is_due(state.count, self.interval, self.accumulates)
        return jax.lax.cond(due, renewed, lambda old: old, state.rotation)


def _renewed(step, qr, m: jax.Array, d: jax.Array, old: Pair, gram: Pair) -> Pair:
    """Both sides from the old frame, that of the look-ahead."""
    rows, cols = old
    if rows is None:
        return old
    if cols is None:
        return Pair(step(Side(m, d, rows, _shape(gram.rows), qr)), None)
    of_rows = Side(full_dot(m, cols), d, rows, _shape(gram.rows), qr)
    of_cols = Side(full_dot(m.mT, rows), d.mT, cols, _shape(gram.cols), qr)
    return Pair(step(of_rows), step(of_cols))


def _shape(gram: Gram | None) -> jax.Array | None:
    return None if gram is None else gram.shape
