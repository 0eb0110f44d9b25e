"""The sharded trainer on eight devices of one process: FSDP x TP, whole matrices."""

import dataclasses
import json
import math
import re
import resource
import shutil
import signal

import jax
import numpy as np
import pytest
from jax.sharding import AxisType

from examples import train_sharded as example

MODEL = dataclasses.replace(
    example.SIZES["tiny"], embed=32, mlp=64, heads=4, kv_heads=2, context=16
)
AXES = {"fsdp": 4, "tp": 2}
STEPS = 4
BATCH = 16


@pytest.fixture(scope="module")
def books():
    return example.open_books(MODEL.context)[0]


def test_each_device_gets_its_rows_of_the_batch(books):
    windows = example.load(books, 3, BATCH, example.make_mesh(AXES))
    want = np.stack([books[i] for i in range(3 * BATCH, 4 * BATCH)])
    np.testing.assert_array_equal(windows, want)
    first, second, *_ = (shard.data for shard in windows.addressable_shards)
    np.testing.assert_array_equal(first, want[: BATCH // 4])
    np.testing.assert_array_equal(first, second)  # `tp` does not cut the batch.


@pytest.mark.parametrize("mesh", ["fsdp", "fsdp=x", "fsdp=3"])
def test_a_mesh_that_cannot_be_is_refused(mesh):
    with pytest.raises(SystemExit):
        example.main(["--mesh", mesh])


def train(mesh, books, optimizer):
    """The state, the losses, and how often the step was compiled."""
    program = example.prepare(MODEL, mesh, optimizer, 5e-3, STEPS)
    state, losses = program.init(), []
    for leaf, x in zip(*map(jax.tree.leaves, (program.state, state)), strict=True):
        assert (leaf.shape, leaf.dtype) == (x.shape, x.dtype)
        assert leaf.sharding.is_equivalent_to(x.sharding, x.ndim)
    for number in range(STEPS):
        windows = example.load(books, number, BATCH, mesh)
        state, loss = program.step(state, windows)
        losses.append(float(loss))
    return state, losses, program.step._cache_size()


@pytest.fixture(
    scope="module", params=["muoneq", pytest.param("racs", marks=pytest.mark.slow)]
)
def runs(request, books):
    """On eight devices, and on one."""
    auto = {"axis_types": (AxisType.Auto,) * 2}
    one = jax.make_mesh((1, 1), tuple(AXES), devices=jax.devices()[:1], **auto)
    meshes = example.make_mesh(AXES), one
    return [train(mesh, books, request.param) for mesh in meshes]


def share(tree):
    """The part of a tree's bytes that the first device holds."""
    leaves = jax.tree.leaves(tree)
    held = sum(x.addressable_shards[0].data.nbytes for x in leaves)
    return held / sum(x.nbytes for x in leaves)


@pytest.mark.slow
def test_losses_do_not_depend_on_the_mesh(runs):
    (_, sharded, _), (_, single, _) = runs
    # Sums over eight devices come in another order: 2^-24 each, a few in each loss,
    # and what the updates pass on. 4e-7 was seen.
    np.testing.assert_allclose(sharded, single, rtol=3e-6)
    assert single[-1] < single[0] - 0.01


@pytest.mark.broad
def test_weights_and_state_are_cut_over_all_devices(runs):
    (state, _, _), (alone, _, _) = runs
    # All but the norms' scales is cut eight times, and the scales four times.
    assert share(state.params) < 1 / 7
    kernel = state.params["layers"][0]["mlp"]["up"]["kernel"][...]
    assert kernel.sharding.shard_shape(kernel.shape) == (32 // 4, 64 // 2)
    state_leaves = jax.tree.leaves_with_path(state.opt_state)
    stacks = [x for path, x in state_leaves if "@" in jax.tree_util.keystr(path)]
    assert len(stacks) >= 8  # What is held for q, k, v, o, gate, up and down.
    for stack in stacks:
        count, *matrix = stack.shape
        assert stack.sharding.shard_shape(stack.shape) == (count // 8, *matrix)
    assert share(state.opt_state) < 1 / 7
    assert share(alone.opt_state) == 1


@pytest.mark.broad
def test_nothing_is_compiled_after_the_first_step(runs):
    assert [compiled for _, _, compiled in runs] == [1, 1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scan", "axes"), [(False, AXES), (True, {"data": 2, "fsdp": 2, "tp": 2})]
)
def test_weights_are_gathered_and_never_activations(scan, axes):
    model = dataclasses.replace(MODEL, scan=scan, context=40)
    mesh = example.make_mesh(axes)
    program = example.prepare(model, mesh, "muoneq", 5e-3, STEPS)
    windows = example.load(example.open_books(40)[0], 0, 32, mesh)
    lowered = jax.jit(jax.grad(program.loss)).lower(program.state.params, windows)
    text = lowered.compile().as_text()
    shapes = re.findall(r"= f32\[([\d,]*)\]\S* all-gather\(", text)
    gathered = [math.prod(map(int, shape.split(","))) for shape in shapes]
    assert gathered
    # No weight has as many elements as the batch's activations, 32 x 40 x 32.
    assert max(gathered) <= model.vocab * model.embed < 32 * 40 * model.embed


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--mesh", "fsdp"], "must be different axes with sizes, as fsdp=4,tp=2, got"),
        (["--processes", "2"], "need --coordinator HOST:PORT"),
        (["--mesh", "fsdp=3"], "--mesh must use all 8 devices, got 3."),
        (["--batch", "6"], "--batch must be divisible by 8"),
        (["--batch", "0"], "--batch: must be 1 or more, got 0"),
        (["--steps", "0"], "--steps: must be 1 or more, got 0"),
        (["--learning-rate", "nan"], "'nan' is not a learning rate"),
        (["--mesh", "fsdp=4,fsdp=2"], "must be different axes with sizes"),
        (["--mesh", "fsdp=-1,tp=-8"], "must be different axes with sizes"),
        (["--losses", "nowhere/losses.json"], "there is no folder nowhere"),
        (["--coordinator", "localhost"], "must be HOST:PORT, got localhost"),
    ],
)
def test_mistakes_are_one_line(arguments, words, capsys, cpus):
    assert len(cpus) == 8
    with pytest.raises(SystemExit) as stop:
        example.main(arguments)
    assert words in f"{stop.value} {capsys.readouterr().err}"


@pytest.fixture
def small(monkeypatch, tmp_path):
    """Trains a small model with checkpoints in a folder; returns what it wrote."""
    monkeypatch.setitem(example.SIZES, "small", dataclasses.replace(MODEL, layers=1))
    folder, file = tmp_path / "checkpoints", tmp_path / "losses.json"
    places = ("--checkpoints", str(folder), "--losses", str(file))

    def train(*more):
        example.main(["--size", "small", "--steps", "4", *places, *more])
        return json.loads(file.read_text())

    return folder, train


@pytest.mark.slow
def test_a_continued_run_keeps_all_losses_and_refuses_other_settings(small):
    folder, train = small
    whole = train()
    assert len(whole["losses"]) == 4
    shutil.rmtree(folder / "4")
    assert train() == whole
    for option, value in OTHERS.items():
        with pytest.raises(SystemExit) as stop:
            train(option, value)
        message = str(stop.value)
        assert message.startswith("error: ")
        assert "\n" not in message
        assert f"run, with {option[2:].replace('-', '_')} " in message
        assert message.endswith("choose another --checkpoints.")
    assert (folder / "4").exists()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_the_same_command_goes_on(
    small, number, monkeypatch, capsys
):
    folder, train = small
    whole = train()
    shutil.rmtree(folder)
    load = example.load

    def interrupted(windows, step, *rest):
        if step == 2:  # The third update.
            signal.raise_signal(number)
        return load(windows, step, *rest)

    monkeypatch.setattr(example, "load", interrupted)
    with pytest.raises(SystemExit) as stop:
        train()
    assert stop.value.code == 128 + number
    assert capsys.readouterr().err == "interrupted at step 3\n"
    assert (folder / "3").exists()
    monkeypatch.setattr(example, "load", load)
    assert train() == whole


@pytest.mark.slow
def test_a_full_disk_gets_one_line_and_keeps_the_last_checkpoint(
    small, full_disk, monkeypatch
):
    folder, train = small
    whole = train()
    shutil.rmtree(folder)
    load = example.load

    def filled(windows, step, *rest):
        if step == 2:  # The third update.
            full_disk(1000)
        return load(windows, step, *rest)

    monkeypatch.setattr(example, "load", filled)
    with pytest.raises(SystemExit, match=r"error: .*too large.* resume") as stop:
        train()
    assert "\n" not in stop.value.code
    kept = {path.name for path in folder.iterdir() if path.name.isdigit()}
    assert {"1"} <= kept <= {"1", "2"}  # The second may still be on its way.
    monkeypatch.setattr(example, "load", load)
    full_disk(resource.RLIM_INFINITY)
    assert train() == whole


OTHERS = {
    "--learning-rate": "1e-3",
    "--batch": "8",
    "--optimizer": "muon",
    "--steps": "5",
}


@pytest.mark.slow
def test_a_run_that_diverges_keeps_its_last_finite_checkpoint(small):
    folder, train = small
    with pytest.raises(SystemExit, match=r"error: .* not finite"):
        train("--learning-rate", "3e38")
    # The warm-up is one step at a rate of zero; the next one leaves weights of 1e37.
    assert {path.name for path in folder.iterdir() if path.name.isdigit()} == {"1", "2"}
