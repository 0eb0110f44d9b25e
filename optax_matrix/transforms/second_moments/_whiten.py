"""Whitening by Kronecker factors that follow the gradient (PSGD Kron)."""

import dataclasses
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from optax_matrix._arguments import (
    AtLeastOne,
    Decay,
    NotNegative,
    Positive,
    PositiveInt,
    Seed,
    checked,
)
from optax_matrix._surroundings.joining import jointly
from optax_matrix._surroundings.layouts import identities_of
from optax_matrix.linalg.random import folded, normal, seeded
from optax_matrix.linalg.scale import inverse, is_some, unit_peak
from optax_matrix.transforms.arguments import Transformation
from optax_matrix.transforms.second_moments._whitening_factors import (
    fitted,
    identities,
    product,
    rms,
    scale_of,
)
from optax_matrix.transforms.sides import (
    MatrixSides,
    Pair,
    side_views,
    turned,
    turned_back,
    turned_zeros,
)
from optax_matrix.transforms.turns import begun, counted, no_turns, renewed, select


class WhitenState(NamedTuple):
    """State of `whiten`, all of it at least float32.

    Attributes:
        count: Per leaf and matrix the number of updates since its first gradient,
            int32 ``(...)``.
        momentum: State of the momentum.
        factor: Per leaf a ``Pair`` of factors, ``(..., p, p)``, or ``(..., p, 1)`` for
            diagonal ones. A single side that has a matrix is the rows.
        bound: Per leaf a ``Pair`` of bounds on the curvature, ``(..., 1, 1)``.
    """

    count: Any
    momentum: Any
    factor: Any
    bound: Any


@checked
def whiten(
    statistics: Literal["gradient", "momentum"] = "gradient",
    *,
    side: MatrixSides = "both",
    factor_rate: Positive = 0.1,
    bound_decay: Decay = 0.9,
    damping: NotNegative = 1e-9,
    init_scale: Positive | None = None,
    max_rms: AtLeastOne | None = 2.0,
    update_interval: PositiveInt = 1,
    momentum: Transformation | None = None,
    seed: Seed = 0,
) -> optax.GradientTransformationExtraArgs:
    r"""Multiplies every matrix by factors that whiten its gradients.

    .. math::
        \Delta = P(M), \qquad P(M) = Q_l^\top Q_l \, M \, Q_r^\top Q_r, \qquad
        X = P(G + (d \, \mathrm{rms}(G) + \epsilon |G|) \circ N), \\
        \ell = \|X X^\top\|_2 + n, \qquad
        L \leftarrow \max(\beta L + (1 - \beta) \ell, \, \ell), \qquad
        Q_l \leftarrow \mathrm{procrustes}(
            Q_l - \tfrac{\mu}{L} (X X^\top - n I) Q_l)

    and likewise :math:`Q_r` from :math:`X^\top X` and m. N is normal noise and
    :math:`\epsilon` the resolution of float32. The fixed point is the Kronecker product
    P for which whitened gradients have unit covariance on each side. A Procrustes step
    rotates Q towards a symmetric matrix, so that no roots and no inverses are needed:
    with :math:`R = Q^\top - Q` over its norm,

    .. math::
        Q \leftarrow (I + a R + \tfrac{a^2}{2} R^2) \, Q, \qquad
        a = \min(-\mathrm{tr}(R Q) / \mathrm{tr}(R R Q), \, 1/8)

    A gradient of zeros leaves the factors as they are. G is the input of the block or,
    where it is given (`with_gradient`), the argument ``gradient``.

    Args:
        statistics: What the factors whiten: ``"gradient"`` G, or ``"momentum"``, that
            is, M in place of G in the formula.
        side: Which sides have a matrix as factor, as in `precondition`; the others have
            a diagonal one.
        factor_rate: Step size :math:`\mu` of the factors, below one.
        bound_decay: Decay rate :math:`\beta` of the bounds L.
        damping: Size d of the noise, relative to the root mean square of the gradient.
            A direction without gradient is enlarged until its noise has size one.
        init_scale: The root of the first P; None for that which gives the first
            gradient a mean fourth power of one.
        max_rms: Bound on the root mean square of :math:`\Delta`; None for none.
        update_interval: Number K of updates between those of the factors, which come at
            updates 1, K + 1, 2K + 1, ... of each matrix, counted from its first
            gradient that is not zero.
        momentum: Transformation from updates to M; None for M = G.
        seed: Seed of the noise. Inside `on_matrices` the noise of a matrix depends on
            its path and its place in its leaf; elsewhere all matrices of a stack have
            the same.

    Returns:
        A transformation of trees whose leaves are ``(..., m, n)``.

    Raises:
        ValueError: If an argument is out of range; at `init`, if a leaf has fewer than
            two axes.

    Examples:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> tx = om.transforms.whiten()
        >>> w = {"w": jnp.array([[0.0, 50.0], [2.0, 0.0]])}
        >>> step = lambda _, state: tx.update(w, state)[1]
        >>> state = jax.lax.fori_loop(0, 500, step, tx.init(w))
        >>> abs(tx.update(w, state)[0]["w"]).round(3).tolist()
        [[0.0, 1.41...], [1.41..., 0.0]]

    References:
        Li, `Stochastic Hessian fittings with Lie groups
        <https://arxiv.org/abs/2402.11858>`_, 2024, and its author's program, where
        this is ``KronWhiten`` with ``dQ="Q0.5EQ1.5"``. Deviations: the damping is
        relative, so that updates do not depend on the scale of the loss; the first
        scale is that of each matrix, there one of the whole model; updates of the
        factors come at intervals, there with a probability; the largest entries of both
        factors are made equal at each of them, there at one in a hundred, which does
        not change P; the vectors that estimate norms are the same at every step; X is
        scaled to entries of at most 1e15.
    """
    block = _Whiten(
        of_momentum=statistics == "momentum",
        side=side,
        rate=factor_rate,
        decay=bound_decay,
        damping=damping,
        init_scale=init_scale,
        max_rms=max_rms,
        interval=update_interval,
        momentum=momentum,
        seed=seed,
    )
    return optax.GradientTransformationExtraArgs(block.init, block.update)


@dataclasses.dataclass(frozen=True)
class _Whiten:
    of_momentum: bool
    side: Any
    rate: ArrayLike
    decay: ArrayLike
    damping: ArrayLike
    init_scale: ArrayLike | None
    max_rms: ArrayLike | None
    interval: int
    momentum: optax.GradientTransformation | None
    seed: int

    def init(self, params: Any) -> WhitenState:
        views = side_views(self.side, params)
        zeros = turned_zeros(views, params)
        none = lambda x: Pair(*(jnp.zeros_like(x[..., :1, :1]) for _ in range(2)))
        return WhitenState(
            count=no_turns(zeros),
            momentum=None if self.momentum is None else self.momentum.init(params),
            factor=jax.tree.map(identities, views, zeros),
            bound=jax.tree.map(none, zeros),
        )

    def update(
        self, updates: Any, state: Any, params: Any = None, **extra_args: Any
    ) -> tuple[Any, WhitenState]:
        del params
        given = extra_args.get("gradient")
        views = side_views(self.side, updates)
        mean, momentum = updates, None
        if self.momentum is not None:
            mean, momentum = self.momentum.update(updates, state.momentum)
        gradient = turned(views, updates if given is None else given)
        m = turned(views, mean)
        on = begun(state.count, gradient)
        at = lambda n, x: (n % self.interval == 0) & is_some(x)[..., 0, 0]
        due = jax.tree.map(at, state.count, gradient)
        x = m if self.of_momentum else gradient
        factor, bound = self._renewed(x, state, due)
        out = jax.tree.map(self._limited, m, factor)
        new = WhitenState(counted(state.count, on), momentum, factor, bound)
        return turned_back(views, out, updates), new

    def _renewed(self, x: Any, state: WhitenState, due: Any) -> tuple[Any, Any]:
        """The factors and bounds that follow; the old ones of what is not due."""
        structure = jax.tree.structure(x)
        flat = lambda tree: dict(enumerate(structure.flatten_up_to(tree)))
        none = lambda x: jnp.zeros((*x.shape[:-2], 1), jnp.uint32)
        ids = identities_of(x) or jax.tree.map(none, x)
        keys = jax.tree.map(self._keys, ids, state.count)

        def renew(due: Any, old: tuple[Any, Any]) -> tuple[Any, Any]:
            trees = x, *old, state.count, due, keys
            new = jointly(self._fitted, *map(flat, trees)).values()
            factors, bounds = ([pair[i] for pair in new] for i in range(2))
            return structure.unflatten(factors), structure.unflatten(bounds)

        return renewed(renew, due, (state.factor, state.bound))

    def _keys(self, ids: Any, count: jax.Array) -> jax.Array:
        numbers = jnp.asarray(ids, jnp.uint32), count[..., None].astype(jnp.uint32)
        return folded(seeded(self.seed), jnp.concatenate(numbers, axis=-1))

    def _fitted(
        self,
        x: jax.Array,
        factor: Pair,
        bound: Pair,
        count: jax.Array,
        due: jax.Array,
        key: jax.Array,
    ) -> tuple[Pair, Pair]:
        """The factors and bounds of a stack, those that are due after their step."""
        scale = scale_of(x) if self.init_scale is None else self.init_scale
        root = jnp.sqrt(jnp.asarray(scale, x.dtype))
        start = jnp.where((count == 0)[..., None, None], root, 1)
        *batch, m, n = x.shape
        size = self.damping * rms(x) + jnp.finfo(x.dtype).eps * abs(x)
        noise = size * normal(key, tuple(batch), m, n, x.dtype)
        begun = Pair(factor.rows * start, factor.cols * start)
        new = fitted(x + noise, begun, bound, rate=self.rate, decay=self.decay)
        return jax.tree.map(partial(select, due), new, (factor, bound))

    def _limited(self, m: jax.Array, factor: Pair) -> jax.Array:
        """The whitened matrices, with root mean squares up to the limit."""
        m, peak = unit_peak(m)
        x = product(m, factor)
        if self.max_rms is not None:
            peak = jnp.minimum(peak, self.max_rms * inverse(rms(x)))
        return x * peak
