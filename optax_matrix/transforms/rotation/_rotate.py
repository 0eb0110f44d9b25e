"""Running a transformation in a rotated frame that adapts during training."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from optax_matrix._arguments import Decay, Kernel, PositiveInt, checked
from optax_matrix._surroundings.joining import jointly
from optax_matrix.linalg import cholesky_qr
from optax_matrix.transforms.arguments import Transformation
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
    PolicyLike,
    PolicyName,
    find_policy,
    is_due,
    next_rotations,
    sides_of,
)
from optax_matrix.transforms.rotation._spectrum import (
    balanced,
    mix_spectrum,
    mix_whitened,
    no_spectrum,
    started,
)
from optax_matrix.transforms.second_moments.gram import mix_gram, no_gram
from optax_matrix.transforms.sides import (
    MatrixSides,
    View,
    no_pair,
    turned,
    turned_back,
    views_of,
)


class RotateState(NamedTuple):
    """State of `rotate`, all of it at least float32.

    Attributes:
        count: Number of updates; None where every update renews the rotation.
        momentum: State of the momentum, in the frame of the parameters.
        rotation: Per leaf a ``Pair`` of orthogonal matrices, ``(..., p, p)``. Rows and
            columns are those that the base sees.
        gram: Per leaf a ``Pair`` of averaged Gram matrices; None where the statistics
            are those of the momentum.
        base_state: State of the base.
        spectrum: Per leaf a ``Pair`` of the roots of the eigenvalues, ``(..., p)``;
            None unless the statistics are ``"kl"``.
    """

    count: Any
    momentum: Any
    rotation: Any
    gram: Any
    base_state: Any
    spectrum: Any = None


@checked
def rotate(
    base: Transformation,
    *,
    policy: PolicyName | PolicyLike = "aro",
    side: MatrixSides = "short",
    qr: Kernel = cholesky_qr,
    update_interval: PositiveInt = 1,
    statistics: Literal["momentum", "gradient", "kl"] = "momentum",
    decay: Decay = 0.999,
    momentum: Transformation | None = None,
    lag: bool = False,
) -> optax.GradientTransformationExtraArgs:
    r"""Runs a transformation in a frame that follows the momentum or the gradient.

    .. math::
        R_t = \mathrm{policy}(M_t, R_{t-1}, f), \qquad
        \Delta_t = R_t \, f(R_t^\top M_t)

    where f is the ``base``. If both sides rotate, then
    :math:`\Delta = R f(R^\top M Q) Q^\top`; the policy computes R from
    :math:`M Q_{t-1}` and Q from :math:`M^\top R_{t-1}`.

    ===============  ===================================================================
    ``aro``          :math:`\mathrm{qr}(M D^\top)`, :math:`D = f(R_{t-1}^\top M)`
    ``polar``        the polar factor of :math:`M D^\top`
    ``rgd``          ten steps of ascent on :math:`\langle M, R f(R^\top M) \rangle`
    ``eigen``        one power step, :math:`\mathrm{qr}(S R_{t-1})`
    ``eigen_exact``  the eigenvectors of :math:`S`
    ``identity``     :math:`R_{t-1}`, from :math:`R_0 = I`
    ===============  ===================================================================

    :math:`S` is :math:`M M^\top`, or with ``statistics="gradient"`` the average of
    :math:`G G^\top`. With ``"kl"`` it is that of :math:`G C^{-1} G^\top`, C being the
    factor of the other side: its rotation (or I) and eigenvalues, which every update
    averages in the rotated frame. The look-ahead D does not change the state of the
    base: only the update in the new frame does. A zero momentum leaves its rotation
    unchanged.

    Where the momentum has no range, the rows of the rotated momentum hold rounding
    noise. They are set to zero before the base sees them; otherwise sign, row norm and
    similar bases amplify them to full size. Noise means that every entry of a row is
    below :math:`4 \epsilon \sqrt{\max(p, q)}` times the norm of its column (if both
    sides rotate: of a row or column, times the largest norm of a row or column). With
    at most 16 rows and columns, single entries below that are zeros as well.

    If more rows rotate than there are columns, q, the first q columns of an R made by
    ``aro``, ``eigen`` or ``eigen_exact`` span the range of the momentum. The base then
    gets zeros in all further rows, and the update stays in that range: the part outside
    is at most 2e-8 of it times the condition number (measured in float32). If such a
    momentum is also singular, most of the update may lie outside its range: in the
    first step or two (with signs and ``aro``, wherever leading rows of signs are
    dependent), and with ``eigen_exact`` at every step if the other singular values
    differ by a factor of 100. With averaged Gram matrices nothing is cut off; at the
    first update, whose Gram matrix has the range of one gradient, noise grows with the
    condition number of leading rows of the gradient and may reach full size.

    Args:
        base: A transformation of stacks. It sees the rotated side as rows (with
            ``side="in"`` matrices are transposed), and gets no parameters.
        policy: A name from the table, a `Policy` such as ``rgd(0.05, rounds=20)``, or a
            function from a `Side` to the rotation.
        side: ``"out"`` (rows), ``"in"`` (columns), ``"short"`` (rows if there are not
            more rows than columns), ``"both"``; or a dict that gives one of them, or
            ``"none"``, for each leaf of a dict of stacks.
        qr: Kernel that orthonormalizes columns, `linalg.cholesky_qr` or
            `linalg.qr_householder`.
        update_interval: Number K of updates between renewals of the rotation: it is
            renewed at updates 1, K + 1, 2K + 1, ..., or with ``statistics="gradient"``
            at 1, K, 2K, ...
        statistics: Source of :math:`S`, ``"momentum"``, ``"gradient"`` or ``"kl"``. The
            latter two also pass the rotated gradient to the base as ``gradient``, which
            `scale_by_second_moment` squares; ``"kl"`` also passes ``spectrum``, which
            `transforms.scale_by_spectrum` divides by.
        decay: Decay rate of the average of :math:`G G^\top`, and of the eigenvalues.
        momentum: Transformation from updates to :math:`M`, such as `momentum`
            (``om.momentum(0.9)``), in the frame of the parameters; None if the updates
            are already M.
        lag: Whether to renew the rotation after the update, for the next one.

    Returns:
        A transformation of trees whose leaves are ``(..., m, n)``.

    Raises:
        ValueError: If an argument is out of range, or a policy given by name needs the
            output of the base while the statistics are those of the gradient; at
            `init`, if a leaf has fewer than two axes.

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
        of the gradient, the family of SOAP, Eigen-Adam and SPlus; with ``"kl"``, that
        of KL-Shampoo. Deviations: the
        second moment of a base is that of the new frame (Remark 7; the line in Section
        4.3 that mixes both frames is a misprint); noise is set to zero, as above.
    """
    rotating = _Rotate(
        base=optax.with_extra_args_support(base),
        policy=find_policy(policy, statistics),
        side=side,
        qr=qr,
        interval=update_interval,
        accumulates=statistics != "momentum",
        whitens=statistics == "kl",
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
    whitens: bool
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
            spectrum=jax.tree.map(no_spectrum, seen) if self.whitens else None,
        )

    def update(
        self, updates: Any, state: Any, params: Any = None, **extra_args: Any
    ) -> tuple[Any, RotateState]:
        del params
        views = views_of(self.side, updates)
        mean, momentum = updates, None
        if self.momentum is not None:
            mean, momentum = self.momentum.update(updates, state.momentum)
        gradient = turned(views, updates) if self.accumulates else None
        rest = state._replace(momentum=None), gradient, extra_args
        sides = jax.tree.map(View.after_turn, views)
        out, new = jointly(self._turned_update, turned(views, mean), sides, *rest)
        return turned_back(views, out, updates), new._replace(momentum=momentum)

    def _turned_update(
        self, mean: Any, views: Any, state: Any, gradient: Any, extra_args: Any
    ) -> tuple[Any, RotateState]:
        """`update` of matrices as the base sees them; `mean` is the momentum."""
        gram, spectrum = state.gram, state.spectrum
        if self.accumulates:
            extra_args = {**extra_args, "gradient": gradient}
            if self.whitens:
                begin = lambda x, roots: started(roots, x)
                spectrum = jax.tree.map(begin, gradient, spectrum)
                extra_args["spectrum"] = spectrum
            gram = self._mixed(views, gradient, state, spectrum)
        due = self.interval == 1 or is_due(state.count, self.interval, self.accumulates)
        answer = partial(self._answer, mean, state.base_state, extra_args)
        bases = self._bases(mean, state.base_state, extra_args)
        new = self._next_rotation(answer, mean, gram, state.rotation, due, bases)
        used = state.rotation if self.lag else new
        if self.whitens:
            spectrum = self._spectrum(spectrum, gradient, used)
            pairs = jax.tree.map(lambda _, *x: balanced(*x), mean, spectrum, gram)
            spectrum, gram = (
                jax.tree.map(lambda _, pair, i=i: pair[i], mean, pairs) for i in (0, 1)
            )
            extra_args["spectrum"] = spectrum
        spans = self.policy.spans and not (self.accumulates or self.lag) and due
        out, base_state = answer(used, spans)
        out = jax.tree.map(out_of, out, used)
        count = None if state.count is None else optax.safe_increment(state.count)
        return out, RotateState(count, None, new, gram, base_state, spectrum)

    def _mixed(self, views: Any, gradient: Any, state: Any, spectrum: Any) -> Any:
        """The averages of the Gram matrices, with those of this gradient."""
        if self.whitens:
            mix = partial(mix_whitened, decay=self.decay)
            rest = state.gram, state.rotation, spectrum
            return jax.tree.map(mix, views, gradient, *rest)
        mix = lambda x, old: mix_gram(old, x, self.decay)
        pair = lambda v, x, old: v.pair(mix, x, old)
        return jax.tree.map(pair, views, gradient, state.gram)

    def _spectrum(self, spectrum: Any, gradient: Any, rotation: Any) -> Any:
        """The roots of the eigenvalues, with this gradient in the frame of the base."""

        def mix(x, pair, roots):
            heard = without_noise(into(x, pair), pair, x)
            return mix_spectrum(roots, heard, self.decay)

        return jax.tree.map(mix, gradient, rotation, spectrum)

    def _answer(self, mean, base_state, extra_args, rotation, spans: Any = False):
        """The output of the base in a rotated frame, and its new state."""
        rotated = jax.tree.map(into, mean, rotation)
        if spans is not False:
            rotated = jax.tree.map(partial(leading_square, spans), rotated, rotation)
        if self.policy.turns:
            rotated = jax.tree.map(without_noise, rotated, rotation, mean)
        if self.accumulates:
            source = extra_args["gradient"]
            gradient = jax.tree.map(into, source, rotation)
            if self.policy.turns:
                gradient = jax.tree.map(without_noise, gradient, rotation, source)
            extra_args = {**extra_args, "gradient": gradient}
        return self.base.update(rotated, base_state, **extra_args)

    def _bases(self, rotated: Any, base_state: Any, extra_args: Any) -> Any:
        """Per leaf the base as a function of that leaf alone."""
        leaves, structure = jax.tree.flatten(rotated)
        # The gradient is not rotated yet, and belongs to another matrix than `x`.
        extra_args = {k: x for k, x in extra_args.items() if k != "gradient"}

        def of(at):
            def base(x):
                swapped = [*leaves[:at], x, *leaves[at + 1 :]]
                tree = structure.unflatten(swapped)
                out, _ = self.base.update(tree, base_state, **extra_args)
                return structure.flatten_up_to(out)[at]

            return base

        return structure.unflatten([of(at) for at in range(len(leaves))])

    def _next_rotation(
        self, answer: Callable, mean: Any, gram: Any, last: Any, due: Any, bases: Any
    ) -> Any:
        """The rotation after this update; the old one where no renewal is due."""
        grams = jax.tree.map(no_pair, mean) if gram is None else gram
        sides = partial(sides_of, self.qr)

        def renewed(rotation):
            for _ in range(self.policy.rounds):
                # A policy that does not use D gets M in its place.
                ahead = answer(rotation)[0] if self.policy.looks else mean
                inputs = jax.tree.map(sides, mean, ahead, rotation, grams, bases)
                rotation = next_rotations(self.policy, inputs)
            return rotation

        if due is True:
            return renewed(last)
        return jax.lax.cond(due, renewed, lambda old: old, last)
