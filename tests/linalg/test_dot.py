"""A kernel multiplies by the products of the policy in force, and by no others."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest

from optax_matrix import linalg
from optax_matrix.linalg import complement, permuted_blocks, rotations
from optax_matrix.linalg.precision import Products, using

KEY = jax.random.key(0)


def square(m):
    return jax.ShapeDtypeStruct((2, m, m), jnp.float32)


def columns(m, n):
    return jax.ShapeDtypeStruct((2, m, n), jnp.float32)


BLOCKS = {"in": square(3), "out": square(4)}
PERMS = {
    "in": jax.ShapeDtypeStruct((6,), jnp.int32),
    "out": jax.ShapeDtypeStruct((8,), jnp.int32),
}
KERNELS = {
    "cholesky_qr": (linalg.cholesky_qr, square(300)),
    "qr_householder": (linalg.qr_householder, square(1100)),
    "polar_svd": (linalg.polar_svd, square(300)),
    "polar_eigh": (linalg.polar_eigh, columns(8, 300)),
    "polar_qr": (linalg.polar_qr, columns(300, 310)),
    "polar_products": (linalg.polar_products, square(300)),
    "inverse_root-newton": (
        partial(linalg.inverse_root, p=4, method="newton"),
        square(8),
    ),
    "inverse_root-eigh": (partial(linalg.inverse_root, p=4), square(8)),
    "cayley_neumann": (linalg.cayley_neumann, square(8)),
    "cayley_taylor": (linalg.cayley_taylor, square(8)),
    "exponential": (linalg.exponential, square(8)),
    "skew_norm": (linalg.skew_norm, square(8)),
    "cross_gram": (linalg.cross_gram, square(8), square(8)),
    "power_step": (linalg.power_step, square(8), columns(8, 4)),
    "project_tangent": (rotations.project_tangent, square(8), square(8)),
    "overlap": (linalg.overlap, columns(8, 4), columns(8, 4)),
    "left_vectors": (partial(linalg.left_vectors, rank=4), columns(300, 400)),
    "range_finder": (partial(linalg.range_finder, size=4, key=KEY), columns(8, 6)),
    "randomized_left_vectors": (
        partial(linalg.randomized_left_vectors, rank=4, key=KEY),
        columns(8, 6),
    ),
    "subspace_iteration": (
        linalg.subspace_iteration,
        columns(8, 4),
        square(4),
        columns(8, 6),
    ),
    "complement_columns": (
        partial(complement.complement_columns, count=2, key=KEY),
        columns(8, 4),
    ),
    "complement_subspace": (
        partial(complement.complement_subspace, count=2, key=KEY),
        columns(8, 4),
    ),
    "materialize": (
        permuted_blocks.materialize,
        jax.ShapeDtypeStruct((8, 6), jnp.float32),
        BLOCKS,
        PERMS,
    ),
    "recover_frame": (
        permuted_blocks.recover_frame,
        jax.ShapeDtypeStruct((8, 6), jnp.float32),
        BLOCKS,
        PERMS,
    ),
}
# On a TPU eigenvectors of sides above 256 come from products that stay exact.
EXACT = {("polar_svd", "tpu"), ("polar_qr", "tpu"), ("left_vectors", "tpu")}


def rough(x, y):
    return jnp.matmul(x, y, precision=jax.lax.Precision.HIGH)


ROUGH = Products(rough, rough, rough, rough)


def products(name, platform, precision):
    """The lines of the lowered program that multiply matrices."""
    kernel, *args = KERNELS[name]
    with using(precision):
        lowered = jax.jit(kernel).trace(*args).lower(lowering_platforms=(platform,))
    return [x for x in lowered.as_text().splitlines() if "dot_general" in x]


@pytest.mark.daily("cuda", "tpu", "polar_eigh", "polar_qr")
@pytest.mark.quick("polar_eigh", "polar_qr-cpu")
@pytest.mark.parametrize("platform", ["cpu", "cuda", "tpu"])
@pytest.mark.parametrize("name", KERNELS)
def test_all_products_are_those_of_the_policy(name, platform):
    ours, exact = (products(name, platform, x) for x in (ROUGH, "exact"))
    # Not how often: JAX writes what it has traced once as one function.
    shapes = lambda lines: {line.rsplit(" : ", 1)[1] for line in lines}
    if platform == "tpu":  # Exact products of large matrices go tile by tile there.
        assert bool(ours) == bool(exact)
    else:
        assert shapes(ours) == shapes(exact)
    assert all("HIGHEST" in x for x in exact)
    if (name, platform) not in EXACT:
        assert not any("HIGHEST" in x for x in ours)
    if name not in {"qr_householder", "left_vectors"} or platform == "tpu":
        assert ours
