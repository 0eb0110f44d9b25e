"""Memory of a step on one device: small matrices have the ratios of large ones."""

import subprocess
import sys

import jax
import pytest
from jax.sharding import AxisType

from examples.study.benchmarks import _compile, account, memory
from examples.study.benchmarks._models import Model

# Numbers per weight: parameters, gradients and state among them. AdamW has 4.
AT_ONCE = {"muon": 5.1, "muoneq": 5.15, "apollo_mini": 5.1, "sinkgd": 5.6, "racs": 4.6}
IN_ORDER = {"muon": 4.1, "muoneq": 4.1, "apollo_mini": 3.5, "sinkgd": 3.7, "racs": 4.1}
SIZES = {"layers": 3, "embed": 128, "mlp": 512}


@pytest.mark.broad
@pytest.mark.parametrize(
    "name",
    [n if n == "muon" else pytest.param(n, marks=pytest.mark.slow) for n in AT_ONCE],
)
def test_a_step_has_few_numbers_per_weight(name):
    one = jax.devices("cpu")[:1]
    mesh = jax.make_mesh((1,), ("fsdp",), (AxisType.Auto,), devices=one)
    tx = _compile.make_optimizer(name, options=account.RANK)
    found = memory.numbers_per_weight(tx, Model(**SIZES).params(mesh))
    assert found["total"] <= AT_ONCE[name]


@pytest.mark.slow
def test_fewer_where_one_stack_comes_after_the_other():
    sizes = [str(x) for name, n in SIZES.items() for x in (f"--{name}", n)]
    command = [sys.executable, "-m", "examples.study", "memory", "--in-order"]
    run = subprocess.run(
        [*command, *sizes, "--recipes", *IN_ORDER],
        capture_output=True,
        text=True,
        check=True,
    )
    rows = [line.split() for line in run.stdout.splitlines()[2:]]
    assert {row[0] for row in rows} == set(IN_ORDER)
    for name, *_, total in rows:
        assert float(total) <= IN_ORDER[name], name
