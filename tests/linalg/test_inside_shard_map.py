"""Kernels inside `jax.shard_map`, where JAX checks over which axes values vary.

All thresholds are lowered, so that products are in tiles, decompositions in loops, and
stacks one matrix at a time, for every platform.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _lowered import lowered
from _matrices import gaussian
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P

from optax_matrix import linalg
from optax_matrix._mesh import vary_like
from optax_matrix.linalg.complement import complement_columns, complement_subspace
from optax_matrix.linalg.permuted_blocks import materialize, recover_frame, rotate_sides
from optax_matrix.linalg.precision import products_of
from optax_matrix.linalg.rotations import procrustes_step
from optax_matrix.linalg.skew import to_skew

SHAPE = (2, 9, 6)  # On each device: tall, so that its columns can be orthonormal.
KEY = jax.random.key(0)


def square(f):
    """A kernel of the square matrices ``x'x``."""
    return lambda x: f(x.mT @ x)


def skew(f):
    return lambda x: f(x[..., :6, :] / 8 - x[..., :6, :].mT / 8)


def of_blocks(f):
    """A function of a matrix, of blocks of its rows and columns, and of an order."""

    def of(x):
        blocks = {
            side: linalg.cayley(to_skew(x[..., :3, :3] / 9, 3))
            for side in ("out", "in")
        }
        order = {side: jnp.argsort(x[..., 0, :], axis=-1) for side in ("in",)}
        order["out"] = jnp.argsort(x[..., 0], axis=-1)
        return f(x, blocks, order)

    return of


def iterated(x):
    start = vary_like(
        jnp.broadcast_to(np.eye(6, dtype=np.float32)[:, :2], (2, 6, 2)), x
    )
    number = vary_like(jnp.array([1, 2]), x)
    return linalg.subspace_iteration(start, None, x.mT, iterations=number, most=2)


# Each public kernel that has a derivative.
PUBLIC = {
    name: getattr(linalg, name)
    for name in (
        *("balanced_polar", "gram_newton_schulz", "newton_schulz", "polar_eigh"),
        *("polar_products", "polar_qr", "polar_svd", "cholesky_qr", "qr_householder"),
        *("cross_gram", "rank_one_scales", "scale_columns"),
        *("scale_rows", "scale_rows_and_columns", "sinkhorn", "standardize_rows"),
    )
}
PUBLIC |= {
    name: skew(getattr(linalg, name))
    for name in ("cayley", "cayley_neumann", "cayley_taylor", "exponential")
}
PUBLIC |= {
    "eigenbasis": square(linalg.eigenbasis),
    "inverse_root": square(partial(linalg.inverse_root, p=4, eps=1e-3)),
    "from_skew": skew(linalg.from_skew),
    "to_skew": lambda x: linalg.to_skew(x[..., 0], 4),
    "skew_norm": skew(linalg.skew_norm),
    "left_vectors": lambda x: linalg.left_vectors(x, 2),
    "randomized_left_vectors": lambda x: linalg.randomized_left_vectors(x, 2, KEY),
    "range_finder": lambda x: linalg.range_finder(x, 2, KEY),
    "subspace_iteration": iterated,
    "overlap": lambda x: linalg.overlap(x[..., :3], x[..., 3:]),
    "power_step": lambda x: linalg.power_step(x.mT @ x, x[..., :6, :2]),
}
WITHOUT = {
    *("Orthogonal", "Orthonormalize"),
    *("polar_express", "started_below"),
}
INSIDE = {
    "inverse_root-newton": square(
        partial(linalg.inverse_root, p=4, eps=1e-3, method="newton")
    ),
    "complement_columns": lambda x: complement_columns(x[..., :3], 2, KEY),
    "complement_subspace": lambda x: complement_subspace(x[..., :3], 2, KEY),
    "procrustes_step": square(procrustes_step),
    "rotate_sides": of_blocks(lambda x, g, _: rotate_sides(x, g)),
    "materialize": of_blocks(materialize),
    "recover_frame": of_blocks(recover_frame),
    **{
        f"dot-{name}": lambda x, dot=dot: dot(x.mT, x)
        for name, dot in products_of("default")._asdict().items()
        if callable(dot)
    },
}
KERNELS = PUBLIC | INSIDE


def total(values):
    """A number for each matrix, in which every entry has a weight of its own."""
    weights = lambda y: np.cos(1 + np.arange(y[0].size)).reshape(y[:1].shape)
    of = lambda y: jnp.sum(y * weights(y).astype(y.dtype), axis=range(1, y.ndim))
    return sum(map(of, jax.tree.leaves(values)))


def derivatives(f):
    """Of the totals of a function: along a direction, and with respect to x."""

    def of(x):
        _, along = jax.jvp(f, (x,), (jnp.roll(x, 1, axis=-1),))
        return total(along), jax.grad(lambda x: jnp.sum(total(f(x))))(x)

    return of


def on_devices(f, mesh):
    return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("a"), out_specs=P("a")))


def abstract(kind):
    mesh = AbstractMesh((2,), ("a",), axis_types=(kind,))
    sharding = NamedSharding(mesh, P("a"))
    return mesh, jax.ShapeDtypeStruct((4, *SHAPE[1:]), jnp.float32, sharding=sharding)


@pytest.mark.quick("dot-roots")
@pytest.mark.daily(
    *("dot", "rotate_sides", "cholesky_qr", "polar_products", "inverse_root"),
    *("sinkhorn", "cayley_taylor"),
)
@pytest.mark.parametrize("name", KERNELS)
def test_derivatives_can_be_traced(name):
    mesh, x = abstract(AxisType.Auto)
    with lowered():
        _, back = jax.eval_shape(on_devices(derivatives(KERNELS[name]), mesh), x)
    assert back.shape == x.shape


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("platform", ["tpu", "cuda"])
@pytest.mark.parametrize("name", KERNELS)
def test_derivatives_are_those_of_small_matrices(name, platform, cpus):
    mesh = jax.make_mesh((2,), ("a",), (AxisType.Auto,), devices=cpus[:2])
    f, x = derivatives(KERNELS[name]), jnp.asarray(gaussian(4, *SHAPE[1:], seed=1))
    want = jax.jit(f)(x[:2]), jax.jit(f)(x[2:])
    with lowered(platform=platform):
        got = on_devices(f, mesh)(jax.device_put(x, NamedSharding(mesh, P("a"))))
    for ours, *theirs in zip(got, *want, strict=True):
        theirs = np.concatenate(theirs)
        np.testing.assert_allclose(ours, theirs, atol=1e-7 * np.abs(theirs).max())


def test_every_kernel_is_here():
    kernels = {name for name in linalg.__all__ if callable(getattr(linalg, name))}
    assert kernels - WITHOUT == PUBLIC.keys()
