"""`monitor` on eight devices: with `owners`, and with the arrays' own sharding."""

import jax
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec as P

import optax_matrix as om
from tests._meshes import KINDS

MEASURES = (
    *("update_rms", "update_to_weight", "gradient_cosine", "update_cosine"),
    *("orthogonality_error", "outside_momentum"),
)
SPECS = {
    "up/kernel": P(None, "fsdp"),
    "down/kernel": P("fsdp", None),
    "layers/o/kernel": P("fsdp", None, None),
    "norm/scale": P(),
}
SHAPES = {
    "up/kernel": (12, 16),
    "down/kernel": (16, 12),
    "layers/o/kernel": (8, 12, 12),
    "norm/scale": (12,),
}


def tree(seed):
    random = np.random.default_rng(seed)
    return {n: random.standard_normal(s).astype(np.float32) for n, s in SHAPES.items()}


def measured(placement, put):
    tx = om.diagnostics.monitor(
        om.muoneq(1e-2, placement=placement),
        MEASURES,
        captures={"polar_input": (1,)},
    )
    params = put(tree(0))
    state, update = tx.init(params), jax.jit(tx.update)
    for seed in (1, 2, 3):
        updates, state = update(put(tree(seed)), state, params)
        params = optax.apply_updates(params, updates)
    return om.diagnostics.read_monitor(state)


@pytest.fixture(scope="module")
def expected():
    return measured(None, lambda x: x)


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["owners", "own sharding"])
@pytest.mark.parametrize("kind", KINDS)
def test_values_are_those_of_one_device(kind, placement, expected, cpus):
    types = (KINDS[kind],)
    mesh = jax.make_mesh((8,), ("fsdp",), axis_types=types, devices=cpus)
    shardings = {name: NamedSharding(mesh, spec) for name, spec in SPECS.items()}
    put = lambda params: jax.tree.map(jax.device_put, params, shardings)
    owners = om.owners("fsdp", param_specs=SPECS) if placement == "owners" else None
    with jax.set_mesh(mesh):
        got = measured(owners, put)
    assert set(got) == set(expected)
    for path, values in expected.items():
        assert set(got[path]) == set(values)
        for name, value in values.items():
            np.testing.assert_allclose(
                got[path][name], value, rtol=2e-4, atol=2e-5, err_msg=f"{path} {name}"
            )
