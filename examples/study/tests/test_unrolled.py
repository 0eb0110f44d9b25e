"""Memory of steps whose layers are a Python loop, and the compiler's cycles."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

from examples.study.benchmarks import _cycles, aot, unrolled

ROOT = pathlib.Path(__file__).parents[3]
PROGRAM = """\
%body (p: s32[]) -> s32[] {
  %w = f32[8] fusion(%p), calls=%f, backend_config={"estimated_cycles":"10"}
}

%condition (p: s32[]) -> pred[] {
  %one = s32[] constant(1)
  %seven = s32[] constant(7)
  %less = pred[] compare(%p, %seven), direction=LT
}

%cheap (p: s32[]) -> s32[] {
  %c = f32[8] copy(%p), backend_config={"estimated_cycles":"2"}
}

ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8] parameter(0)
  %a = f32[8] fusion(%x), calls=%f, backend_config={"estimated_cycles":"100"}
  %w = s32[] while(%a), condition=%condition, body=%body
  %b = s32[] conditional(%p, %x, %x), branch_computations={%cheap, %body}
  %c = s32[] call(%x), to_apply=%cheap
}
"""


def test_loops_count_as_often_as_they_run_and_the_dearest_branch():
    assert _cycles.cycles(PROGRAM) == 100 + 7 * 10 + 10 + 2


def test_a_platform_has_eight_chips():
    args = unrolled.parse(["--platform", "h100", "--mesh", "fsdp=4"])
    with pytest.raises(ValueError, match="--mesh must have 8 devices"):
        unrolled._mesh(args)


@pytest.mark.slow
@pytest.mark.skipif(
    aot.compiler_is_missing(),
    reason="needs the TPU compiler: pip install '.[aot]'",
)
def test_the_activations_of_tied_layers_do_not_wait():
    environment = {k: v for k, v in os.environ.items() if k not in aot.ENVIRONMENT}
    program = [sys.executable, "-m", "examples.study", "unrolled"]
    keep = {"cwd": ROOT, "env": environment, "capture_output": True, "text": True}
    done = subprocess.run(program, **keep, check=False)
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^([a-z, ]+[a-z]) +([\d.]+) ", done.stdout, re.MULTILINE)
    found = {label: float(number) for label, number in rows}
    assert len(found) == 5, done.stdout
    assert found["tied"] <= 1.25 * found["adamw"] < found["untied"]
    assert found["tied, async"] <= 1.1 * found["adamw"] < found["untied, async"]
