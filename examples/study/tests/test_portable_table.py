"""The table of what moves a state, against states that are really moved."""

import jax
import numpy as np
import pytest
from _tiers import tiered
from jax.sharding import AxisType, NamedSharding

import optax_matrix as om
from examples.study.memory_table import Size
from examples.study.portable_table import RECIPES, build, cost, placed, table
from optax_matrix.checkpoint import gathering

SMALL = Size(16, 24, 3, 8)
pytestmark = pytest.mark.broad


@pytest.fixture
def mesh(cpus, monkeypatch):
    monkeypatch.setattr("examples.study.memory_table.VOCABULARY", 40)
    return jax.make_mesh((8,), ("fsdp",), (AxisType.Auto,), devices=cpus)


@pytest.fixture
def sent(monkeypatch):
    """Bytes of every piece that devices gather."""
    seen, send = [], gathering._sent

    def noted(*args):
        seen.append((piece := send(*args)).nbytes)
        return piece

    monkeypatch.setattr(gathering, "_sent", noted)
    return seen


@pytest.mark.broad
@pytest.mark.parametrize("name", tiered(RECIPES))
def test_it_is_what_a_real_state_takes(name, mesh, sent):
    limit = 2000
    found = cost(name, SMALL, mesh, limit)
    params = placed(SMALL, mesh)
    at = jax.tree.map(lambda x: x.sharding, params)
    fill = lambda x: jax.device_put(np.ones(x.shape, x.dtype), x.sharding)
    params = jax.tree.map(fill, params)
    tx = build(name, SMALL, placement=om.owners("fsdp", param_specs=at))
    specs = om.state_specs(tx, params, at)
    places = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)
    state = jax.jit(tx.init, out_shardings=places)(params)

    portable = om.to_portable(state, params)
    origin = lambda key: {"method", "manifest", "sides"} & set(key.split("/"))
    kept = [x.nbytes for key, x in portable.items() if not origin(key)]
    assert found.portable == sum(kept)

    leaves = jax.tree.leaves(state)
    for x in leaves:
        if not x.sharding.is_fully_replicated:
            gathering.gathered(x, limit)
    assert (sum(sent), len(sent), max(sent)) == found[1:4]
    assert found.placed == sum(x.addressable_shards[0].data.nbytes for x in leaves)


def test_table_is_printed(mesh):
    lines = table(SMALL, mesh, ["muon"]).splitlines()
    assert len(lines) == 3
    assert lines[2].startswith("| `muon` | 0.00 | 0.00 | ")
