"""What `monitor` measures: formulas, and which block reports what they need."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from optax_matrix._surroundings.observation import Measure
from optax_matrix.diagnostics._norms import orthogonality_error
from optax_matrix.linalg.lapack import svd
from optax_matrix.linalg.products import full_dot
from optax_matrix.linalg.scale import matrix_norm, safe_divide, widened


def _scaled(x, axes):
    """An array divided by its largest entry, whose squares do not vanish; the entry."""
    x = widened(x)
    peak = jnp.max(jnp.abs(x), axis=axes, keepdims=True, initial=0)
    return safe_divide(x, peak), jnp.squeeze(peak, axes)


def _square(x):
    return jnp.real(x * jnp.conj(x))


def _norm(x, axes):
    """Norms in one pass; in two if a sum of squares overflows or underflows."""
    x = widened(x)
    plain = jnp.sum(_square(x), axes)
    limits = jnp.finfo(x.dtype)
    is_exact = (plain > limits.tiny / limits.eps**2) & (plain < limits.max)

    def careful(x, _):
        unit, peak = _scaled(x, axes)
        return peak * jnp.sqrt(jnp.sum(_square(unit), axes))

    of_plain = lambda _, plain: jnp.sqrt(plain)
    return jax.lax.cond(jnp.all(is_exact), of_plain, careful, x, plain)


def _cosine(x, y, axes):
    x, y = _scaled(x, axes)[0], _scaled(y, axes)[0]
    norms = jnp.sqrt(jnp.sum(_square(x), axes) * jnp.sum(_square(y), axes))
    return safe_divide(jnp.sum(jnp.real(x * jnp.conj(y)), axes), norms)


def _rms(axes, u, **_):
    count = math.prod(u.shape[a] for a in axes)
    return _norm(u, axes) / max(count, 1) ** 0.5


def _orthogonality_error(d):
    """Of the direction, divided by the mean norm of the vectors of its shorter side."""
    size = matrix_norm(d) / min(d.shape[-2:]) ** 0.5
    return orthogonality_error(safe_divide(widened(d), size))


def _outside(d, m):
    """Share of the direction outside of the columns and rows of the momentum."""
    d, m = (widened(x) for x in (d, m))
    d = safe_divide(d, jnp.max(jnp.abs(d), axis=(-2, -1), keepdims=True))
    u, s, vt = svd(m)
    noise = jnp.finfo(s.dtype).eps * max(m.shape[-2:]) * s[..., :1]
    live = (s > noise).astype(d.dtype)
    u, vt = u * live[..., None, :], vt * live[..., :, None]
    inside = full_dot(u, full_dot(full_dot(full_dot(u.mT, d), vt.mT), vt))
    square = lambda x: jnp.sum(x * x, axis=(-2, -1))
    return safe_divide(square(d - inside), square(d))


def itself(x):
    return x


OF_UPDATES: dict[str, Callable[..., jax.Array]] = {
    "update_rms": _rms,
    "update_to_weight": lambda axes, u, w, **_: safe_divide(
        _norm(u, axes), _norm(w, axes)
    ),
    "gradient_cosine": lambda axes, u, g, **_: -_cosine(u, g, axes),
    "update_cosine": lambda axes, u, last, **_: _cosine(u, last, axes),
}
OF_STACKS = {
    "orthogonality_error": Measure(_orthogonality_error, ("direction",)),
    "outside_momentum": Measure(_outside, ("direction", "momentum")),
    "limited": Measure(itself, ("limited",)),
    "bounded": Measure(itself, ("bounded",)),
}
# Which block reports a value.
BLOCKS = {
    "direction": "on_matrices",
    "momentum": "momentum",
    "polar_input": "orthogonalize",
    "limited": "limit_norm_growth",
    "bounded": "scale_by_second_moment",
}
