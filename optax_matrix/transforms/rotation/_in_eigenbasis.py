"""Running a transformation in the eigenbasis of averaged Gram matrices (SOAP)."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import optax
from jax.typing import ArrayLike

from optax_matrix._arguments import Decay, Kernel, PositiveInt, checked
from optax_matrix._surroundings.keeping import kept
from optax_matrix._surroundings.observation import in_another_frame
from optax_matrix.linalg import cholesky_qr
from optax_matrix.transforms.arguments import Transformation
from optax_matrix.transforms.rotation._frames import (
    NextFrame,
    in_frame,
    into,
    no_rotation,
    out_of,
    without_noise,
)
from optax_matrix.transforms.rotation._policies import (
    GramPolicyName,
    Policy,
    PolicyLike,
    find_policy,
)
from optax_matrix.transforms.rotation._spectrum import (
    balanced,
    largest_eps,
    mix_spectrum,
    mix_whitened,
    no_spectrum,
    started,
)
from optax_matrix.transforms.second_moments.gram import mix_gram, no_gram, scaled
from optax_matrix.transforms.sides import (
    MatrixSides,
    side_views,
    turned,
    turned_back,
    turned_zeros,
)
from optax_matrix.transforms.turns import begun, counted, no_turns


class InEigenbasisState(NamedTuple):
    """State of `in_eigenbasis`, all of it at least float32.

    Attributes:
        count: Per leaf and matrix the number of updates since its first gradient,
            int32 ``(...)``; None where every update renews the rotation.
        momentum: State of the momentum, in the frame of the parameters.
        rotation: Per leaf a ``Pair`` of orthogonal matrices, ``(..., p, p)``. Rows and
            columns are those that the base sees.
        gram: Per leaf a ``Pair`` of averaged Gram matrices.
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
def in_eigenbasis(
    base: Transformation,
    statistics: Literal["gradient", "kl"] = "gradient",
    *,
    decay: Decay = 0.999,
    policy: GramPolicyName | PolicyLike = "eigen",
    side: MatrixSides = "both",
    qr: Kernel = cholesky_qr,
    update_interval: PositiveInt = 1,
    momentum: Transformation | None = None,
    renew_after: bool = False,
) -> optax.GradientTransformationExtraArgs:
    r"""Runs a transformation in the eigenbasis of averaged Gram matrices.

    .. math::
        S_t = \beta S_{t-1} + (1 - \beta) G_t G_t^\top, \qquad
        R_t = \mathrm{policy}(S_t, R_{t-1}), \qquad
        \Delta_t = R_t \, f(R_t^\top M_t)

    where f is the ``base`` and M the momentum. If both sides rotate,
    :math:`\Delta = R f(R^\top M Q) Q^\top`, and Q follows from the average of
    :math:`G^\top G`. The base also gets the rotated gradient, as ``gradient``, which
    `scale_by_second_moment` squares. G is the input of the block or, where it is given
    (`with_gradient`), the argument ``gradient``.

    ===============  ===================================================================
    ``eigen``        one power step, :math:`\mathrm{qr}(S R_{t-1})`
    ``eigen_exact``  the eigenvectors of :math:`S`
    ``identity``     :math:`R_{t-1}`, from :math:`R_0 = I`
    ===============  ===================================================================

    With ``statistics="kl"`` S is the average of :math:`G C^{-1} G^\top`, where C is the
    factor of the other side: its rotation (or I) and eigenvalues, which every update
    averages in the rotated frame; the least one is 1e-6 of the largest. The base gets
    their roots as ``spectrum``, by which `transforms.scale_by_spectrum` divides, and
    the largest machine epsilon of the stored momenta as ``eps``.
    Rounding noise is set to zero as in `rotate`.

    Args:
        base: A transformation of stacks, as in `rotate`.
        statistics: ``"gradient"`` or ``"kl"``, see above.
        decay: Decay rate :math:`\beta` of the Gram matrices, and of the eigenvalues.
        policy: A name from the table, or a `Policy` or function, as in `rotate`.
        side: The sides that rotate, as in `rotate`.
        qr: Kernel that orthonormalizes columns, as in `rotate`.
        update_interval: Number K of updates between renewals of the rotation, at
            updates 1, K, 2K, ... of each matrix, counted from its first gradient that
            is not zero.
        momentum: Transformation from gradients to M, such as `momentum`
            (``om.momentum(0.9)``), in the frame of the parameters; None for M = G.
        renew_after: Whether to renew the rotation after the update, for the next one.

    Returns:
        A transformation of trees whose leaves are ``(..., m, n)``.

    Raises:
        ValueError: If an argument is out of range; at `init`, if a leaf has fewer than
            two axes.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> tx = om.in_eigenbasis(om.scale_by_second_moment(0.75))  # SOAP
        >>> w = {"w": jnp.diag(jnp.array([3.0, 5.0]))}
        >>> tx.update(w, tx.init(w))[0]["w"].round(3).tolist()
        [[2.0, 0.0], [0.0, 2.0]]

    References:
        The family of SOAP, Eigen-Adam and SPlus; with ``"kl"`` that of KL-Shampoo.
    """
    rotating = _InEigenbasis(
        base=optax.with_extra_args_support(base),
        policy=find_policy(policy),
        side=side,
        qr=qr,
        interval=update_interval,
        whitens=statistics == "kl",
        decay=decay,
        momentum=momentum,
        renew_after=renew_after,
    )
    return optax.GradientTransformationExtraArgs(rotating.init, rotating.update)


@dataclasses.dataclass(frozen=True)
class _InEigenbasis:
    base: optax.GradientTransformationExtraArgs
    policy: Policy
    side: Any
    qr: Callable[..., jax.Array]
    interval: int
    whitens: bool
    decay: ArrayLike
    momentum: optax.GradientTransformation | None
    renew_after: bool

    def init(self, params: Any) -> InEigenbasisState:
        views = side_views(self.side, params)
        zeros = turned_zeros(views, params)
        pairs = lambda f: jax.tree.map(lambda v, x: v.pair(f, x), views, zeros)
        return InEigenbasisState(
            count=None if self.interval == 1 else no_turns(zeros),
            momentum=None if self.momentum is None else self.momentum.init(params),
            rotation=pairs(no_rotation),
            gram=pairs(no_gram),
            base_state=self.base.init(zeros),
            spectrum=jax.tree.map(no_spectrum, zeros) if self.whitens else None,
        )

    def update(
        self, updates: Any, state: Any, params: Any = None, **extra_args: Any
    ) -> tuple[Any, InEigenbasisState]:
        del params
        given = extra_args.pop("gradient", None)
        mean, momentum = updates, None
        if self.momentum is not None:
            mean, momentum = self.momentum.update(updates, state.momentum)
        views = side_views(self.side, updates)
        m = turned(views, mean)
        gradient = turned(views, updates if given is None else given)
        spectrum = state.spectrum
        if self.whitens:
            begin = lambda x, roots: started(roots, x)
            spectrum = jax.tree.map(begin, gradient, spectrum)
        gram = kept(self._mixed(views, gradient, state, spectrum), state.gram)

        def run(x, spectrum, **known):
            if self.whitens:
                known |= {"spectrum": spectrum, "eps": largest_eps(momentum)}
            with in_another_frame():
                return self.base.update(x, state.base_state, **(extra_args | known))

        def answer(rotation, spectrum):
            seen = partial(in_frame, self.policy, rotation=rotation)
            return run(seen(m), spectrum, gradient=seen(gradient))

        next_frame = NextFrame(
            self.policy,
            self.qr,
            base=lambda x: run(x, spectrum)[0],
            ahead=lambda rotation: answer(rotation, spectrum)[0],
        )
        count, due = self._turn(state.count, gradient)
        new = next_frame(state.rotation, due, m, gram)
        used, final = state.rotation if self.renew_after else new, spectrum
        if self.whitens:
            final, gram = self._next_spectrum(spectrum, gram, gradient, used)
        out, base_state = answer(used, final)
        out = jax.tree.map(out_of, out, used)
        out = turned_back(views, out, updates)
        new_state = InEigenbasisState(count, momentum, new, gram, base_state, final)
        return out, new_state

    def _turn(self, count: Any, gradient: Any) -> tuple[Any, Any]:
        """The new counts, and whether a renewal is due."""
        if self.interval == 1:
            return None, True
        on = begun(count, gradient)
        # At updates 1, K, 2K, ...: the first average is that of one gradient.
        at = lambda n, on: on & ((n == 0) | ((n + 1) % self.interval == 0))
        return counted(count, on), jax.tree.map(at, count, on)

    def _mixed(self, views: Any, gradient: Any, state: Any, spectrum: Any) -> Any:
        """The averages of the Gram matrices, with those of this gradient."""
        if self.whitens:
            mix = partial(mix_whitened, decay=self.decay)
            rest = state.gram, state.rotation, spectrum
            return jax.tree.map(mix, views, gradient, *rest)
        mix = lambda x, old: mix_gram(old, x, self.decay)
        pair = lambda v, x, old: v.pair(mix, scaled(x), old)
        return jax.tree.map(pair, views, gradient, state.gram)

    def _next_spectrum(self, spectrum, gram, gradient, rotation) -> tuple[Any, Any]:
        """The eigenvalues with this gradient in the frame of the base; of like size."""

        def mix(x, pair, roots):
            seen = without_noise(into(x, pair), pair, x)
            return mix_spectrum(roots, seen, self.decay)

        spectrum = jax.tree.map(mix, gradient, rotation, spectrum)
        pairs = jax.tree.map(lambda _, *x: balanced(*x), gradient, spectrum, gram)
        structure = jax.tree.structure(gradient)
        pairs = structure.flatten_up_to(pairs)
        return tuple(structure.unflatten([pair[i] for pair in pairs]) for i in (0, 1))
