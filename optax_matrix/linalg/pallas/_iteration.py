"""Newton-Schulz with symmetric products of our own, differentiable and batched."""

from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jaxtyping import Array

from optax_matrix.linalg import devices
from optax_matrix.linalg.coefficients import Quintic
from optax_matrix.linalg.pallas import _hopper
from optax_matrix.linalg.products import dot, rounded
from optax_matrix.linalg.quintic_steps import quintic_steps

Form = Callable[[Array, Sequence[Quintic]], Array]
# All steps on scaled wide matrices with any number of leading axes, one for each row of
# coefficients.
Steps = Callable[[Array, Array], Array]


def on_hopper(x: Array, dtype: jnp.dtype) -> Form | None:
    """Newton-Schulz on scaled wide matrices; None if this JAX has no kernels."""
    if dtype not in _hopper.DTYPES or not _hopper.is_in_this_jax():
        return None
    options = {"processors": devices.processors(x, 132)}
    gram, quadratic = (partial(f, **options) for f in (_hopper.gram, _hopper.quadratic))
    return partial(newton_schulz, steps=by_products(gram, quadratic))


def newton_schulz(y: Array, rows: Sequence[Quintic], steps: Steps) -> Array:
    """Apply steps of our own; under differentiation XLA computes all of them."""

    @custom_vmap
    def stacked(y: Array) -> Array:
        return steps(y, jnp.asarray(rows, jnp.float32)) if y.size else y

    # A kernel takes any number of matrices, so mapped axes become leading axes.
    @stacked.def_vmap
    def _(_: int, batched: list[bool], y: Array) -> tuple[Array, bool]:
        return stacked(y), batched[0]

    run = jax.custom_jvp(stacked)
    by_xla = lambda y: quintic_steps(y, rows, dot)
    run.defjvp(lambda primals, tangents: jax.jvp(by_xla, primals, tangents))
    return run(y)


def by_products(
    gram: Callable[[Array], Array], quadratic: Callable[[Array, Array], Array]
) -> Steps:
    """Steps from the two symmetric products; XLA computes only the third product."""

    def step(y: Array, row: Array) -> tuple[Array, None]:
        return rounded(dot)(quadratic(gram(y), row), y), None

    return lambda y, rows: jax.lax.scan(step, y, rows, unroll=2)[0]
