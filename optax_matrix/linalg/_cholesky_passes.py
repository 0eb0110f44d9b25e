"""The passes of Cholesky QR; each makes the columns more nearly orthonormal."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array

from optax_matrix._mesh import vary_like
from optax_matrix.linalg._fixed_passes import fixed_passes
from optax_matrix.linalg._pass_columns import is_near, random_columns, unit_columns
from optax_matrix.linalg._triangular import cholesky_quotient
from optax_matrix.linalg.products import Product, traced_once

# One or two passes usually suffice. The hardest matrices tried (exactly singular, with
# sides of 8 to 256) took ten factorizations, three of which were repeats.
_MAX_TRIES = 16
_SHIFT_GROWTH = 100.0
# In the third pass and later, a column whose squared pivot is below this still depends
# linearly on the others.
_DEPENDENT = 1e-4


class _State(NamedTuple):
    tries: Array
    y: Array
    gram: Array
    shift: Array
    count: Array
    done: Array


@partial(traced_once, static_argnames=("passes", "dot"))
def cholesky_passes(
    y: Array,
    replacement: Array,
    skip: Array,
    shift: ArrayLike,
    passes: int | None,
    dot: Product,
) -> tuple[Array, Array]:
    """Repeat the pass of Cholesky QR until the columns are orthonormal.

    Matrices ``y`` are scaled so that squares are in range; ``replacement`` has columns
    for those that are zero; matrices in ``skip`` stay as they are. Returns the columns,
    and which matrices have finished. On CUDA the number of passes is fixed: the host
    would have to wait for each pass, to decide on the next.
    """
    y = unit_columns(y, replacement)
    return jax.lax.platform_dependent(
        *(y, skip, jnp.asarray(shift, y.dtype)),
        cuda=partial(fixed_passes, passes=passes, dot=dot),
        default=partial(_adaptive_passes, passes=passes, dot=dot),
    )


def _adaptive_passes(
    y: Array, skip: Array, shift: Array, passes: int | None, dot: Product
) -> tuple[Array, Array]:
    """The passes of unit columns, until all matrices have finished."""
    adaptive = passes is None
    tries = _MAX_TRIES if passes is None else passes + _MAX_TRIES // 2
    eye = jnp.eye(y.shape[-1], dtype=y.dtype)[(None,) * (y.ndim - 2)]
    eps = jnp.asarray(jnp.finfo(y.dtype).eps, y.dtype)

    def unfinished(state: _State) -> Array:
        return (state.tries < tries) & ~jnp.all(state.done)

    def divided(state: _State) -> tuple[Array, Array, Array, Array]:
        gram = state.gram + state.shift[..., None, None] * eye
        l, q = cholesky_quotient(gram, state.y, dot)
        q = unit_columns(q)
        finite = jnp.all(jnp.isfinite(q), axis=(-2, -1))
        count = state.count + finite.astype(jnp.int32)
        if adaptive:
            # A column with a small pivot after two passes depends on those before it. A
            # random one takes its place, which the next passes make orthogonal to them.
            pivots = jnp.sum(l * eye, axis=-1) ** 2  # TPUs would gather the diagonal.
            dependent = (state.count[..., None] > 1) & (pivots < _DEPENDENT)
            replaced = (dependent & finite[..., None])[..., None, :]
            drawn = random_columns(q, state.tries)
            q = jnp.where(replaced, drawn, q)
        # A factor that is not finite means that the shift was too small for rounding:
        # the pass is repeated from the same columns with a larger one.
        changed = (finite & ~state.done)[..., None, None]
        larger = _SHIFT_GROWTH * jnp.maximum(state.shift, eps)
        return (
            *(jnp.where(changed, q, state.y), jnp.where(finite, eps, larger)),
            *(count, finite),
        )

    def as_it_is(state: _State) -> tuple[Array, Array, Array, Array]:
        return state.y, state.shift, state.count, jnp.zeros_like(state.done)

    def one_pass(state: _State) -> _State:
        # The first pass only computes the Gram matrix: one product in the program does
        # for all of them.
        begins = state.tries < 0
        y, shift, count, finite = jax.lax.cond(begins, as_it_is, divided, state)
        gram = dot(y.mT, y)
        last = is_near(gram - eye) if adaptive else count == passes
        done = state.done | (finite & last)
        return _State(state.tries + 1, y, gram, shift, count, done)

    start = _State(
        tries=jnp.full((), -1, jnp.int32),
        y=y,
        gram=jnp.zeros((*y.shape[:-2], y.shape[-1], y.shape[-1]), y.dtype),
        shift=jnp.full(skip.shape, shift, y.dtype),
        count=jnp.zeros(skip.shape, jnp.int32),
        done=skip,
    )
    end = jax.lax.while_loop(unfinished, one_pass, vary_like(start, (y, skip)))
    if not adaptive:
        return end.y, end.done
    # With columns of norm one, I plus the part of the Gram matrix above the diagonal is
    # the Cholesky factor of that matrix to first order.
    above = jnp.triu(end.gram, 1)
    return unit_columns(end.y - dot(end.y, above)), end.done
