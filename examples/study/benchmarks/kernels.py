"""Newton-Schulz and its two symmetric products, by XLA and by kernels of our own.

Each case is one call on a stack of bfloat16 matrices. Whoever has an accelerator can
time the two forms of it side by side and compare their results.
"""

import functools
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp

import optax_matrix as om
from optax_matrix.linalg import pallas

STEPS = 5
SHAPES = (
    *((48, 768, 768), (36, 768, 3072), (64, 1024, 1024)),
    *((48, 1024, 4096), (4, 4096, 4096)),
)
# Of these only the iteration.
STACKS = (
    *((12, 768, 768), (12, 768, 3072), (24, 768, 3072), (16, 1024, 1024)),
    *((16, 1024, 4096), (48, 512, 512), (48, 512, 2048)),
)
SMALL = ((2, 256, 256), (2, 300, 1000))
A, B, C = om.linalg.JORDAN[0]

Case = tuple[str, tuple[int, int, int], dict[str, Callable], float]


def cases(small: bool = False) -> Iterator[Case]:
    """Name, shape of the bfloat16 operand, the two forms, and FLOPs of the plain one.

    The operands of `quadratic` should be symmetric, such as ``x @ x.mT``.
    """
    for count, m, n in SMALL if small else (*SHAPES, *STACKS):
        square = 2 * count * m * m * m
        wide = 2 * count * m * m * n
        shape = (count, m, n)
        yield (
            f"newton_schulz {m} x {n}, {count} of them",
            shape,
            {name: _iteration(name) for name in ("xla", "pallas")},
            STEPS * (2.0 * wide + square),
        )
        if (count, m, n) in STACKS:
            continue
        forms = {"xla": _gram, "pallas": pallas.gram}
        yield f"gram {m} x {n}, {count} of them", shape, forms, float(wide)
        forms = {"xla": _quadratic, "pallas": _own_quadratic}
        name = f"quadratic {m} x {m}, {count} of them"
        yield name, (count, m, m), forms, float(square)


def _iteration(kernel: str) -> Callable:
    return functools.partial(
        om.linalg.newton_schulz,
        steps=STEPS,
        kernel=kernel,
        compute_dtype=jnp.bfloat16,
    )


def _gram(x: jax.Array) -> jax.Array:
    return _dot(x, x.mT).astype(x.dtype)


def _quadratic(gram: jax.Array) -> jax.Array:
    diagonal = A * jnp.eye(gram.shape[-1], dtype=jnp.float32)
    return (diagonal + B * gram + C * _dot(gram, gram)).astype(gram.dtype)


def _own_quadratic(gram: jax.Array) -> jax.Array:
    return pallas.quadratic(gram, jnp.array([A, B, C]))


def _dot(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.matmul(x, y, preferred_element_type=jnp.float32)
