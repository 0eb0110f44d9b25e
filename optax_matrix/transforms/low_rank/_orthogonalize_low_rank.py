"""Low-rank orthogonalization of the momentum, with error feedback (Dion)."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from optax_matrix._arguments import Decay, Dtype, Kernel, Rank, checked
from optax_matrix._surroundings.layouts import identities_of
from optax_matrix.linalg import cholesky_qr
from optax_matrix.linalg.precision import project
from optax_matrix.linalg.random import folded, normal, seeded
from optax_matrix.linalg.scale import check_matrices, safe_divide, unit_peak, widened
from optax_matrix.transforms.arguments import zeros_of_state
from optax_matrix.transforms.low_rank._basis import rank_in


class OrthogonalizeLowRankState(NamedTuple):
    """State of `orthogonalize_low_rank`.

    Attributes:
        momentum: Per leaf the sum of gradients minus the part that was applied,
            ``(..., m, n)``.
        right: Per leaf the right factor with columns of norm one, ``(..., n, r)``, at
            least float32.
    """

    momentum: Any
    right: Any


@checked
def orthogonalize_low_rank(
    rank: Rank = 1.0,
    *,
    decay: Decay = 0.95,
    qr: Kernel = cholesky_qr,
    accumulator_dtype: Dtype | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Returns the leading part of the momentum as a product of orthonormal factors.

    .. math::
        B = M_{t-1} + G_t, \quad P = \mathrm{qr}(B Q_{t-1}), \quad R = B^\top P, \quad
        M_t = B - (1 - \mu) P R^\top, \quad
        Q_t = R \, \mathrm{diag}(\|R_{\cdot j}\|)^{-1}, \quad \Delta = P Q_t^\top

    Every update takes one power step. The part of the momentum inside the range of P is
    multiplied by :math:`\mu`; the part outside stays whole, for later updates. A column
    of R that is rounding noise, for example if the momentum has a lower rank,
    contributes no update and does not change its column of Q.

    The first right factors are random. Inside `on_matrices` that of a matrix depends on
    its path and its place in its leaf; elsewhere all matrices of a shape have the same.

    Args:
        rank: Number of columns r: an int, or a float for a fraction of the shorter
            side, rounded up. 1.0 is full rank.
        decay: Decay rate :math:`\mu`.
        qr: Kernel that makes columns orthonormal, `linalg.cholesky_qr` or
            `linalg.qr_householder`.
        accumulator_dtype: Dtype of the momentum; None for the parameter's.

    Returns:
        A transformation of trees whose leaves are ``(..., m, n)``.

    Raises:
        ValueError: If an argument is out of range.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> tx = om.transforms.orthogonalize_low_rank(1)
        >>> w = {"w": jnp.array([[3.0, 4.0], [6.0, 8.0]])}  # of rank one
        >>> tx.update(w, tx.init(w))[0]["w"].round(3).tolist()
        [[0.268..., 0.358...], [0.537..., 0.716...]]

    References:
        Ahn et al., `Dion <https://arxiv.org/abs/2504.05295>`_, 2025, Algorithm 1.
        Deviations: no epsilon in the norms of the columns; columns that are noise are
        ignored, as above.
    """

    def init_fn(params):
        jax.tree.map(check_matrices, params)
        zeros = zeros_of_state(params, accumulator_dtype)
        starts = jax.tree.map(lambda p: rank_in(rank, p), params)
        ids = identities_of(params)
        if ids is None:
            draw = lambda p, r: jnp.broadcast_to(
                _drawn((), p.shape[-1], r, widened(p).dtype),
                (*p.shape[:-2], p.shape[-1], r),
            )
            right = jax.tree.map(draw, params, starts)
        else:
            draw = lambda p, r, i: _drawn(i, p.shape[-1], r, widened(p).dtype)
            right = jax.tree.map(draw, params, starts, ids)
        return OrthogonalizeLowRankState(zeros, right)

    def update_fn(updates, state, params=None, **extra_args):
        del params, extra_args
        out = jax.tree.map(step, updates, state.momentum, state.right)
        structure = jax.tree.structure(updates)
        rows = structure.flatten_up_to(out)
        updates, momentum, right = (
            structure.unflatten([row[i] for row in rows]) for i in range(3)
        )
        return updates, OrthogonalizeLowRankState(momentum, right)

    def step(g, m, q):
        # The products are linear in B, so that B need not be scaled: only squares are.
        b = widened(m).astype(q.dtype) + g.astype(q.dtype)
        p = qr(project(b, q), previous=_eye(b, q.shape[-1]))
        r = project(b.mT, p)
        kept = b - (1 - jnp.asarray(decay, b.dtype)) * project(p, r.mT)
        unit = _unit_columns(r, b)
        new = jnp.where(jnp.any(unit != 0, axis=-2, keepdims=True), unit, q)
        return project(p, unit.mT).astype(g.dtype), kept.astype(m.dtype), new

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def _drawn(ids: Any, n: int, r: int, dtype: Any) -> jax.Array:
    """Random columns of norm one: one matrix per row of ``ids``, or a single one."""
    keys = folded(seeded(0), ids)
    x = normal(keys, keys.shape, n, r, dtype)
    return x / jnp.linalg.norm(x, axis=-2, keepdims=True)


def _unit_columns(r: jax.Array, b: jax.Array) -> jax.Array:
    """Columns of ``b' p`` of norm one; zeros for columns that are rounding noise."""
    r, peak = unit_peak(r)
    norms = jnp.sqrt(jnp.sum(r * r, axis=-2, keepdims=True))
    noise = 4 * jnp.finfo(b.dtype).eps * max(b.shape[-2:]) ** 0.5
    # Where this overflows, all of R is noise beside B.
    size = jnp.sqrt(jnp.sum(jnp.square(b / peak), axis=(-2, -1), keepdims=True))
    # A NaN in the norms stays visible.
    return safe_divide(r, jnp.where(norms <= noise * size, 0, norms))


def _eye(b: jax.Array, r: int) -> jax.Array:
    eye = jnp.eye(b.shape[-2], r, dtype=b.dtype)
    return jnp.broadcast_to(eye, (*b.shape[:-2], *eye.shape))
