"""The eigenvalues of KL-Shampoo, by which each side whitens those of the other.

A covariance of Kronecker form has one factor per side. The factor that is closest in
Kullback-Leibler divergence, given the other one, averages gradients that are whitened
by that other one. State and arithmetic use the roots of the eigenvalues, so that
gradients of 1e20 and 1e-20 neither overflow nor vanish.

Why `mix_spectrum` is more than two averages. Let gradients grow by k. Each side divides
by the *old* eigenvalues of the other one, so each sees a growth of k, and after one
step both roots are ``sqrt(1 - decay) k`` times larger. The divisor of an entry, their
product, has then grown by ``(1 - decay) k^2``, while the entry has grown by k: updates
would be ``(1 - decay) k`` times smaller until the averages forget. A single average per
entry, as in Adam, grows by ``sqrt(1 - decay) k``. So the growth that most rows and
columns have in common is divided by its root on either side, and the product grows
about as much as a single average.

Only a growth that both sides see is shared. A single row that grows is seen by its own
average, and by every column a little. It would be divided out of all columns, so it
counts in the row alone (``lone``). A growth below the share that any gradient has,
``sqrt(1 - decay)`` of the average, is no growth: `_typical` gives it less weight, and
nothing below one is divided out. So in a steady state this is the plain average.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from optax_matrix._arguments import Decay, checked
from optax_matrix.linalg.precision import project
from optax_matrix.linalg.scale import column_norms, matrix_norm, safe_divide
from optax_matrix.transforms.second_moments.bounds import bounded
from optax_matrix.transforms.second_moments.gram import mix_gram, scaled
from optax_matrix.transforms.sides import Pair, SideView

# Least eigenvalue of a side, relative to its largest. The average of a direction
# without gradient decays; rounding noise divided by it would become the statistics.
_FLOOR = 1e-6

# Least divisor of a momentum, relative to their root mean square times the machine
# epsilon of what is stored: the average of rounded momenta is no more exact.
_NOISE = 2


def no_spectrum(x: jax.Array) -> Pair:
    """The roots of the eigenvalues before the first gradient, all zero."""
    *batch, p, q = x.shape
    return Pair(jnp.zeros((*batch, p), x.dtype), jnp.zeros((*batch, q), x.dtype))


def started(roots: Pair, gradient: jax.Array) -> Pair:
    """Starts eigenvalues at the root mean square of the first nonzero gradient."""
    p, q = gradient.shape[-2:]
    # Rounded to a power of two: the order of a sum, which depends on the mesh, must not
    # decide how the first statistics are rounded, whose null space is arbitrary.
    part, power = jnp.frexp(matrix_norm(gradient)[..., 0] / (p * q) ** 0.5)
    rounded = jnp.where(part < 0.5**0.5, power - 1, power)
    size = jnp.ldexp(jnp.sign(part), rounded)
    start = jnp.sqrt(size)
    old = jnp.any(roots.rows != 0, axis=-1, keepdims=True)
    old |= jnp.any(roots.cols != 0, axis=-1, keepdims=True)
    return Pair(*(jnp.where(old, x, start).astype(x.dtype) for x in roots))


def mix_whitened(
    view: SideView,
    gradient: jax.Array,
    old: Pair,
    rotation: Pair,
    roots: Pair,
    decay: ArrayLike,
) -> Pair:
    """Adds G C^-1 G' to the average of each side; C is the factor of the other one."""
    turned = gradient if rotation.cols is None else project(gradient, rotation.cols)
    rows = safe_divide(turned, roots.cols[..., None, :])
    turned = gradient.mT
    if rotation.rows is not None:
        turned = project(turned, rotation.rows)
    cols = safe_divide(turned, roots.rows[..., None, :])
    return Pair(
        mix_gram(old.rows, scaled(rows), decay) if view.rows else None,
        mix_gram(old.cols, scaled(cols), decay) if view.cols else None,
    )


def mix_spectrum(roots: Pair, x: jax.Array, decay: ArrayLike) -> Pair:
    """Updates both sides' eigenvalues; each uses the old ones of the other side.

    Both sides would count a change of scale. Where it is so large that one gradient
    makes up most of the averages, and where there is none, the product counts it once.
    A row or column that alone grows so far counts for its own average only.
    """
    rows, cols = roots
    old, new = (jnp.sqrt(jnp.asarray(b, rows.dtype)) for b in (decay, 1 - decay))
    seen = [_rms(safe_divide(y, r[..., None])) for y, r in ((x.mT, cols), (x, rows))]
    live = jnp.any(seen[0] > 0, axis=-1, keepdims=True)
    # The share of a gradient in each average, and what most of them have in common.
    top = jnp.finfo(rows.dtype).max  # The quotients may overflow.
    share = lambda y, r: jnp.minimum(new * safe_divide(y, r), top)
    own = [share(y, r) for y, r in zip(seen, roots, strict=True)]
    common = [_typical(share, new) for share in own]
    # A row that has grown by itself is not counted by the columns, nor vice versa.
    lone = [jnp.maximum(a / b, 1) for a, b in zip(own, common, strict=True)]
    root = jnp.sqrt(jnp.minimum(*common))
    seen = [
        _rms(safe_divide(y, (r * a)[..., None]))
        for y, r, a in ((x.mT, cols, lone[1]), (x, rows, lone[0]))
    ]
    old = jnp.where(live, old, jnp.sqrt(old))
    mixed = lambda kept, rms: jnp.hypot(old * kept, new * rms / root)
    return Pair(*(_with_floor(mixed(*pair)) for pair in zip(roots, seen, strict=True)))


def _typical(share: jax.Array, usual: ArrayLike) -> jax.Array:
    """The geometric mean of shares, at least one, of what has a part in the average."""
    weight = jnp.minimum(share / usual, 1)
    logs = weight * jnp.log(jnp.maximum(share, 1))
    total = lambda x: jnp.sum(x, axis=-1, keepdims=True)
    return jnp.exp(safe_divide(total(logs), total(weight)))


def _rms(x: jax.Array) -> jax.Array:
    return column_norms(x) / x.shape[-2] ** 0.5


def _with_floor(roots: jax.Array) -> jax.Array:
    return jnp.maximum(roots, _FLOOR**0.5 * jnp.max(roots, axis=-1, keepdims=True))


def largest_eps(state: Any) -> float:
    """The largest machine epsilon of the floats that a state holds, or zero."""
    dtypes = [jnp.result_type(x) for x in jax.tree.leaves(state)]
    floats = [d for d in dtypes if jnp.issubdtype(d, jnp.floating)]
    return max((float(jnp.finfo(d).eps) for d in floats), default=0.0)


def balanced(roots: Pair, gram: Pair) -> tuple[Pair, Pair]:
    """Brings both sides' eigenvalues to like size: times c, and over c."""
    # Nothing depends on c, so that it would drift, and overflow in a long run. As a
    # power of two it does not even change the rounding.
    size = [jnp.max(x, axis=-1, keepdims=True) for x in roots]
    (_, row), (_, col) = map(jnp.frexp, size)
    steps = jnp.where((size[0] > 0) & (size[1] > 0), (col - row + 1) // 2, 0)
    up, down = (jnp.ldexp(jnp.ones_like(size[0]), x) for x in (steps, -steps))
    scaled = lambda g, c: None if g is None else g._replace(peak=g.peak * c[..., None])
    grams = Pair(scaled(gram.rows, up), scaled(gram.cols, down))
    return Pair(roots.rows * up, roots.cols * down), grams


@checked
def scale_by_spectrum(
    decay: Decay | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Divides by the roots of the eigenvalues of both sides: the base of KL-Shampoo.

    .. math::
        X_{ij} \mapsto X_{ij} / \sqrt{\lambda_i \mu_j}

    The eigenvalues are the argument ``spectrum`` of `update`, a tree of pairs of their
    roots, which `in_eigenbasis` passes with ``statistics="kl"``. It also passes as
    ``eps`` the largest machine epsilon of its stored momenta. The least divisor is 2
    ``eps`` times the root mean square of all divisors of a matrix: 1.6% in bfloat16,
    2e-7 in float32.

    Args:
        decay: Decay rate :math:`\beta` of the eigenvalues. Entries r of the result
            beyond :math:`b = \sqrt{\min(m, n) / (\beta (1 - \beta))}` become
            :math:`b^2 / r`, as in `scale_by_second_moment`, and leave all others
            alone. A gradient cannot exceed b if the eigenvalues are plain averages
            that include it. Larger entries are rounding noise, or the eigenvalues
            are those of another frame; or gradients have just grown so far that
            `kl_shampoo` counts the growth once, and an entry is far above the root
            mean square of its row. None for no bound.

    Returns:
        A transformation without state, of trees whose leaves are ``(..., m, n)``.

    Raises:
        ValueError: If ``decay`` is not in [0, 1); at `update`, without ``spectrum``.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> base = om.transforms.scale_by_spectrum()
        >>> tx = om.in_eigenbasis(base, "kl")
        >>> w = {"w": jnp.diag(jnp.array([3.0, 3.0]))}
        >>> tx.update(w, tx.init(w))[0]["w"].round(3).tolist()
        [[1.5..., 0.0], [0.0, 1.5...]]

    References:
        Lin et al., `KL-Shampoo <https://arxiv.org/abs/2509.03378>`_, 2025. Deviation:
        the bound is that of entries, where the authors' code bounds the inverse roots
        of the eigenvalues; and the least divisor.
    """

    def update_fn(updates, state, params=None, *, spectrum=None, eps=0.0, **extra_args):
        del params, extra_args
        if spectrum is None:
            raise ValueError(
                "`scale_by_spectrum` needs the argument `spectrum`, got None; run it "
                'as the base of in_eigenbasis(base, "kl").'
            )
        return jax.tree.map(partial(divided, eps=eps), updates, spectrum), state

    def divided(x, roots, eps):
        # One after the other: the product of the roots may overflow.
        rows, cols = roots.rows[..., None], roots.cols[..., None, :]
        y = safe_divide(safe_divide(x, rows), cols)
        if eps:
            rows = safe_divide(rows, _rms(rows)[..., None])
            cols = safe_divide(cols, _rms(cols.mT)[..., None])
            y *= jnp.minimum(rows * cols / (_NOISE * eps), 1)
        if decay is None:
            return y
        b = jnp.asarray(decay, y.dtype)
        return bounded(y, (min(y.shape[-2:]) / (b * (1 - b))) ** 0.5)

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update_fn)
