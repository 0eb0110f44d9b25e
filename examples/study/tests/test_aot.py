"""Steps compiled for a TPU pod: how the text is read, and what owners come to."""

import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from examples.study.benchmarks import _flops, _groups, _hlo, _models, _overlap, aot
from optax_matrix._paths import named_leaves

ROOT = Path(__file__).parents[3]

# What the TPU compiler prints, shortened. The all-gather of chain 0 is one that is
# overlapped with two fusions; the all-reduce is asynchronous by a pair.
PROGRAM = """\
HloModule jit_step, is_scheduled=true, num_partitions=16
%begin (p: bf16[256,64]) -> bf16[1024,64] {
  %all-gather.1 = bf16[1024,64]{1,0:T(8,128)(2,1)} all-gather(%p), channel_id=47, CHAIN
}
%overlap (p.1: bf16[256,64]) -> bf16[1024,64] {
  %all-gather.2 = bf16[1024,64]{1,0:S(1)} all-gather(%p.1), channel_id=47, CHAIN
}
ENTRY %main.0_spmd (p.2: bf16[256,64], x: f32[8,128]) -> f32[] {
  %x = f32[8,128]{1,0:T(8,128)} parameter(1)
  %all-to-all.5 = bf16[16,1,64]{2,1,0:T(8,128)(2,1)} all-to-all(%x), channel_id=1
  %all-to-all.6 = (f32[2,4]{1,0}, f32[2,4]{1,0}) all-to-all(%x, %x), channel_id=1
  %all-gather.3 = bf16[1024,64]{1,0} all-gather(%p.2), channel_id=47
  %fusion.9 = f32[8]{0} fusion(%all-to-all.5), kind=kLoop, calls=%overlap
  %all-reduce-start.1 = (f32[3]{0}, f32[3]{0}, u32[]{:S(2)}) all-reduce-start(%x)
  %all-reduce-done.1 = f32[3]{0} all-reduce-done(%all-reduce-start.1)
  %while.1 = (s32[], f32[8,128]{1,0}) while(%copy), condition=%begin, body=%overlap
  %reduce.1 = f32[8]{0:T(128)} reduce(%x, %zero), dimensions={1}, to_apply=%add
  ROOT %reduce.2 = f32[]{:T(128)} reduce(%reduce.1, %zero), dimensions={0}
}
""".replace("CHAIN", 'frontend_attributes={chain_id="0"}')


def test_each_collective_counts_once():
    counts = {kind: t.count for kind, t in _hlo.collectives(PROGRAM).items()}
    assert counts == {"all-gather": 2, "all-to-all": 2, "all-reduce": 1}


def test_bytes_are_those_of_the_results():
    sizes = {kind: t.bytes for kind, t in _hlo.collectives(PROGRAM).items()}
    gathered, exchanged = 2 * (1024 * 64 * 2), 16 * 64 * 2 + 2 * (2 * 4 * 4)
    assert sizes == {"all-gather": gathered, "all-to-all": exchanged, "all-reduce": 12}


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ("bf16[16,64]{1,0:T(8,128)(2,1)S(1)}", 2048),
        ("(f32[4], pred[3]{0}, u32[])", 16 + 3 + 4),
        ("f8e4m3fn[5,3]", 15),
        ("s4[3]{0:E(4)}", 2),
        ("f32[0,8]", 0),
    ],
)
def test_bytes_of_a_type(result, expected):
    assert _hlo.result_bytes(result) == expected


def test_a_program_without_collectives_has_none():
    assert _hlo.collectives("ENTRY %main { %add.1 = f32[8]{0} add(%a, %b) }") == {}


def test_reductions_count_what_they_read():
    assert _hlo.reduced_elements(PROGRAM) == 8 * 128 + 8


SCHEDULED = """\
%product (p: f32[8,8]) -> f32[8,8] {
  %y = f32[8,8]{1,0} convolution(%p, %p), metadata={op_name="transpose(jvp())/dot"}
}
%around (p.1: f32[8,8]) -> f32[8,8] {
  %u = f32[8,8]{1,0} fusion(%p.1), kind=kOutput, calls=%product
}
%sum (p.2: f32[8,8]) -> f32[8,8] {
  %z = f32[8,8]{1,0} add(%p.2, %p.2), backend_config={"estimated_cycles":"3"}
}
%less (p.3: f32[8,8]) -> pred[] {
  %five = s32[] constant(5)
}
ENTRY %main_spmd (x: f32[8,8]) -> f32[8,8] {
  %a2a-start = (f32[8,8], f32[8,8]) all-to-all-start(%x), channel_id=1
  %a2a-start.1 = (f32[8,8], f32[8,8]) all-to-all-start(%x), channel_id=1
  %fusion.1 = f32[8,8]{1,0} fusion(%x), calls=%sum, COST
  %a2a-done = f32[8,8]{1,0} all-to-all-done(%a2a-start)
  WORK
  %a2a-done.1 = f32[4,8]{1,0} all-to-all-done((f32[8,8], f32[8,8]) %a2a-start.1)
  %a2a = f32[8,8]{1,0} all-to-all(%x), channel_id=1
}
""".replace("COST", 'backend_config={"estimated_cycles":"40"}')
WORK = {
    "product": "convolution(%x, %y), metadata={op_name=transpose(jvp())}",
    "fusion": "fusion(%x), kind=kOutput, calls=%product",
    "nested fusion": "fusion(%x), kind=kOutput, calls=%around",
    "fusion named by its sum": 'fusion(%x), calls=%around, metadata={op_name="add"}',
    "loop": "while(%copy), condition=%less, body=%product",
    "branch": "conditional(%p, %x, %x), branch_computations={%sum, %product}",
    "fusion without": "fusion(%x), kind=kLoop, calls=%sum",
    "loop without": "while(%copy), condition=%less, body=%sum",
    "branch without": "conditional(%p, %x, %x), branch_computations={%sum, %sum}",
}


@pytest.mark.parametrize("name", WORK)
def test_collectives_in_flight_beside_products(name):
    """Loops, branches and fusions count by what they call, as deep as it may be."""
    text = SCHEDULED.replace("WORK", f"%work = f32[8,8]{{1,0}} {WORK[name]}")
    hidden = "without" not in name
    assert _overlap.overlapped(text) == (hidden, 3)
    assert _overlap.overlapped(text, during="transpose(jvp") == (hidden, 3)
    assert _overlap.overlapped(text, during="jvp(forward") == (0, 3)


def test_other_work_beside_a_collective_counts_in_cycles():
    work = f"%work = f32[8,8]{{1,0}} {WORK['loop without']}"
    found = _overlap.flights(SCHEDULED.replace("WORK", work))
    assert [x.cycles for x in found] == [40, 40 + 5 * 3, 0]
    assert [x.bytes for x in found] == [256, 128, 256]


def test_collectives_inside_fusions_are_overlapped():
    assert _overlap.overlapped(PROGRAM) == (1, 5)
    assert _overlap.overlapped(PROGRAM, "all-to-all") == (0, 2)


SIZES = {"slice": 2, "fsdp": 2, "tp": 2}


@pytest.mark.parametrize(
    ("written", "groups", "axes"),
    [
        ("replica_groups={{0,1},{2,3},{4,5},{6,7}}", "01 23 45 67", "tp"),
        ("replica_groups={{0,1,2,3},{4,5,6,7}}", "0123 4567", "fsdp tp"),
        ("replica_groups={}", "01234567", "slice fsdp tp"),
        ("replica_groups=[4,2]<=[8]", "01 23 45 67", "tp"),
        ("replica_groups=[4,2]<=[2,4]T(1,0)", "04 15 26 37", "slice"),
        ("replica_groups=[4,2]<=[2,2,2]T(0,2,1)", "02 13 46 57", "fsdp"),
        ("source_target_pairs={{0,0},{1,3},{3,1}}", "00 13 31", "fsdp"),
        ("source_target_pairs={{0,0},{7,7}}", "00 77", ""),
        ("replica_groups=mesh['x'=2,'y'=4] {'y'}", "0123 4567", "fsdp tp"),
        (
            "replica_groups=mesh['x'=4,'y'=2], device_ids=([8]) {'x'}",
            "0246 1357",
            "slice fsdp",
        ),
        (
            "replica_groups=mesh['x'=4,'y'=2], device_ids=([2,4]T(1,0)) {'y'}",
            "04 15 26 37",
            "slice",
        ),
        # A part of an axis: two halves of two pairs.
        ("replica_groups=mesh['x'=8] {'x':(2)2}", "02 13 46 57", "fsdp"),
        ("replica_groups=mesh['x'=8] {'x':(1)2,'x':(4)2}", "0145 2367", "slice tp"),
    ],
)
def test_groups_and_the_axes_along_which_they_send(written, groups, axes):
    line = f"%c.1 = f32[8]{{0}} all-reduce(%x), channel_id=1, {written}, more={{1}}"
    found = _groups.groups_of(line, 8)
    assert ["".join(map(str, g)) for g in found] == groups.split()
    assert _groups.axes_along(line, SIZES) == axes.split()


def test_groups_in_an_unknown_notation_are_refused():
    with pytest.raises(ValueError, match=r"`line` must have groups.*=what"):
        _groups.groups_of("%c.1 = f32[8]{0} all-reduce(%x), replica_groups=what", 8)


SLICES = """\
  %send = (f32[8,4]{1,0}, u32[], token[]) send(%x, %t), channel_id=2, MEGASCALE
  %recv = (f32[16,4]{1,0}, u32[], token[]) recv(%t), channel_id=1, MEGASCALE
  %send-done = token[] send-done(%send), channel_id=2, MEGASCALE
  %recv-done = (f32[16,4]{1,0}, token[]) recv-done(%recv), channel_id=1, MEGASCALE
  %all-gather-start.9 = (f32[8], f32[16]) all-gather-start(%y), replica_groups={{0,1}}
  %all-gather-done.9 = f32[16]{0} all-gather-done(%all-gather-start.9)
""".replace("MEGASCALE", 'handler_name="xla_megascale_runtime"')


def test_what_comes_from_other_slices_counts():
    found = _hlo.collectives(SLICES)
    assert found == {"recv": _hlo.Traffic(1, 256), "all-gather": _hlo.Traffic(1, 64)}
    assert _hlo.along(SLICES, {"fsdp": 2}) == {"fsdp": 1}


def _model(**options):
    return _models.Model(layers=6, embed=16, mlp=32, kv=8, **options)


@pytest.mark.parametrize(
    ("model", "axes", "expected"),
    [
        (
            _model(),
            {"fsdp": 2, "tp": 2},
            {
                "layers/5/attn/k": ((16, 8), ("fsdp", "tp")),
                "layers/0/attn/o": ((16, 16), ("tp", "fsdp")),
                "layers/0/mlp/down": ((32, 16), ("tp", "fsdp")),
            },
        ),
        (
            _model(experts=4, scanned=True),
            {"expert": 2, "fsdp": 2},
            {
                "layers/attn/q": ((6, 16, 16), (None, "fsdp", None)),
                "layers/mlp/up": ((6, 4, 16, 32), (None, "expert", "fsdp", None)),
                "layers/mlp/down": ((6, 4, 32, 16), (None, "expert", None, "fsdp")),
            },
        ),
        (
            _model(scanned=True, cut="fsdp"),
            {"slice": 2, "fsdp": 2, "tp": 2},
            {
                "layers/attn/v": ((6, 16, 8), ("fsdp", None, "tp")),
                "layers/mlp/gate": ((6, 16, 32), ("fsdp", None, "tp")),
            },
        ),
    ],
)
def test_kernels_of_models(model, axes, expected):
    mesh = jax.sharding.AbstractMesh(tuple(axes.values()), tuple(axes))
    found = named_leaves(model.params(mesh))
    assert sum(x.size for x in found.values()) == model.elements
    count = lambda x: x.size // (x.shape[-1] * x.shape[-2])
    assert sum(map(count, found.values())) == model.matrices
    for path, (shape, spec) in expected.items():
        leaf = found[f"{path}/kernel"]
        assert (leaf.shape, tuple(leaf.sharding.spec)) == (shape, spec)


def test_products_in_loops_count_as_often_as_they_run():
    x, y = jnp.ones((3, 4)), jnp.ones((4, 4))
    product = 2 * 3 * 4 * 4

    def program(x, y):
        x, _ = jax.lax.scan(lambda x, _: (x @ y, None), x, length=5)
        x = jax.lax.cond(x[0, 0] > 0, lambda x: x @ y @ y, lambda x: x @ y, x)
        same = jax.lax.platform_dependent(
            x, cpu=lambda x: x, tpu=lambda x: x @ y, default=lambda x: x @ y @ y
        )
        return same @ y[:, :1]  # A matrix times a vector.

    jaxpr = jax.make_jaxpr(program)(x, y)
    assert _flops.product_flops(jaxpr) == ((5 + 2 + 1) * product, False)
    until = lambda x: jax.lax.while_loop(lambda x: x[0, 0] < 9, lambda x: x @ y, x)
    assert _flops.product_flops(jax.make_jaxpr(until)(x)) == (product, True)
    assert _flops.contains(jaxpr, "scan")
    assert not _flops.contains(jaxpr, "while")


def test_loops_and_products_are_seen():
    assert _hlo.loops(PROGRAM) == 1
    assert not _hlo.has_products(PROGRAM)
    assert _hlo.has_products("%y = f32[8,8]{1,0} convolution(%a, %b), dim_labels=bf_io")


def test_without_the_compiler_one_line_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr(aot, "compiler_is_missing", lambda _: True)
    assert aot.main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "pip install '.[aot]'" in captured.err


def test_the_compiler_is_missing_without_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "libtpu", None)
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)
    assert aot.compiler_is_missing()
    monkeypatch.setenv("TPU_LIBRARY_PATH", "libtpu.so")
    assert not aot.compiler_is_missing()


@pytest.mark.parametrize("mesh", ["tp=4", "fsdp", "fsdp=x", "fsdp=0", "4,4"])
def test_a_mesh_that_is_none_gets_an_example(mesh, capsys):
    with pytest.raises(SystemExit) as caught:
        aot.parse(["--mesh", mesh])
    assert caught.value.code == 2
    assert "fsdp=4,tp=4" in capsys.readouterr().err


def test_owners_must_be_axes_of_the_mesh(capsys):
    with pytest.raises(SystemExit):
        aot.parse(["--mesh", "fsdp=16", "--owners", "tp"])
    assert "--owners must be axes of --mesh, got 'tp'" in capsys.readouterr().err


def test_layers_are_cut_along_an_axis_of_the_mesh(capsys):
    with pytest.raises(SystemExit):
        aot.parse(["--mesh", "fsdp=16", "--scan", "tp"])
    assert "--scan must be an axis of --mesh, got 'tp'" in capsys.readouterr().err


def test_models_by_name():
    assert tuple(_models.SIZES) == aot.MODELS
    sized = lambda *options: aot.chosen_model(aot.parse(["--model", "70B", *options]))
    # Llama 3 70B has 70.6B parameters, of which embedding and head are 2.1B.
    assert round(sized().elements / 1e9, 1) == 68.5
    small = sized("--layers", "2", "--kv", "64", "--experts", "4", "--scan")
    assert small == _models.Model(2, 8192, 28672, 64, 4, scanned=True)
    assert sized("--scan", "tp").cut == "tp"


needs_compiler = pytest.mark.skipif(
    aot.compiler_is_missing(),
    reason="needs the TPU compiler: pip install '.[aot]'",
)


def run(*arguments, command="aot"):
    # In a process of its own: the environment is read when jax is imported.
    environment = {k: v for k, v in os.environ.items() if k not in aot.ENVIRONMENT}
    program = [sys.executable, "-m", "examples.study", command, *arguments]
    return subprocess.run(
        program, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(
    ("mesh", "types"), [("fsdp=16", "explicit"), ("fsdp=4,tp=4", "auto")]
)
def test_owners_reach_the_optimum_on_sixteen_devices(mesh, types):
    """All work is shared out evenly, and each element travels once there and back."""
    layers, embed, mlp, devices = 16, 256, 512, 16
    arguments = ("--layers", layers, "--embed", embed, "--mlp", mlp, "--mesh", mesh)
    recipes = ("muon", "muoneq", "racs")
    done = run(
        *map(str, arguments),
        *("--axis-types", types, "--only-owners", "--recipes", *recipes),
    )
    assert done.returncode == 0, done.stderr
    # bfloat16 both ways: 4 P / N bytes; (q, k, v), o, (gate, up) and down are stacks.
    elements = layers * (4 * embed**2 + 3 * embed * mlp)
    mib = f"{4 * elements / devices / 2**20:.1f}"
    for recipe in recipes:
        row = re.search(rf"^{recipe} \(owners\) +(.*)$", done.stdout, re.MULTILINE)
        assert row is not None, done.stdout
        work, busiest, traffic, *_ = row[1].split()
        assert busiest == "1.00x", row[0]
        assert 0.95 <= float(work.removesuffix("x")) <= 1.05, row[0]
        assert traffic == mib, row[0]
        assert row[1].endswith(f"8 all-to-all ({mib})"), row[0]


SMALL = ("--layers", "4", "--embed", "256", "--mlp", "512")


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(
    ("owners", "work"), [("fsdp", ["2.00x", "2.00x"]), ("slice,fsdp", None)]
)
def test_slices_receive_only_what_owners_in_others_send(owners, work):
    where = ("--topology", "v5e:2x2", "--mesh", "slice=2,fsdp=4", "--owners", owners)
    done = run(*SMALL, *where, "--only-owners", "--recipes", "muon")
    assert done.returncode == 0, done.stderr
    row = re.search(r"^muon \(owners\) +(.*)$", done.stdout, re.MULTILINE)
    assert row is not None, done.stdout
    *found, _, along = row[1].split()[:4]
    assert work is None or found == work
    assert along == owners
    assert (" recv " in row[1]) == ("slice" in owners)


@pytest.mark.slow
@needs_compiler
def test_no_exchange_begins_before_the_norm_of_all_gradients_is_known():
    sizes = ("--layers", "2", "--embed", "256", "--mlp", "512", "--context", "256")
    done = run(*sizes, command="training")
    assert done.returncode == 0, done.stderr
    numbers = r"^([a-z ,]+[a-z]) +(\d+) +(\d+) +(\d+) +\d+$"
    found = {
        m[1]: [int(m[i]) for i in (2, 3, 4)]
        for m in re.finditer(numbers, done.stdout, re.M)
    }
    assert found.keys() == {
        "clipped",
        "clipped, async",
        "not clipped",
        "not clipped, async",
    }
    assert all(total == 8 for total, _, _ in found.values())
    assert found["clipped"][1] == found["clipped, async"][2] == 0
    assert found["not clipped, async"][2] > 0


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("--topology", "v5x:4x4"), "v5e:4x4"),
        (("--mesh", "fsdp=8"), "16 devices"),
        (("--recipes", "muonn"), "muonn"),
    ],
)
@pytest.mark.parametrize("module", ["aot", "training"])
def test_mistakes_get_one_line(arguments, hint, module):
    if module == "training":
        arguments = [x.replace("--recipes", "--optimizer") for x in arguments]
    small = ("--layers", "1", "--embed", "64", "--mlp", "128")
    done = run(*small, *arguments, command=module)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert hint in done.stderr
