"""`train --monitor`: what it records, that it survives --resume and changes nothing."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import optax_matrix as om
from examples.pretrain.cli import main
from examples.pretrain.monitor import (
    MEASURES,
    QUANTILES,
    Monitor,
    spectra,
    with_monitor,
    without_monitor,
)
from examples.pretrain.step import TrainState

TINY = ("--context", "8", "--batch", "4", "--steps", "6", "--validation", "4")
EVERY = ("--eval-every", "3", "--log-every", "1", "--checkpoint-every", "3")


def params():
    draw = np.random.default_rng(0).normal
    return {
        "layers": {
            "up": {"kernel": np.float32(draw(size=(3, 5, 7)))},
            "norm": {"scale": np.ones((3, 5), np.float32)},
        },
        "wide": {"kernel": np.float32(draw(size=(80, 90)))},
    }


@pytest.mark.parametrize("shape", [(5, 8), (8, 5), (6, 6), (3, 8, 5)])
def test_spectra_are_singular_values(shape):
    w = np.random.default_rng(1).normal(size=shape)
    (values,) = spectra({"a": {"kernel": np.float32(w)}}).values()
    expected = np.linalg.svd(w, compute_uv=False)
    np.testing.assert_allclose(values, expected, rtol=1e-5)


def test_spectra_of_rank_deficient_and_zero_matrices():
    w = np.outer([1.0, 2.0, 2.0], [3.0, 4.0])
    tree = {"a": {"kernel": w}, "b": {"kernel": np.zeros((4, 4))}}
    got = spectra(jax.tree.map(lambda x: x.astype(jnp.bfloat16), tree))
    np.testing.assert_allclose(got["a/kernel"], [15, 0], atol=1e-6)
    assert got["b/kernel"] == [0.0] * 4


def test_large_spectra_are_quantiles_and_vectors_have_none():
    got = spectra(params())
    assert {*got} == {"layers/up/kernel", "wide/kernel"}
    assert np.shape(got["layers/up/kernel"]) == (3, 5)
    values = np.linalg.svd(params()["wide"]["kernel"], compute_uv=False)
    wide = got["wide/kernel"]
    assert len(wide) == QUANTILES
    assert wide == sorted(wide, reverse=True)
    ends = [values[0], values[-1]]
    np.testing.assert_allclose([wide[0], wide[-1]], ends, rtol=1e-4)


def test_not_finite_values_are_null():
    w = np.ones((2, 9, 9), np.float32)
    w[0, 3, 4] = np.nan
    assert spectra({"a": {"kernel": w}}) == {"a/kernel": [[None] * 9] * 2}


def monitored(steps, tmp_path, after=0, every=1):
    tx = om.diagnostics.monitor(optax.sgd(0.1), MEASURES)
    weights, update = params(), jax.jit(tx.update)
    state, monitor = tx.init(weights), Monitor(tmp_path, after, every, after + steps)
    for step in range(after + 1, after + steps + 1):
        updates, state = update(weights, state, weights)
        weights = optax.apply_updates(weights, updates)
        monitor.write(step, TrainState(weights, state))
    monitor.close()
    return [
        json.loads(x) for x in (tmp_path / "monitor.jsonl").read_text().split("\n")[:-1]
    ]


@pytest.mark.broad
def test_lines_have_measures_and_each_tenth_spectra(tmp_path):
    rows = monitored(25, tmp_path, every=2)
    assert [row["step"] for row in rows] == [*range(2, 25, 2), 25]
    assert [r["step"] for r in rows if "spectra" in r] == [2, 22, 25]
    up = rows[0]["measures"]["layers/up/kernel"]
    # The update is -0.1 times the weights before it, in each of the three layers.
    np.testing.assert_allclose(up["update_to_weight"], [0.1] * 3, rtol=1e-5)
    np.testing.assert_allclose(up["update_cosine"], [1.0] * 3, rtol=1e-5)
    assert rows[0]["measures"]["layers/norm/scale"]["update_rms"] == pytest.approx(0.09)


@pytest.mark.broad
def test_the_first_update_has_no_earlier_one_and_later_lines_are_dropped(tmp_path):
    monitored(4, tmp_path)
    rows = monitored(3, tmp_path, after=2)
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5]
    cosines = [row["measures"]["wide/kernel"]["update_cosine"] for row in rows]
    assert [c is None for c in cosines] == [True, False, True, False, False]


@pytest.mark.parametrize("every", [1, 2])
def test_checkpoints_do_not_know_of_the_monitor(every):
    def build(measures):
        tx = optax.chain(optax.clip(1.0), optax.adam(0.1))
        tx = om.diagnostics.monitor(tx, measures) if measures else tx
        return optax.MultiSteps(tx, every) if every > 1 else tx

    plain, fresh = (jax.jit(build(m).init)(params()) for m in ((), MEASURES))
    same = jax.tree.structure(plain)
    assert jax.tree.structure(without_monitor(fresh)) == same
    assert jax.tree.structure(without_monitor(plain)) == same
    ones = jax.tree.map(np.ones_like, plain)
    joined = with_monitor(fresh, ones)
    assert jax.tree.structure(joined) == jax.tree.structure(fresh)
    assert all(np.all(x == 1) for x in jax.tree.leaves(without_monitor(joined)))
    assert with_monitor(plain, ones) is not None
    assert jax.tree.structure(with_monitor(plain, ones)) == same


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def losses(out):
    return [(row["step"], row["loss"]) for row in read(out / "metrics.jsonl")]


def train(out, *options):
    text = out.parent / "text.txt"
    text.write_bytes(bytes(range(97, 123)) * 40)
    command = ["--data", str(text), *TINY, *EVERY, *options]
    assert main([*command, "--out", str(out)]) == 0


@pytest.mark.slow
def test_a_monitored_run_resumes_with_and_without_it(tmp_path):
    whole, plain = tmp_path / "whole", tmp_path / "plain"
    train(whole, "--optimizer", "muon", "--monitor")
    train(plain, "--optimizer", "muon")
    assert losses(whole) == losses(plain)
    assert not (plain / "monitor.jsonl").exists()
    before = read(whole / "monitor.jsonl")
    assert [row["step"] for row in before] == [*range(1, 7)]
    shutil.rmtree(whole / "checkpoints" / "6")
    train(whole, "--optimizer", "muon", "--monitor", "--resume")
    after = read(whole / "monitor.jsonl")
    for values in before[3]["measures"].values():  # The first after the checkpoint.
        values["update_cosine"] = None
    assert after == before
    assert losses(whole) == losses(plain)
    assert [row["step"] for row in read(whole / "starts.jsonl")] == [0, 3]
    for out, monitor in ((whole, ()), (plain, ("--monitor",))):  # The other way.
        shutil.rmtree(out / "checkpoints" / "6")
        train(out, "--optimizer", "muon", *monitor, "--resume")
        assert losses(out)[-1][0] == 6
    assert [row["step"] for row in read(plain / "monitor.jsonl")] == [4, 5, 6]


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["poet", "lora"])
def test_stacked_layers_and_micro_batches_are_recorded(tmp_path, optimizer):
    options = ("--optimizer", optimizer, "--layers", "scan", "--accumulate", "2")
    train(tmp_path / "run", *options, "--monitor")
    rows = read(tmp_path / "run" / "monitor.jsonl")
    q = rows[-1]["measures"]["layers/attn/q/kernel"]
    assert {*q} == {*MEASURES}
    assert len(q["update_rms"]) == 2
    assert min(q["update_rms"]) > 0
    assert np.shape(rows[-1]["spectra"]["layers/attn/q/kernel"]) == (2, QUANTILES)
