"""Arrays that vary over the mesh axes over which others do, inside `jax.shard_map`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec as P

from optax_matrix._mesh import vary_like

START = {
    "float32": np.array([0.0, -0.0, np.nan, np.inf, 1e-45], np.float32),
    "bfloat16": jnp.array([-0.0, jnp.nan, 3.0], jnp.bfloat16),
    "int": np.array([-(2**31), 7], np.int32),
    "uint": np.array([2**32 - 1], np.uint32),
    "bool": np.array([True, False]),
    "key": jax.random.key(3),
}
LIKE = {
    "not finite": np.array([np.nan, np.inf, -np.inf, 1.0, 2.0, 3e38, 3e38, 0], "f4"),
    "int": np.arange(-4, 4, dtype=np.int32),
    "bool": np.arange(8) > 3,
    "key": jax.random.split(jax.random.key(0), 8),
    "float8": jnp.ones(8, jnp.float8_e4m3fn),
    "empty": np.ones((8, 0), np.float32),
}


def on_mesh(f, kind, cpus):
    mesh = jax.make_mesh((4, 2), ("a", "b"), axis_types=(kind,) * 2, devices=cpus)
    specs = {"in_specs": (P("a"), P()), "out_specs": P("a")}
    return jax.jit(jax.shard_map(f, mesh=mesh, **specs)), mesh


def numbers(x):
    is_key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(x) if is_key else x


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("like", LIKE)
def test_values_and_dtypes_stay(like, kind, cpus):
    def f(like, start):
        def body(_, carry):  # JAX refuses it unless what starts varies as `like` does.
            mark = jnp.sum(numbers(like).astype(jnp.float32)) > 0
            return jax.tree.map(lambda x: jnp.where(mark, x, x), carry)

        out = jax.lax.fori_loop(0, 1, body, vary_like(start, like))
        return jax.tree.map(lambda x: x[None], out)

    run, mesh = on_mesh(f, kind, cpus)
    with jax.set_mesh(mesh):
        x = LIKE[like]
        x = jax.device_put(x, jax.NamedSharding(mesh, P("a")))
        got = run(x, START)
    for name, want in START.items():
        assert got[name].dtype == want.dtype
        for row in np.asarray(numbers(got[name])):
            assert row.tobytes() == np.asarray(numbers(want)).tobytes(), name


@pytest.mark.skipif(
    jax.__version_info__ < (0, 10), reason="this JAX cannot transpose loops directly"
)
def test_a_product_started_from_zeros_is_linear(cpus):
    """And a cotangent that is not finite does not reach what is only a mark."""

    def product(x, y):
        step = lambda _, out: out + x * y
        return jax.lax.fori_loop(0, 3, step, vary_like(jnp.zeros_like(x), (x, y)))

    def f(x, y):
        (back,) = jax.linear_transpose(functools.partial(product, y=y), x)(x)
        _, pull = jax.vjp(lambda like: vary_like(y, like), x)
        (mark,) = pull(jnp.nan * x)
        return back, mark

    run, _ = on_mesh(f, AxisType.Auto, cpus)
    back, mark = run(jnp.arange(16.0), jnp.array([2.0, 3.0, 2.0, 3.0]))
    np.testing.assert_allclose(back, 3 * np.arange(16.0) * np.tile([2.0, 3.0], 8))
    np.testing.assert_array_equal(mark, 0)
