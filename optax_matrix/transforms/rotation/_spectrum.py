"""The eigenvalues of KL-Shampoo, by which each side whitens those of the other.

A covariance of Kronecker form has one factor per side. The factor that is closest in
Kullback-Leibler divergence, given the other one, averages gradients that are whitened
by that other one. State and arithmetic use the roots of the eigenvalues, so that
gradients of 1e20 and 1e-20 neither overflow nor vanish.
"""

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from optax_matrix.linalg.precision import project
from optax_matrix.linalg.scale import column_norms, matrix_norm, safe_divide
from optax_matrix.transforms.second_moments.gram import mix_gram, scaled
from optax_matrix.transforms.sides import Pair, SideView


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
    """
    rows, cols = roots
    rms = lambda x: column_norms(x) / x.shape[-2] ** 0.5
    seen = rms(safe_divide(x.mT, cols[..., None])), rms(safe_divide(x, rows[..., None]))
    old, new = (jnp.sqrt(jnp.asarray(b, rows.dtype)) for b in (decay, 1 - decay))
    # The root mean square of what both sides have whitened is one, if nothing changes.
    # It is a product of two, as it may overflow.
    peak = jnp.max(seen[0], axis=-1, keepdims=True)
    rest = rms(safe_divide(safe_divide(seen[0], peak), rows)[..., None])
    root = jnp.sqrt(new * peak) * jnp.sqrt(rest)
    growth = jnp.where(root > 0, jnp.maximum(root, 1), jnp.sqrt(old))
    mixed = lambda root, rms: safe_divide(jnp.hypot(old * root, new * rms), growth)
    return Pair(*map(mixed, roots, seen))


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


def scale_by_spectrum() -> optax.GradientTransformationExtraArgs:
    r"""Divides by the roots of the eigenvalues of both sides: the base of KL-Shampoo.

    .. math::
        X_{ij} \mapsto X_{ij} / \sqrt{\lambda_i \mu_j}

    The eigenvalues are the argument ``spectrum`` of `update`, a tree of pairs of their
    roots, which `in_eigenbasis` passes with ``statistics="kl"``.

    Returns:
        A transformation without state, of trees whose leaves are ``(..., m, n)``.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> base = om.transforms.scale_by_spectrum()
        >>> tx = om.in_eigenbasis(base, "kl")
        >>> w = {"w": jnp.diag(jnp.array([3.0, 3.0]))}
        >>> tx.update(w, tx.init(w))[0]["w"].round(3).tolist()
        [[1.5..., 0.0], [0.0, 1.5...]]

    References:
        Lin et al., `KL-Shampoo <https://arxiv.org/abs/2509.03378>`_, 2025.
    """

    def update_fn(updates, state, params=None, *, spectrum=None, **extra_args):
        del params, extra_args
        if spectrum is None:
            raise ValueError(
                "`scale_by_spectrum` needs the argument `spectrum`, got None; run it "
                'as the base of in_eigenbasis(base, "kl").'
            )
        return jax.tree.map(divided, updates, spectrum), state

    def divided(x, roots):
        rows, cols = roots
        # One after the other: the product of the roots may overflow.
        return safe_divide(safe_divide(x, rows[..., None]), cols[..., None, :])

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update_fn)
