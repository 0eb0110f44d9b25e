"""Inverse roots of averaged Gram matrices on both sides (Shampoo, Mousse)."""

import dataclasses
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from optax_matrix._arguments import (
    Decay,
    Exponent,
    NotNegative,
    PositiveInt,
    checked,
    unchecked,
)
from optax_matrix._surroundings.joining import jointly
from optax_matrix._surroundings.keeping import kept
from optax_matrix._surroundings.observation import in_another_frame
from optax_matrix.linalg import as_root, check_newton, inverse_root
from optax_matrix.linalg.precision import project
from optax_matrix.linalg.scale import matrix_norm, resized, safe_divide, widened
from optax_matrix.transforms.arguments import Transformation
from optax_matrix.transforms.blocks import cut, in_blocks_of, joined
from optax_matrix.transforms.second_moments.gram import (
    Gram,
    mix_gram,
    no_gram,
    scaled,
    warn_of_wide_sides,
)
from optax_matrix.transforms.sides import (
    MatrixSides,
    Pair,
    SideView,
    side_views,
    turned,
    turned_back,
    turned_zeros,
)
from optax_matrix.transforms.turns import begun, counted, no_turns, renewed, select


class PreconditionState(NamedTuple):
    """State of `precondition`, all of it at least float32.

    Of a leaf that is cut into blocks, counts, statistics and roots are a dict with
    those of each shape of blocks.

    Attributes:
        count: Per leaf and matrix (or block) the number of updates since its first
            gradient, int32 ``(...)``; None where nothing depends on it.
        momentum: State of the momentum.
        gram: Per leaf a ``Pair`` of statistics. Rows and columns are those that the
            inner transformation sees; None for a side that is not preconditioned.
        root: Per leaf a ``Pair`` of inverse roots of ``gram.normalized`` over its
            trace; None if every update recomputes them.
        inner_state: State of the inner transformation.
    """

    count: Any
    momentum: Any
    gram: Any
    root: Any
    inner_state: Any


@checked
def precondition(
    inner: Transformation | None = None,
    *,
    power: Exponent = 0.25,
    side: MatrixSides = "both",
    decay: Decay | None = None,
    bias_correction: bool = False,
    eps: NotNegative = 1e-6,
    method: Literal["newton", "eigh"] = "newton",
    update_interval: PositiveInt = 1,
    block_size: PositiveInt | None = None,
    momentum: Transformation | None = None,
    graft: bool = False,
) -> optax.GradientTransformationExtraArgs:
    r"""Multiplies every matrix by inverse roots of its Gram matrices.

    .. math::
        L_t = \beta L_{t-1} + (1 - \beta) G G^\top, \quad
        R_t = \beta R_{t-1} + (1 - \beta) G^\top G, \qquad
        \Delta = L^{-p} M R^{-p}

    or, with an ``inner`` transformation f,
    :math:`\Delta = L^{-p} f(L^{-p} M R^{-p}) R^{-p}`: f runs in whitened
    coordinates, and the same factors map its output back to those of the parameters. G
    is the input of the block or, where it is given (`with_gradient`), the argument
    ``gradient``, which f then gets whitened.

    Args:
        inner: A transformation of the whitened matrices, such as `orthogonalize`. It
            sees transposed matrices where ``side`` is the columns alone.
        power: The exponent :math:`p`, above zero: 1/4 for Shampoo, 1/2 to whiten one
            side. ``"newton"`` takes 1, 1/2, 1/3, ... only.
        side: ``"both"``, ``"out"`` (L alone), ``"in"`` (R alone), ``"short"``; or a
            dict that gives one of them, or ``"none"``, for each leaf of a dict of
            stacks, or a function of the layout, as in `rotate`.
        decay: Decay rate :math:`\beta` of the averages; None for sums.
        bias_correction: Whether to divide the averages by :math:`1 - \beta^t`.
        eps: Term added to the diagonals, relative to the largest eigenvalue.
        method: ``"newton"`` (matrix products only) or ``"eigh"``, as in
            `linalg.inverse_root`.
        update_interval: Number of updates between renewals of the roots. Each matrix
            counts from its first nonzero gradient, at which the first renewal is.
            Without ``graft`` updates 2, 4, 8, ... of the first interval renew them,
            too: where few gradients have been seen, roots are as large as ``eps``
            lets them be. The size of the statistics is always the present one.
        block_size: Largest side of a block; None for whole matrices. Every block has
            Gram matrices, roots and a count of its own, and is multiplied by its own
            roots, as a matrix would be; the momentum, ``inner`` and ``graft`` see whole
            matrices. In square blocks, Gram matrices have two numbers per
            weight, and roots as many. A matrix without a longer side stays whole.
        momentum: Transformation from updates to :math:`M`; None for :math:`M = G`.
        graft: Whether to give :math:`\Delta` the norm of the output of ``inner``.

    Returns:
        A transformation of trees whose leaves are ``(..., m, n)``.

    Raises:
        ValueError: If an argument is out of range, ``graft`` has no ``inner``, or
            ``method`` cannot take ``power``.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> tx = om.precondition(eps=0.0)
        >>> w = {"w": jnp.array([[0.0, 5.0], [3.0, 0.0]])}
        >>> tx.update(w, tx.init(w))[0]["w"].round(3).tolist()
        [[0.0, 1.0], [1.0, 0.0]]

    References:
        Gupta et al., `Shampoo <https://arxiv.org/abs/1802.09568>`_, 2018. Deviations:
        epsilon is relative; the scale of the statistics is stored separately, so that
        gradients of 1e20 and 1e-20 neither overflow nor vanish. If ``decay`` changes
        between steps, ``bias_correction`` is that of its current value.
    """
    if graft and inner is None:
        raise ValueError(
            "`graft` must be False without `inner`, got True; to keep the norm of the "
            "input, wrap the block in preserve_norm."
        )
    if bias_correction and decay is None:
        raise ValueError(
            "`bias_correction` must be False for sums, got True; set `decay`."
        )
    root = as_root(power)
    if method == "newton":
        check_newton("power", root)
    block = _Precondition(
        inner=None if inner is None else optax.with_extra_args_support(inner),
        momentum=momentum,
        side=side,
        decay=decay,
        corrects=bias_correction,
        inverse=unchecked(partial(inverse_root, p=root, eps=eps, method=method)),
        p=root,
        interval=update_interval,
        size=block_size,
        graft=graft,
    )
    return optax.GradientTransformationExtraArgs(block.init, block.update)


@dataclasses.dataclass(frozen=True)
class _Precondition:
    inner: optax.GradientTransformationExtraArgs | None
    momentum: optax.GradientTransformation | None
    side: Any
    decay: ArrayLike | None
    corrects: bool
    inverse: partial
    p: int | float
    interval: int
    size: int | None
    graft: bool

    def init(self, params: Any) -> PreconditionState:
        views = side_views(self.side, params)
        zeros = turned_zeros(views, params)
        blocks = in_blocks_of(self.size, zeros)
        warn = lambda v, x: jax.tree.map(partial(warn_of_wide_sides, v), x)
        jax.tree.map(warn, views, blocks)
        of_view = lambda f: lambda v, x: jax.tree.map(partial(v.pair, f), x)
        pairs = lambda f: jax.tree.map(of_view(f), views, blocks)
        return PreconditionState(
            count=no_turns(blocks) if self.corrects or self.interval > 1 else None,
            momentum=None if self.momentum is None else self.momentum.init(params),
            gram=pairs(no_gram),
            root=None if self.interval == 1 else pairs(lambda x: no_gram(x).normalized),
            inner_state=None if self.inner is None else self.inner.init(zeros),
        )

    def update(
        self, updates: Any, state: Any, params: Any = None, **extra: Any
    ) -> tuple[Any, PreconditionState]:
        del params
        given = extra.pop("gradient", None)
        views = side_views(self.side, updates)
        mean, momentum = updates, None
        if self.momentum is not None:
            mean, momentum = self.momentum.update(updates, state.momentum)
        gradient = turned(views, updates if given is None else given)
        blocks = in_blocks_of(self.size, gradient)
        gram = kept(jax.tree.map(self._mixed, views, blocks, state.gram), state.gram)
        on = None if state.count is None else begun(state.count, blocks)
        roots = self._roots(gram, state, on)
        factors = roots, self._scales(gram, state.count)
        out = jax.tree.map(self._whitened, turned(views, mean), *factors)
        inner_state = None
        if self.inner is not None:
            if given is not None:
                extra["gradient"] = jax.tree.map(self._whitened, gradient, *factors)
            with in_another_frame():
                new, inner_state = self.inner.update(out, state.inner_state, **extra)
            out = jax.tree.map(self._whitened, new, *factors)
            of_norm = lambda x, like: resized(x, matrix_norm(like))
            out = jax.tree.map(of_norm, out, new) if self.graft else out
        count = None if on is None else counted(state.count, on)
        held = None if self.interval == 1 else roots
        new_state = PreconditionState(count, momentum, gram, held, inner_state)
        return turned_back(views, out, updates), new_state

    def _mixed(self, view: SideView, blocks: Any, old: Any) -> Any:
        decay, weight = (1.0, 1.0) if self.decay is None else (self.decay, None)
        mix = lambda x, old: mix_gram(old, x, decay, weight)
        pair = lambda x, old: view.pair(mix, scaled(x), old)
        return jax.tree.map(pair, blocks, old)

    def _whitened(self, x: jax.Array, roots: Any, scales: Any) -> jax.Array:
        blocks = jax.tree.map(_whitened, cut(self.size, x), roots, scales)
        return joined(self.size, blocks, x.shape)

    def _roots(self, gram: Any, state: PreconditionState, on: Any) -> Any:
        """The inverse roots after this gradient; the old ones where none are due."""
        leaves, structure = jax.tree.flatten(gram, is_leaf=_is_gram)
        normalized = {i: x.normalized for i, x in enumerate(leaves)}
        unflatten = lambda found: structure.unflatten(found.values())
        root = lambda x: self.inverse(safe_divide(x, _trace(x)))
        if self.interval == 1:
            return unflatten(jointly(root, normalized))

        def renew(due: Any, old: Any) -> Any:
            of_sides = dict(enumerate(_of_sides(due, gram)))
            last = dict(enumerate(structure.flatten_up_to(old)))
            of_stack = lambda x, due, old: select(due, root(x), old)
            return unflatten(jointly(of_stack, normalized, of_sides, last))

        return renewed(renew, jax.tree.map(self._is_due, state.count, on), state.root)

    def _is_due(self, count: jax.Array, on: jax.Array) -> jax.Array:
        """Whether roots are renewed, after so many updates before this one."""
        is_power = (count & (count + 1)) == 0
        is_early = is_power & (count < self.interval) & (not self.graft)
        return on & ((count % self.interval == 0) | is_early)

    def _scales(self, gram: Any, count: Any) -> Any:
        """Inverse roots of the present size of the statistics, for each side."""
        leaves, structure = jax.tree.flatten(gram, is_leaf=_is_gram)
        counts = _of_sides(count, gram) if self.corrects else leaves
        return structure.unflatten(map(self._scale, leaves, counts))

    def _scale(self, gram: Gram, count: Any) -> jax.Array:
        one = jnp.ones_like(gram.peak)
        if self.corrects:
            one -= jnp.asarray(self.decay, one.dtype) ** (count[..., None, None] + 1)
        size = safe_divide(one, _trace(gram.normalized)) ** (1 / self.p)
        return safe_divide(size, gram.peak ** (2 / self.p))


_is_gram = lambda x: isinstance(x, Gram)


def _trace(x: jax.Array) -> jax.Array:
    return jnp.trace(x, axis1=-2, axis2=-1)[..., None, None]


def _of_sides(values: Any, gram: Any) -> list[Any]:
    """Of each matrix its value, once for each side that has statistics."""
    same = lambda x, pair: jax.tree.map(lambda _: x, pair, is_leaf=_is_gram)
    return jax.tree.leaves(jax.tree.map(same, values, gram))


def _whitened(x: jax.Array, root: Pair, scale: Pair) -> jax.Array:
    x = widened(x)
    x = x if root.rows is None else project(root.rows, scale.rows * x)
    return x if root.cols is None else project(scale.cols * x, root.cols)
