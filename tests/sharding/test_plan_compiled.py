"""What a plan says is sent, against the text of the compiled step."""

import jax
import pytest
from _owned import normal, on_mesh
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import optax_matrix as om
from examples.study.benchmarks._hlo import collectives

DENSE = {f"{i}/{n}/kernel": (32, 32) for i in range(3) for n in "qkvo"}
DENSE |= {f"{i}/up/kernel": (32, 96) for i in range(3)}
DENSE |= {f"{i}/down/kernel": (96, 32) for i in range(3)}
EXPERTS = {f"{i}/{n}/kernel": (32, 32) for i in range(3) for n in "qkvo"}
EXPERTS |= {"0/experts/up/kernel": (8, 32, 16), "1/experts/up/kernel": (8, 32, 16)}
LAYOUTS = {  # Mesh, spec of matrices, devices that split one, devices with the same.
    "FSDP": (DENSE, {"fsdp": 8}, P("fsdp"), 8, 1),
    "FSDP x TP": (DENSE, {"fsdp": 4, "tp": 2}, P("fsdp", "tp"), 8, 1),
    "DDP": (DENSE, {"data": 8}, P(), 1, 8),
    "experts": (EXPERTS, {"fsdp": 2, "expert": 4}, P("fsdp"), 2, 4),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_step_sends_what_the_plan_says(name, cpus):
    shapes, axes, spec, split, copies = LAYOUTS[name]
    kinds = (AxisType.Auto,) * len(axes)
    sizes = tuple(axes.values())
    mesh = jax.make_mesh(sizes, tuple(axes), axis_types=kinds, devices=cpus)
    specs = {p: P("expert", "fsdp") if "experts" in p else spec for p in shapes}
    shardings = {path: NamedSharding(mesh, s) for path, s in specs.items()}
    owners = om.owners(tuple(axes), param_specs=shardings)
    tx = om.muon(0.1, placement=owners, weight_decay=0.0)
    plan = om.sharding.plan(tx, normal(shapes, 0), shardings)
    params = on_mesh(normal(shapes, 0), specs, mesh)
    state = jax.jit(tx.init)(params)
    update = jax.jit(tx.update, out_shardings=(shardings, None))
    text = update.lower(params, state, params).compile().as_text()
    found = collectives(text)
    # The text counts what a device keeps for itself, too.
    sent = found["all-to-all"].bytes * (split - 1) / split if split > 1 else 0
    sent += found["all-gather"].bytes * (copies - 1) / copies if copies > 1 else 0
    assert sent == plan.sent
    assert set(found) <= {"all-to-all", "all-gather"}
