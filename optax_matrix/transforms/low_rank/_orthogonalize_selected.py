"""Orthogonalizing a few rows or columns of the momentum (Dion2)."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from optax_matrix._arguments import Decay, Dtype, Kernel, Rank, checked
from optax_matrix._mesh import unsplit
from optax_matrix.linalg import newton_schulz
from optax_matrix.linalg.scale import check_matrices, widened
from optax_matrix.transforms.arguments import zeros_of_state
from optax_matrix.transforms.low_rank._basis import rank_of


class OrthogonalizeSelectedState(NamedTuple):
    """State of `orthogonalize_selected`.

    Attributes:
        momentum: Per leaf the sum of gradients, reduced where it was applied,
            ``(..., m, n)``.
    """

    momentum: Any


@checked
def orthogonalize_selected(
    fraction: Rank = 0.25,
    *,
    decay: Decay = 0.95,
    polar: Kernel = newton_schulz,
    accumulator_dtype: Dtype | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Replaces the largest rows of the momentum by their polar factor.

    .. math::
        B = M_{t-1} + G_t, \quad K = \text{the largest rows of } B, \quad
        \Delta_K = \mathrm{polar}(B_K), \quad
        M_K = \mu B_K, \quad \Delta_{\bar K} = 0, \quad M_{\bar K} = B_{\bar K}

    The update of all other rows is zero. Rows are measured by the sum of their absolute
    values. If a matrix has more rows than columns, the same is done with its columns.

    Args:
        fraction: Number of rows (or columns): a float for a fraction of the shorter
            side, rounded up, or an int.
        decay: Decay rate :math:`\mu` of the rows that were applied.
        polar: Kernel that returns the polar factor.
        accumulator_dtype: Dtype of the momentum; None for the parameter's.

    Returns:
        A transformation of trees whose leaves are ``(..., m, n)``.

    Raises:
        ValueError: If an argument is out of range.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> tx = om.transforms.orthogonalize_selected(1, polar="polar_svd")
        >>> w = {"w": jnp.array([[3.0, 4.0], [6.0, 8.0]])}
        >>> tx.update(w, tx.init(w))[0]["w"].round(3).tolist()
        [[0.0, 0.0], [0.6..., 0.8...]]

    References:
        Ahn et al., `Dion2 <https://arxiv.org/abs/2512.16928>`_, 2025, and its authors'
        code. Deviation: under sharding the rows of the whole matrix are compared
        (``selection_scope="global"`` there), and the side does not depend on the mesh.
    """
    kernel = polar

    def init_fn(params):
        jax.tree.map(check_matrices, params)
        return OrthogonalizeSelectedState(zeros_of_state(params, accumulator_dtype))

    def update_fn(updates, state, params=None, **extra_args):
        del params, extra_args
        add = lambda g, m: widened(m) + g.astype(widened(m).dtype)
        total = jax.tree.map(add, updates, state.momentum)
        chosen = jax.tree.map(_chosen, total)
        out = jax.tree.map(
            lambda b, at, g: step(b, at).astype(g.dtype), total, chosen, updates
        )
        left = lambda b, at, m: jnp.where(_taken(at, b), decay * b, b).astype(m.dtype)
        momentum = jax.tree.map(left, total, chosen, state.momentum)
        return out, OrthogonalizeSelectedState(momentum)

    def _chosen(b):
        """The place of every row in the order of their sizes, ``(..., rows)``."""
        sizes = jnp.sum(jnp.abs(_turned(b)), axis=-1)
        return jnp.argsort(jnp.argsort(-sizes, axis=-1), axis=-1)

    def _taken(place, b):
        return _turned_back(place[..., None] < rank_of(fraction, place.shape[-1]), b)

    def step(b, place):
        k = rank_of(fraction, place.shape[-1])
        order = unsplit(jnp.argsort(place, axis=-1)[..., :k])[..., None]
        factor = kernel(jnp.take_along_axis(_turned(b), order, axis=-2))
        back = unsplit(jnp.minimum(place, k - 1))[..., None]
        rows = _turned_back(jnp.take_along_axis(factor, back, axis=-2), b)
        return jnp.where(_taken(place, b), rows, 0)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def _turned(b: jax.Array) -> jax.Array:
    """The matrices, transposed if they have more rows than columns."""
    return b.mT if b.shape[-2] > b.shape[-1] else b


def _turned_back(x: jax.Array, b: jax.Array) -> jax.Array:
    return x.mT if b.shape[-2] > b.shape[-1] else x
