"""Adam's denominator as a block of its own."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from optax_matrix._arguments import Decay, NotNegative, checked
from optax_matrix._surroundings.keeping import kept
from optax_matrix._surroundings.observation import is_observed, report
from optax_matrix.linalg.scale import check_matrices, safe_divide, widened
from optax_matrix.transforms.second_moments import bounds


class ScaleBySecondMomentState(NamedTuple):
    """State of `scale_by_second_moment`.

    Attributes:
        root: Per leaf the square root of the averaged square of each entry, at least
            float32.
        weight: Per leaf and matrix ``1 - decay**t``, shape ``(...)``; None without
            bias correction.
    """

    root: Any
    weight: Any


@checked
def scale_by_second_moment(
    decay: Decay = 0.95,
    *,
    bias_correction: bool = False,
    eps: NotNegative = 0.0,
    relative_eps: NotNegative = 0.0,
    bounded: bool = True,
) -> optax.GradientTransformationExtraArgs:
    r"""Divides every entry by the square root of its averaged square.

    .. math::
        V_t = \beta V_{t-1} + (1 - \beta) S_t^2, \qquad
        X_t \mapsto X_t / (\sqrt{V_t} + \epsilon)

    :math:`S_t` is by default :math:`X_t` itself; after a momentum this is the two-fold
    Adam of ARO. If `update` receives the argument ``gradient``, :math:`S_t` is that
    gradient, and this is the denominator of Adam, SOAP and Eigen-Adam; `in_eigenbasis`
    passes it. The state holds the square root, so that nothing
    overflows or vanishes. Entries that have always been zero give zero.

    By default no entry of the result exceeds :math:`b = \sqrt{(1 - \beta^t) / (1 -
    \beta)}` with bias correction and :math:`1 / \sqrt{1 - \beta}` without, the largest
    ratio that a gradient can have to its own second moment. An average of gradients,
    :math:`X_t`, stays below that, too, if its decay rate is at most :math:`\beta` and
    both moments are of the same coordinates. A larger ratio r has another cause:
    :math:`V_t` was recorded in another frame, :math:`X_t` remembers longer than
    :math:`V_t`, or it is the rounding noise of a momentum in few bits. It becomes
    :math:`b^2 / r`.

    Args:
        decay: Decay rate :math:`\beta`, in ``[0, 1)``.
        bias_correction: Whether to divide :math:`V_t` by :math:`1 - \beta^t`.
        eps: The number :math:`\epsilon`. It is added before the correction, and so
            divided by :math:`\sqrt{1 - \beta^t}` with it, as in the programs of GaLore,
            Fira and APOLLO; Adam adds it afterwards.
        relative_eps: A number that is added like ``eps``, times the largest entry of
            :math:`\sqrt{V_t}` in the matrix: entries far below that move less.
        bounded: Whether the result has the bound above.

    Returns:
        A transformation of trees whose leaves are ``(..., m, n)``.

    Raises:
        ValueError: If ``decay`` is not in [0, 1), or an epsilon is negative.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> tx = om.scale_by_second_moment(0.75)
        >>> w = {"w": jnp.array([[3.0, -4e20, 0.0]])}
        >>> tx.update(w, tx.init(w))[0]["w"].tolist()
        [[2.0, -2.0, 0.0]]

    References:
        ARO, Section 4.3 (two-fold Adam). Deviations: no epsilon by default, as nothing
        is divided by zero; the bound of the result.
    """

    def init_fn(params):
        if bias_correction or not _is_zero(relative_eps):  # One number per matrix.
            jax.tree.map(check_matrices, params)
        root = jax.tree.map(lambda p: jnp.zeros_like(widened(p)), params)
        weight = jax.tree.map(lambda x: jnp.zeros(x.shape[:-2], x.dtype), root)
        return ScaleBySecondMomentState(root, weight if bias_correction else None)

    def update_fn(updates, state, params=None, *, gradient=None, **extra_args):
        del params, extra_args
        source = updates if gradient is None else gradient
        root = kept(jax.tree.map(mixed, state.root, source), state.root)
        rest, weight = [root], None
        if state.weight is not None:
            grow = lambda w: (decay * w + (1 - decay)).astype(w.dtype)
            weight = jax.tree.map(grow, state.weight)
            rest.append(weight)
        if bounded and is_observed():
            report("bounded", jax.tree.map(share_beyond, updates, *rest))
        updates = jax.tree.map(divided, updates, *rest)
        return updates, ScaleBySecondMomentState(root, weight)

    def mixed(old, new):
        b = jnp.asarray(decay, old.dtype)
        return jnp.hypot(jnp.sqrt(b) * old, jnp.sqrt(1 - b) * new.astype(old.dtype))

    def divided(x, root, weight=None):
        ratio, bound = _quotient(x, root, weight, decay, eps, relative_eps)
        ratio = bounds.bounded(ratio, bound) if bounded else ratio
        return ratio.astype(x.dtype)

    def share_beyond(x, root, weight=None):
        within = bounds.is_within(*_quotient(x, root, weight, decay, eps, relative_eps))
        return jnp.mean(~within, axis=(-2, -1), dtype=jnp.float32)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def _quotient(x, root, weight, decay, eps, relative_eps):
    """The result without its bound, and the bound."""
    bound = jnp.sqrt(1 / (1 - jnp.asarray(decay, root.dtype)))
    floor = jnp.asarray(eps, root.dtype)
    if not _is_zero(relative_eps):
        largest = jnp.max(root, axis=(-2, -1), keepdims=True)
        floor = floor + jnp.asarray(relative_eps, root.dtype) * largest
    root = root + floor
    if weight is not None:
        weight = jnp.sqrt(weight)[..., None, None]
        root, bound = root / weight, bound * weight
    return safe_divide(widened(x), root), bound


def _is_zero(number):
    return isinstance(number, int | float) and number == 0
