"""Initialisations, seen through the layout: rows are output neurons."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import optax_matrix as om

KEY = jax.random.key(7)
SHAPES = {
    "layers/mlp/up/kernel": (3, 24, 40),  # Scanned layers, (in, out).
    "attn/query/kernel": (24, 4, 6),  # (in, heads, dim): 24 output neurons.
    "attn/out/kernel": (4, 6, 24),  # (heads, dim, out).
    "down/kernel": (40, 24),
    "norm/scale": (24,),
    "embed/embedding": (8, 24),
}


def _tree(dtype=jnp.float32):
    return {path: jnp.full(shape, 3.0, dtype) for path, shape in SHAPES.items()}


@pytest.fixture(scope="module")
def normalized():
    return om.initialize_matrices(_tree(), KEY)


def _neurons(tree):
    """Every matrix leaf as (count, out, in), turned by hand."""
    square = lambda path: np.asarray(tree[path]).reshape(24, 24).T[None]
    return {
        "layers/mlp/up/kernel": np.swapaxes(tree["layers/mlp/up/kernel"], 1, 2),
        "attn/query/kernel": square("attn/query/kernel"),
        "attn/out/kernel": square("attn/out/kernel"),
        "down/kernel": np.asarray(tree["down/kernel"]).T[None],
    }


@pytest.mark.broad
def test_every_output_neuron_has_norm_one_and_the_rest_stays(normalized):
    for path, w in _neurons(normalized).items():
        norms = np.linalg.norm(w, axis=-1)
        # A row of 40 squares in float32: rounding of the sum and the division.
        np.testing.assert_allclose(norms, 1, rtol=1e-6, err_msg=path)
    for path in ("norm/scale", "embed/embedding"):
        np.testing.assert_array_equal(normalized[path], _tree()[path])


def test_uniform_spectrum_has_singular_values_of_one():
    tree = {path: _tree()[path] for path in ("layers/mlp/up/kernel", "down/kernel")}
    for w in om.initialize_matrices(tree, KEY, "uniform_spectrum").values():
        values = np.linalg.svd(w, compute_uv=False)
        np.testing.assert_allclose(values, 1, atol=3e-6)


@pytest.mark.parametrize(("rows", "cols"), [(64, 256), (400, 100)])
def test_spectrum_of_normalized_rows_keeps_the_bounds_of_appendix_c(rows, cols):
    new = om.initialize_matrices({"kernel": jnp.zeros((cols, rows))}, KEY)
    values = np.linalg.svd(new["kernel"], compute_uv=False)
    # Equation 20 takes the limit; the edge fluctuates by about n^(-2/3), and the
    # norms of Gaussian rows that Equation 19 divides by differ by sqrt(2 log m / n).
    slack = 0.15
    largest, smallest = 1 + (rows / cols) ** 0.5, abs(1 - (rows / cols) ** 0.5)
    assert largest - slack < values[0] < largest + slack
    assert smallest - slack < values[-1] < smallest + slack


@pytest.mark.parametrize(
    ("kind", "std"), [("standard", 0.02), ("xavier", (2 / 128) ** 0.5)]
)
def test_gaussians_have_their_deviation(kind, std):
    w = om.initialize_matrices({"k": jnp.zeros((32, 96))}, KEY, kind)["k"]
    # 3072 entries: a deviation of std / sqrt(2 * 3072), four of which are 5%.
    assert float(w.std()) == pytest.approx(std, rel=0.05)
    assert abs(float(w.mean())) < 4 * std / 3072**0.5


def test_initializers_of_jax_have_their_deviation():
    """Theirs count axis -2 as inputs."""
    lecun = jax.nn.initializers.lecun_normal()
    w = om.initialize_matrices({"k": jnp.zeros((256, 16))}, KEY, lecun)["k"]
    np.testing.assert_allclose(np.std(w), 256**-0.5, rtol=0.1)


def test_a_matrix_depends_neither_on_others_nor_on_the_rule_for_them(normalized):
    paths = ("down/kernel", "layers/mlp/up/kernel", "embed/embedding")
    fewer = {path: _tree()[path] for path in paths}
    rule = om.matrices.by_path(include="embed", exclude="layers")
    new = om.initialize_matrices(fewer, KEY, dimension_numbers=rule)
    np.testing.assert_array_equal(new["down/kernel"], normalized["down/kernel"])
    np.testing.assert_array_equal(new["layers/mlp/up/kernel"], 3.0)
    assert float(jnp.ptp(new["embed/embedding"])) > 0
    layers = np.asarray(normalized["layers/mlp/up/kernel"])
    assert not np.array_equal(layers[0], layers[1])


def test_any_initializer_any_dtype_and_an_nnx_state():
    model = nnx.Linear(6, 4, param_dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    graph, params = nnx.split(model, nnx.Param)
    constant = jax.nn.initializers.constant(2.0)
    new = nnx.merge(graph, om.initialize_matrices(params, KEY, constant))
    assert new.kernel.dtype == jnp.bfloat16
    np.testing.assert_array_equal(new.kernel[...], 2.0)
    np.testing.assert_array_equal(new.bias[...], model.bias[...])
    with pytest.raises(ValueError, match="`initializer` must be one of 'standard'"):
        om.initialize_matrices(params, KEY, "normalised")


@pytest.mark.broad
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_sharded_leaves_get_the_same_numbers_where_they_lie(kind, cpus, normalized):
    mesh = jax.make_mesh((4, 2), ("fsdp", "tp"), axis_types=(kind,) * 2, devices=cpus)
    specs = {"layers/mlp/up/kernel": P(None, "fsdp", "tp"), "down/kernel": P("tp")}
    shardings = {path: NamedSharding(mesh, spec) for path, spec in specs.items()}
    tree = jax.device_put({path: _tree()[path] for path in specs}, shardings)
    new = om.initialize_matrices(tree, KEY)
    for path, x in new.items():
        np.testing.assert_allclose(x, normalized[path], rtol=1e-6)
        assert x.sharding.is_equivalent_to(shardings[path], x.ndim)
    down = {"down/kernel": tree["down/kernel"]}
    inside = jax.jit(om.initialize_matrices)(down, KEY)["down/kernel"]
    np.testing.assert_allclose(inside, normalized["down/kernel"], rtol=1e-6)


def test_map_matrices_refuses_another_shape():
    turn = lambda w, _: w.mT
    with pytest.raises(ValueError, match=r"`f` must return matrices of the shape"):
        om.stacks.map_matrices(turn, {"kernel": jnp.ones((3, 5))})


def test_raw_keys_of_numpy_are_keys():
    key = np.asarray(jax.random.PRNGKey(7))
    params = {"kernel": jnp.ones((2, 3))}
    got = om.initialize_matrices(params, key)
    assert (got["kernel"] == om.initialize_matrices(params, KEY)["kernel"]).all()
