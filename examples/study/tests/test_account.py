"""What is counted in the text of a compiled step."""

import importlib.metadata
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from examples.study.benchmarks import (
    _chips,
    _compile,
    _count,
    _program,
    aot,
    memory,
)

H200, V5E = _chips.CHIPS["h200"], _chips.CHIPS["v5e"]

# What XLA prints for a GPU, shortened: a fusion that updates a slice in place, a loop
# with a product, a conditional, a library call for each of six matrices.
PROGRAM = """\
HloModule jit_step, is_scheduled=true
%put (p.0: f32[8,4,4], p.1: f32[1,4,4], i: s32[]) -> f32[8,4,4] {
  %p.0 = f32[8,4,4]{2,1,0} parameter(0)
  %p.1 = f32[1,4,4]{2,1,0} parameter(1)
  %i = s32[] parameter(2)
  ROOT %dus = f32[8,4,4]{2,1,0} dynamic-update-slice(%p.0, %p.1, %i, %i, %i)
}
%product (a: f32[2,4,8], b: f32[2,8,4]) -> f32[2,4,4] {
  %a = f32[2,4,8]{2,1,0} parameter(0)
  %b = f32[2,8,4]{2,1,0} parameter(1)
  ROOT %dot.1 = f32[2,4,4]{2,1,0} dot(%a, %b), lhs_batch_dims={0}, \
lhs_contracting_dims={2}, rhs_batch_dims={0}, rhs_contracting_dims={1}, ASKED
}
%body (t: (f32[2,4,8], f32[2,8,4])) -> (f32[2,4,8], f32[2,8,4]) {
  %t = (f32[2,4,8]{2,1,0}, f32[2,8,4]{2,1,0}) parameter(0)
  %l = f32[2,4,8]{2,1,0} get-tuple-element(%t), index=0
  %r = f32[2,8,4]{2,1,0} get-tuple-element(%t), index=1
  %gemm = f32[2,4,4]{2,1,0} fusion(%l, %r), kind=kCustom, calls=%product
  ROOT %u = (f32[2,4,8]{2,1,0}, f32[2,8,4]{2,1,0}) tuple(%l, %r)
}
%until (t.1: (f32[2,4,8], f32[2,8,4])) -> pred[] {
  %t.1 = (f32[2,4,8]{2,1,0}, f32[2,8,4]{2,1,0}) parameter(0)
  ROOT %c = pred[] constant(true)
}
%nothing (x.1: f32[100]) -> f32[100] {
  ROOT %x.1 = f32[100]{0} parameter(0)
}
%something (x.2: f32[100]) -> f32[100] {
  %x.2 = f32[100]{0} parameter(0)
  ROOT %neg = f32[100]{0} negate(%x.2)
}
ENTRY %main (x: f32[8,4,4], y: f32[1,4,4]) -> f32[100] {
  %x = f32[8,4,4]{2,1,0} parameter(0)
  %y = f32[1,4,4]{2,1,0} parameter(1)
  %n = s32[] constant(0)
  %z = f32[100]{0} parameter(2)
  %w = (f32[2,4,8]{2,1,0}, f32[2,8,4]{2,1,0}) parameter(3)
  %fusion.1 = f32[8,4,4]{2,1,0} fusion(%x, %y, %n), kind=kLoop, calls=%put
  %while = (f32[2,4,8], f32[2,8,4]) while(%w), condition=%until, body=%body, ROUNDS
  %s = f32[2,3,64,64]{3,2,1,0} parameter(4)
  %svd = (f32[2,3,64,64]{3,2,1,0}, f32[2,3,64]{2,1,0}) custom-call(%s), \
custom_call_target="cusolver_gesvdj_ffi"
  %all-to-all-start = ((f32[4]), f32[4]) all-to-all-start(%z), replica_groups={}
  %all-to-all-done = f32[4]{0} all-to-all-done(%all-to-all-start)
  ROOT %if = f32[100]{0} conditional(%p, %z, %z), true_computation=%something, \
false_computation=%nothing
}
"""
ROUNDS = 'backend_config={"known_trip_count":{"n":"3"}}'


def counts(asked="", rounds=ROUNDS, chip=H200, pick=min):
    text = PROGRAM.replace("ASKED", asked).replace("ROUNDS", rounds)
    return _count.counted(text, chip, pick)


def test_kernels_and_bytes():
    slices, gemm = 2 * 64 + 4, 4 * (2 * 4 * 8 * 2 + 2 * 4 * 4)
    svd = 4 * (2 * 6 * 64 * 64 + 6 * 64)
    low, high = counts(), counts(pick=max)
    assert low["kernels"] == 1 + 3 + 1
    assert low["bytes"] == slices + 3 * gemm + svd
    assert high["kernels"] - low["kernels"] == 1
    assert high["bytes"] - low["bytes"] == 800


OWN = """\
ENTRY %main (x: bf16[4,768,1024], row: f32[2]) -> bf16[4,768,768] {
  %x = bf16[4,768,1024]{2,1,0} parameter(0)
  ROOT %own = bf16[4,768,768]{2,1,0} custom-call(%x), \
custom_call_target="mosaic_gpu_v2", backend_config={module = "ML\\EF"}
}
"""


def test_the_symmetric_kernel_counts_its_lower_tiles():
    found = _count.counted(OWN, H200)
    assert found["flops bf16"] == 4 * 6 * (2 * 256**2 * 1024)
    assert found["bytes"] == 2 * 4 * 768 * (1024 + 768)


def test_rounds_that_the_text_does_not_tell_are_two_and_go_to_the_host():
    known, unknown = counts(), counts(rounds="")
    assert known["flops tf32"] == 3 * (2 * 2 * 4 * 4 * 8)
    assert unknown["flops tf32"] == 2 * (2 * 2 * 4 * 4 * 8)
    assert known["syncs"] == 1  # The conditional.
    assert unknown["syncs"] == 1 + 3


@pytest.mark.parametrize(
    ("asked", "chip", "name"),
    [
        ("", "h200", "tf32"),
        ("", "t4", "f32"),
        ("", "v5e", "bf16"),
        ("operand_precision={high,high}", "v5e", "bf16x3"),
        ("operand_precision={highest,highest}", "h100", "f32"),
        ("operand_precision={highest,highest}", "v6e", "bf16x6"),
        ("algorithm=dot_tf32_tf32_f32_x3", "h200", "tf32x3"),
        ("algorithm=dot_bf16_bf16_f32_x6", "h200", "bf16x6"),
        ("algorithm=dot_bf16_bf16_f32", "h200", "bf16"),
    ],
)
def test_precision_of_products(asked, chip, name):
    found = counts(asked, chip=_chips.CHIPS[chip])
    assert [key for key in found if key.startswith("flops")] == [f"flops {name}"]


def test_library_calls_and_collectives():
    found = counts()
    assert found["call gesvdj"] == 1
    assert found["single gesvdj"] == 6
    assert found["collectives"] == 1
    assert found["collective bytes"] == 16


def test_a_kernel_takes_the_time_of_its_products_or_of_its_bytes():
    quick = _chips.Chip({"tf32": 1e30}, 1.0, H200.default)
    slow = _chips.Chip({"tf32": 1.0}, 1e30, H200.default)
    assert counts(chip=quick)["seconds"] == counts()["bytes"]
    assert counts(chip=slow)["seconds"] == pytest.approx(counts()["flops tf32"])


PARTS = """\
%take (p: f32[4,8], q: f32[4,8], r: f32[2,8], s: f32[4,8]) -> (f32[1,8], f32[3,8]) {
  %p = f32[4,8]{1,0} parameter(0)
  %q = f32[4,8]{1,0} parameter(1)
  %r = f32[2,8]{1,0} parameter(2)
  %s = f32[4,8]{1,0} parameter(3)
  %twice = f32[4,8]{1,0} multiply(%p, %p)
  %row = f32[10,8]{1,0} concatenate(%twice, %q, %r), dimensions={0}
  %first = f32[1,8]{1,0} slice(%row), slice={[1:2], [0:8]}
  %second = f32[3,8]{1,0} slice(%row), slice={[3:6], [0:8]}
  %turned = f32[8,4]{1,0} transpose(%s), dimensions={1,0}
  %some = f32[8,1]{1,0} slice(%turned), slice={[0:8], [0:1]}
  %back = f32[1,8]{1,0} bitcast(%some)
  %sum = f32[1,8]{1,0} add(%first, %back)
  ROOT %t = (f32[1,8]{1,0}, f32[3,8]{1,0}) tuple(%sum, %second)
}
ENTRY %main (a: f32[4,8], b: f32[4,8], c: f32[2,8], d: f32[4,8]) -> f32[1,8] {
  %a = f32[4,8]{1,0} parameter(0)
  %b = f32[4,8]{1,0} parameter(1)
  %c = f32[2,8]{1,0} parameter(2)
  %d = f32[4,8]{1,0} parameter(3)
  ROOT %f = (f32[1,8]{1,0}, f32[3,8]{1,0}) fusion(%a, %b, %c, %d), kind=kLoop, \
calls=%take
}
"""


def test_slices_of_what_is_computed_entry_by_entry_count_as_slices():
    """Rows 1 and 3 of p, 0 and 1 of q, none of r; of s all, as it is turned first."""
    rows_read, rows_written = 2 + 2 + 0 + 4, 1 + 3
    found = _count.counted(PARTS, H200)
    assert found["bytes"] == (rows_read + rows_written) * 8 * 4


TPU = """\
%until (t: (s32[], f32[6,8,8])) -> pred[] {
  %n = s32[]{:T(128)} constant(5)
  %t = (s32[]{:T(128)}, f32[6,8,8]{2,1,0:T(8,128)S(1)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%t), index=0
  ROOT %lt = pred[]{:T(512)} compare(%i, %n), direction=LT
}
%body (t.1: (s32[], f32[6,8,8])) -> (s32[], f32[6,8,8]) {
  %t.1 = (s32[]{:T(128)}, f32[6,8,8]{2,1,0:T(8,128)S(1)}) parameter(0)
  %i.1 = s32[]{:T(128)} get-tuple-element(%t.1), index=0
  %x = f32[6,8,8]{2,1,0:T(8,128)S(1)} get-tuple-element(%t.1), index=1
  %y = f32[6,8,8]{2,1,0:T(8,128)} convolution(%x, %x), \
window={size=6 stride=5 lhs_dilate=6}, dim_labels=0bf_0oi->0bf
  ROOT %u = (s32[]{:T(128)}, f32[6,8,8]{2,1,0:T(8,128)S(1)}) tuple(%i.1, %x)
}
ENTRY %main (a: f32[6,8,8]) -> f32[6,8,8] {
  %a = f32[6,8,8]{2,1,0:T(8,128)} parameter(0)
  %in = (f32[6,8,8]{2,1,0:T(8,128)S(1)}, f32[6,8,8]{2,1,0:T(8,128)}, u32[]{:S(2)}) \
copy-start(%a)
  %b = f32[6,8,8]{2,1,0:T(8,128)S(1)} copy-done(%in)
  ROOT %w = (s32[]{:T(128)}, f32[6,8,8]{2,1,0:T(8,128)S(1)}) while(%b), \
condition=%until, body=%body
}
"""


def test_tpus_count_main_memory_and_batches_of_products():
    found = _count.counted(TPU, V5E)
    one = 6 * 8 * 8 * 4
    comparison = 1 + 4 + 4
    assert found["bytes"] == one + 4 + 5 * (one + comparison)
    assert found["flops bf16"] == 5 * 6 * (2 * 8**3)


def test_the_programs_of_this_jax_are_read():
    step = lambda x, y: jax.lax.scan(lambda x, _: (jnp.tanh(x @ y), None), x, length=3)
    x = jnp.ones((64, 64))
    text = jax.jit(step).lower(x, x).compile().as_text()
    program = _program.parse(text)
    assert program.entry in program.computations
    assert _count.counted(text, H200)["kernels"] > 0


def test_target_configurations_are_complete():
    for chip in aot.GPUS:
        text = _chips.target_config(chip)
        assert not re.search(r"\$\w|\{\{", text.replace("L2$", ""))
        assert text.count("{") == text.count("}")
    assert {*_chips.CHIPS} == {*aot.PLATFORMS}


def test_keywords_and_defaults_of_the_command_line():
    args = aot.parse(["--platform", "h200", "--set", "precision=fast", "rank=8"])
    assert args.set == {"precision": "fast", "rank": 8}
    assert (args.model, args.recipes, args.devices) == ("113M", ["all"], 1)
    assert aot.parse(["--platform", "t4", "--devices", "8"]).model == "268M"
    assert aot.parse([]).recipes == list(aot.RECIPES)


def test_without_the_cuda_compiler_one_line_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr(aot, "compiler_is_missing", lambda platform: platform == "h100")
    assert aot.main(["--platform", "h100"]) == 2
    assert "pip install '.[aot-cuda]'" in capsys.readouterr().err


@pytest.mark.parametrize("platform", aot.PLATFORMS)
def test_a_jax_that_does_not_know_the_chip_is_named(platform, monkeypatch, capsys):
    monkeypatch.setattr(aot, "compiler_is_missing", lambda _: False)
    monkeypatch.setattr(aot, "measure", lambda _: print("measured"))
    run = lambda: aot.main(["--platform", platform])
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "0.10.2")
    is_hopper = platform in aot.HOPPER
    assert run() == (2 if is_hopper else 0)
    said = capsys.readouterr()
    assert ("needs jax 0.11 or later (Python 3.12" in said.err) == is_hopper
    assert ("measured" in said.out) != is_hopper
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "0.11.0.dev1")
    assert run() == 0


needs_cuda_compiler = pytest.mark.skipif(
    aot.compiler_is_missing("h200") or aot.why_too_old("h200") is not None,
    reason="needs the CUDA compiler and jax 0.11: pip install '.[aot-cuda]'",
)


def table(*arguments):
    """The rows of the table by recipe, in a process of its own."""
    program = (sys.executable, "-m", "examples.study", "aot", *arguments)
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    width = 26  # Of the label.
    return {line[:width].strip(): line[width:] for line in lines[2:]}


@pytest.mark.slow
@needs_cuda_compiler
@pytest.mark.parametrize("name", _compile.all_recipe_names())
def test_a_step_on_h200_sends_one_predicate_and_takes_whole_batches(name):
    sizes = ("--layers", "2", "--embed", "320", "--mlp", "640")
    (row,) = table("--platform", "h200", *sizes, "--recipes", name).values()
    assert "does not compile" not in row
    assert "one by one" not in row
    syncs = row.split()[4].split("-")[-1]
    assert int(syncs) <= 1, row


# What a step takes, over the time of its products and of the bytes that it must move.
BOUNDS = {
    "h200": {"optax.adamw": 1.01, "muoneq": 1.5, "aro": 1.9, "dion": 1.85},
    "t4": {"optax.adamw": 1.01, "muoneq": 1.6, "aro": 2.0, "dion": 2.1},
}


@pytest.mark.slow
@needs_cuda_compiler
@pytest.mark.parametrize("chip", BOUNDS)
def test_time_of_steps_by_the_account(chip):
    rows = table("--platform", chip, "--recipes", *BOUNDS[chip])
    for name, bound in BOUNDS[chip].items():
        ratio = rows[name].split()[10]
        assert float(ratio.split("-")[-1]) <= bound, rows[name]


# Passes over the parameters of a step without a renewal.
PASSES = {"muoneq": 41, "soap": 80}
PASSES_OF_AUTO_LAYOUTS = {"muoneq": 40, "soap": 71}


@pytest.mark.slow
@needs_cuda_compiler
@pytest.mark.parametrize(
    ("options", "bounds"), [((), PASSES), (["--auto-layouts"], PASSES_OF_AUTO_LAYOUTS)]
)
def test_bytes_of_steps_by_the_account(options, bounds):
    rows = table("--platform", "h200", "--layers", "2", *options, "--recipes", *bounds)
    for name, bound in bounds.items():
        assert float(rows[name].split()[1].split("-")[0]) <= bound, rows[name]


@pytest.mark.slow
@needs_cuda_compiler
def test_memory_of_renewals_by_the_account():
    bounds = {"galore": 4.15, "alice": 4.35}  # Over the weights.
    rows = table("--platform", "h200", "--recipes", *bounds)
    for name, bound in bounds.items():
        assert float(rows[name].split()[3]) <= bound, rows[name]


@pytest.mark.slow
@needs_cuda_compiler
def test_eight_devices_exchange_the_least_that_owners_can():
    sizes = ("--layers", "8", "--embed", "256", "--mlp", "512")
    rows = table("--platform", "h200", "--devices", "8", *sizes, "--recipes", "muoneq")
    mib = 8 * (4 * 256**2 + 3 * 256 * 512) * 4 / 8 / 2**20  # bfloat16, both ways.
    found = re.search(r"(\d+) in (\d+)", rows["muoneq (owners)"])
    assert (int(found[1]), int(found[2])) == (round(mib), 8)


@pytest.mark.broad
def test_memory_of_adamw_is_four_numbers_a_weight(capsys):
    sizes = ("--layers", "1", "--embed", "64", "--mlp", "128")
    assert memory.main([*sizes, "--recipes", "optax.adamw", "muon"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    assert [row[0] for row in rows] == ["optax.adamw", "muon"]
    assert rows[0][-1] == "4.00"
    assert float(rows[1][1]) == 3.0
