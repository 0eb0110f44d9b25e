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
from optax_matrix._surroundings.keeping import movable, note_kept
from optax_matrix._surroundings.kernels import jointly
from optax_matrix.linalg.precision import Precision, Products, products_of
from optax_matrix.linalg.procrustes import estimated_norm, procrustes_step
from optax_matrix.linalg.products import Product
from optax_matrix.linalg.random import folded, normal, seeded
from optax_matrix.linalg.scale import inverse, matrix_norm, unit_peak
from optax_matrix.transforms.arguments import Transformation
from optax_matrix.transforms.sides import (
    MatrixSides,
    Pair,
    SideView,
    side_views,
    turned,
    turned_back,
    turned_zeros,
)
from optax_matrix.transforms.turns import any_of, begun, chosen, counted, no_turns

# Entries of a whitened gradient are of size one. The squares of these do not overflow.
_LARGEST = 1e15


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
    ids: Any = None,
    seed: Seed = 0,
    precision: Precision = "default",
) -> optax.GradientTransformationExtraArgs:
    r"""Multiplies every matrix by factors that whiten its gradients.

    .. math::
        X &= P(G + (d \, \mathrm{rms}(G) + \epsilon |G|) \circ N), \qquad
        P(M) = Q_l^\top Q_l \, M \, Q_r^\top Q_r, \qquad \Delta = P(M) \\
        C &= X X^\top, \qquad \ell = \|C\|_2 + n, \qquad
        L \leftarrow \max(\beta L + (1 - \beta) \ell, \, \ell) \\
        Q_l &\leftarrow \mathrm{procrustes}\left(
            Q_l - \tfrac{\mu}{L} (C Q_l - n \, Q_l)\right)

    and likewise :math:`Q_r` from :math:`X^\top X` and m. N is normal noise and
    :math:`\epsilon` the resolution of float32. The fixed point is the Kronecker product
    P for which whitened gradients have unit covariance on each side. A Procrustes step
    rotates Q towards a symmetric matrix, so that no roots and no inverses are needed:
    with :math:`R = Q^\top - Q` over its norm,

    .. math::
        Q \leftarrow (I + a R + \tfrac{a^2}{2} R^2) \, Q, \qquad
        a = \min(-\mathrm{tr}(R Q) / \mathrm{tr}(R R Q), \, 1/8)

    A gradient of zeros leaves the factors as they are.

    Args:
        statistics: What the factors whiten: ``"gradient"`` G, or ``"momentum"``, that
            is, M in place of G in the formula.
        side: Which sides have a matrix as factor, as in `precondition`; the others have
            a diagonal one.
        factor_rate: Step size :math:`\mu` of the factors, below one.
        bound_decay: Decay rate :math:`\beta` of the bounds L.
        damping: Size d of the noise, relative to the root mean square of the gradient.
            No direction is enlarged by more than about 1 / d.
        init_scale: The root of the first P; None for that which gives the first
            gradient a mean fourth power of one.
        max_rms: Bound on the root mean square of :math:`\Delta`; None for none.
        update_interval: Number K of updates between those of the factors, which come at
            updates 1, K + 1, 2K + 1, ... of each matrix, counted from its first
            gradient that is not zero.
        momentum: Transformation from updates to M; None for M = G.
        ids: Identity of each matrix, uint32 ``(..., k)`` per leaf (`stacks.Group.ids`),
            from which its noise is drawn; None draws the same for all matrices of a
            shape.
        seed: Seed of the noise.
        precision: Precision of products on accelerators: ``"default"``, ``"fast"`` or
            ``"exact"`` (``linalg.precision``).

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
        >>> tx.update(w, state)[0]["w"].round(2).tolist()
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
    products = products_of(precision)
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
        ids=ids,
        seed=seed,
        products=products,
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
    ids: Any
    seed: int
    products: Products

    def init(self, params: Any) -> WhitenState:
        views = side_views(self.side, params)
        zeros = turned_zeros(views, params)
        none = lambda x: Pair(*(jnp.zeros_like(x[..., :1, :1]) for _ in range(2)))
        return WhitenState(
            count=no_turns(zeros),
            momentum=None if self.momentum is None else self.momentum.init(params),
            factor=jax.tree.map(_identities, views, zeros),
            bound=jax.tree.map(none, zeros),
        )

    def update(
        self, updates: Any, state: Any, params: Any = None, **extra_args: Any
    ) -> tuple[Any, WhitenState]:
        del params, extra_args
        views = side_views(self.side, updates)
        mean, momentum = updates, None
        if self.momentum is not None:
            mean, momentum = self.momentum.update(updates, state.momentum)
        gradient, m = turned(views, updates), turned(views, mean)
        on = begun(state.count, gradient)
        at = lambda n, x: (n % self.interval == 0) & jnp.any(x != 0, axis=(-2, -1))
        due = movable(jax.tree.map(at, state.count, gradient))
        x = m if self.of_momentum else gradient
        factor, bound = self._renewed(x, state, due)
        out = jax.tree.map(self._limited, m, factor)
        new = WhitenState(counted(state.count, on), momentum, factor, bound)
        return turned_back(views, out, updates), new

    def _renewed(self, x: Any, state: WhitenState, due: Any) -> tuple[Any, Any]:
        """The factors and bounds that follow; the old ones of what is not due."""
        structure = jax.tree.structure(x)
        flat = lambda tree: dict(enumerate(structure.flatten_up_to(tree)))
        keys = jax.tree.map(self._keys, self._ids(x), state.count)
        old = state.factor, state.bound
        trees = x, *old, state.count, due, keys

        def fitted(_: Any) -> tuple[Any, Any]:
            new = jointly(self._fitted, *map(flat, trees)).values()
            factors, bounds = ([pair[i] for pair in new] for i in range(2))
            return structure.unflatten(factors), structure.unflatten(bounds)

        new = jax.lax.cond(any_of(due), fitted, lambda _: old, None)
        note_kept(new, old)
        return new

    def _ids(self, tree: Any) -> Any:
        if self.ids is None:
            none = lambda x: jnp.zeros((*x.shape[:-2], 1), jnp.uint32)
            return jax.tree.map(none, tree)
        return {name: self.ids[name] for name in tree}

    def _keys(self, ids: Any, count: jax.Array) -> jax.Array:
        numbers = jnp.asarray(ids, jnp.uint32), count[..., None].astype(jnp.uint32)
        return folded(seeded(self.seed), jnp.concatenate(numbers, axis=-1))

    def _fitted(
        self,
        g: jax.Array,
        factor: Pair,
        bound: Pair,
        count: jax.Array,
        due: jax.Array,
        key: jax.Array,
    ) -> tuple[Pair, Pair]:
        """The factors and bounds of a stack after an update of those that are due."""
        is_first = (count == 0)[..., None, None]
        start = jnp.where(is_first, jnp.sqrt(self._start(g)), 1)
        rows, cols = (q * start for q in factor)
        noise = normal(key, g.shape[:-2], *g.shape[-2:], g.dtype)
        x = g + (self.damping * _rms(g) + jnp.finfo(g.dtype).eps * abs(g)) * noise
        x = _product(self.products.project, x, Pair(rows, cols))
        x = x * jnp.minimum(1, _LARGEST / unit_peak(x)[1])
        rows, left = self._moved(rows, bound.rows, x)
        cols, right = self._moved(cols, bound.cols, x.mT)
        largest = lambda q: jnp.max(abs(q), axis=(-2, -1), keepdims=True)
        balance = jnp.sqrt(largest(cols) / largest(rows))
        new = Pair(rows * balance, cols / balance), Pair(left, right)
        return jax.tree.map(partial(chosen, due), new, (factor, bound))

    def _start(self, g: jax.Array) -> jax.Array:
        """The root of the first P; any number for zeros, whose factors stay."""
        if self.init_scale is not None:
            return jnp.asarray(self.init_scale, g.dtype)
        unit, peak = unit_peak(g)
        fourth = jnp.mean(unit**4, axis=(-2, -1), keepdims=True)
        return jnp.where(fourth > 0, fourth, 1) ** -0.125 / jnp.sqrt(peak)

    def _moved(
        self, q: jax.Array, bound: jax.Array, x: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """The factor of the rows of whitened gradients, and its bound, moved on."""
        n = x.shape[-1]
        is_matrix = q.shape[-1] == q.shape[-2]
        if is_matrix:
            c = self.products.statistics(x, x.mT)
            size = estimated_norm(c, self.products.project)
        else:
            c = jnp.sum(x * x, axis=-1, keepdims=True)
            size = jnp.max(c, axis=-2, keepdims=True)
        decay = jnp.asarray(self.decay, x.dtype)
        last = size + n
        bound = jnp.maximum(decay * bound + (1 - decay) * last, last)
        c = c / bound
        cq = self.products.project(c, q) if is_matrix else c * q
        q = q - jnp.asarray(self.rate, x.dtype) * (cq - n / bound * q)
        return procrustes_step(q, self.products.bases) if is_matrix else q, bound

    def _limited(self, m: jax.Array, factor: Pair) -> jax.Array:
        """The whitened matrices, with root mean squares up to the limit."""
        x = _product(self.products.project, m, factor)
        if self.max_rms is None:
            return x
        return x * jnp.minimum(1, self.max_rms * inverse(_rms(x)))


def _identities(view: SideView, x: jax.Array) -> Pair:
    """Identities for the sides that have matrices, ones for the others."""

    def of(x: jax.Array, is_matrix: bool) -> jax.Array:
        p = x.shape[-2]
        one = jnp.eye(p, dtype=x.dtype) if is_matrix else jnp.ones((p, 1), x.dtype)
        return jnp.zeros((*x.shape[:-1], one.shape[-1]), x.dtype) + one

    return Pair(of(x, view.rows), of(x.mT, view.cols))


def _rms(x: jax.Array) -> jax.Array:
    """Root mean squares, ``(..., 1, 1)``."""
    return matrix_norm(x) / (x.shape[-2] * x.shape[-1]) ** 0.5


def _product(dot: Product, x: jax.Array, factor: Pair) -> jax.Array:
    """The matrices times ``Q'Q`` of both sides."""
    for q in factor:
        is_matrix = q.shape[-1] == q.shape[-2]
        x = (dot(q.mT, dot(q, x)) if is_matrix else q * q * x).mT
    return x
