"""Matrix products at several precisions, and one that exploits symmetry."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array

from optax_matrix._mesh import vary_like
from optax_matrix._platforms import by_platform, can_loop
from optax_matrix._thresholds import Thresholds
from optax_matrix.linalg.devices import has_narrow_products

Product = Callable[[Array, Array], Array]

_HIGHEST = jax.lax.Precision.HIGHEST


# Not jnp.promote_types: `jax_numpy_dtype_promotion` may forbid it.
_wide = lambda x: np.promote_types(x.dtype, np.float32)


def dot(x: Array, y: Array) -> Array:
    """Multiply; accumulate and return at least float32."""
    return jnp.matmul(x, y, preferred_element_type=_wide(x))


def rounded(product: Product) -> Product:
    """A product whose result has the dtype of its factors; it accumulates in float32.

    On CUDA the libraries' products round it themselves. Otherwise they would write it
    in float32 and another kernel would round it, which took a tenth of a step of MuonEq
    on an H200.
    """

    def of(x: Array, y: Array) -> Array:
        wide = lambda x, y: product(x, y).astype(x.dtype)
        itself = lambda x, y: jnp.matmul(x, y, preferred_element_type=x.dtype)
        return by_platform(wide, x, y, cuda=itself)

    return of


def precise_dot(x: Array, y: Array) -> Array:
    """Multiply; float32 operands are not rounded to a single bfloat16 pass."""
    return jnp.matmul(
        x, y, precision=jax.lax.Precision.HIGH, preferred_element_type=_wide(x)
    )


# The branches for all platforms take long to trace. JAX keeps them by the shapes of the
# arrays, by `dot` and by other constants.
traced_once = functools.partial(jax.jit, static_argnames=("dot",), inline=True)


@functools.partial(jax.jit, inline=True)
def full_dot(x: ArrayLike, y: ArrayLike) -> Array:
    """Multiply in the full precision of the operands, on every platform.

    On a TPU large matrices are multiplied in tiles, which takes a tenth of the time to
    compile.
    """
    return _at_precisions(jnp.asarray(x), jnp.asarray(y), None, _HIGHEST)


def along(f: Callable[[Any], Any], x: Any, dx: Any) -> Any:
    """The value of a linear function at dx, for rules of derivatives.

    JAX 0.8 and 0.9 can transpose a loop, such as that of `in_tiles`, only if they have
    derived it themselves. There this is the derivative at x, which has the type of dx.
    """
    is_able = jax.__version_info__ >= (0, 10)
    return f(dx) if is_able else jax.jvp(f, (x,), (dx,))[1]


def lowered_dot(cuda: jax.lax.DotAlgorithmPreset, tpu: jax.lax.Precision) -> Product:
    """A product of float32 matrices at a precision of each kind of accelerator.

    It is `full_dot` for other dtypes, on other platforms, and on CUDA devices that lack
    narrow products.
    """

    def product(x: Array, y: Array) -> Array:
        x, y = jnp.asarray(x), jnp.asarray(y)
        if not x.dtype == y.dtype == jnp.float32:
            return full_dot(x, y)
        return _at_precisions(x, y, cuda if has_narrow_products(x) else None, tpu)

    def derivative(primals: Any, tangents: Any) -> tuple[Array, Array]:
        (x, y), (dx, dy) = primals, tangents
        is_zero = lambda t: isinstance(t, jax.custom_derivatives.SymbolicZero)
        terms = [along(lambda x: product(x, y), x, dx)] if not is_zero(dx) else []
        terms += [along(lambda y: product(x, y), y, dy)] if not is_zero(dy) else []
        return product(x, y), functools.reduce(jnp.add, terms)

    # JAX would add up the cotangents of a branch in another order than those of a
    # product, so that gradients on a CPU would differ in their last bits.
    dot = jax.custom_jvp(product)
    dot.defjvp(derivative, symbolic_zeros=True)
    return jax.jit(dot, inline=True)


def _at_precisions(
    x: Array,
    y: Array,
    cuda: jax.lax.DotAlgorithmPreset | None,
    tpu: jax.lax.Precision,
) -> Array:
    at = lambda precision: functools.partial(jnp.matmul, precision=precision)
    pairs = min(x.ndim, y.ndim) >= 2 and x.shape[:-2] == y.shape[:-2]
    large = pairs and max(*x.shape[-2:], y.shape[-1]) >= Thresholds.tiled_side
    on_tpu = None if tpu is _HIGHEST else at(tpu)
    if large and can_loop(x, y):
        on_tpu = functools.partial(in_tiles, at(tpu))
    on_cuda = None if cuda is None else at(cuda)
    return by_platform(at(_HIGHEST), x, y, cuda=on_cuda, tpu=on_tpu)


def times(x: Array, v: Array) -> Array:
    """Multiply matrices by vectors ``(..., n)``, in full precision."""
    return jnp.einsum("...mn,...n->...m", x, v, precision=_HIGHEST)


def blocked_symmetric_dot(x: Array, y: Array) -> Array:
    """Multiply two matrices whose product is symmetric, with a quarter less work.

    Three of the four block products are computed; the fourth is the transpose of one
    of them.
    """
    h = x.shape[-2] // 2
    left, right = y[..., :h], y[..., h:]
    below = precise_dot(x[..., h:, :], left)
    top = [precise_dot(x[..., :h, :], left), below.mT]
    bottom = [below, precise_dot(x[..., h:, :], right)]
    rows = [jnp.concatenate(row, axis=-1) for row in (top, bottom)]
    return jnp.concatenate(rows, axis=-2)


# The form of a large product for TPU, where the compiler would unroll it: a loop over
# tiles takes a tenth of the time to compile.


def in_tiles(product: Product, x: Array, y: Array) -> Array:
    """Multiply one pair of matrices after another, in tiles."""
    batch, (m, k), n = x.shape[:-2], x.shape[-2:], y.shape[-1]
    count = math.prod(batch)
    x, y = x.reshape(count, m, k), y.reshape(count, k, n)
    tile = Thresholds.tile_side
    widest = Thresholds.tile_multiplications // (tile * max(k, 1)) // 128 * 128
    rows, cols = min(m, tile), min(n, max(tile, widest))
    down, across = -(-m // rows), -(-n // cols)

    def one(i: Array, out: Array) -> Array:
        matrix, tile = i // (down * across), i % (down * across)
        # The last tiles overlap those before them: slices stay inside the arrays.
        row = jnp.minimum(tile // across * rows, m - rows)
        col = jnp.minimum(tile % across * cols, n - cols)
        left = jax.lax.dynamic_slice(x, (matrix, row, 0), (1, rows, k))
        right = jax.lax.dynamic_slice(y, (matrix, 0, col), (1, k, cols))
        return jax.lax.dynamic_update_slice(
            out, product(left, right), (matrix, row, col)
        )

    out = jnp.zeros((count, m, n), jax.eval_shape(product, x, y).dtype)
    out = jax.lax.fori_loop(0, count * down * across, one, vary_like(out, (x, y)))
    return out.reshape(*batch, m, n)
