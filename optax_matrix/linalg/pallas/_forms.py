"""Newton-Schulz by kernels, for each platform that has them."""

from collections.abc import Callable, Sequence
from functools import partial

import jax.numpy as jnp
from jaxtyping import Array

from optax_matrix.linalg import devices
from optax_matrix.linalg.coefficients import Quintic
from optax_matrix.linalg.pallas import _hopper, _tpu
from optax_matrix.linalg.pallas._iteration import by_products, newton_schulz

Form = Callable[[Array, Sequence[Quintic]], Array]


def forms(x: Array, dtype: jnp.dtype) -> dict[str, Form]:
    """Newton-Schulz on scaled wide matrices; those that this JAX has."""
    steps = {}
    if dtype in _hopper.DTYPES and _hopper.is_in_this_jax():
        options = {"processors": devices.processors(x, 132)}
        steps["cuda"] = by_products(
            partial(_hopper.gram, **options), partial(_hopper.quadratic, **options)
        )
    if dtype in _tpu.DTYPES and _tpu.is_in_this_jax():
        steps["tpu"] = _tpu.steps(devices.fast_memory(x))
    return {name: partial(newton_schulz, steps=form) for name, form in steps.items()}
