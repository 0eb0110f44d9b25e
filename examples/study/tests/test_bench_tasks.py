"""The study's models, data and runs."""

import dataclasses
import hashlib
import math
import subprocess
import sys

import jax
import numpy as np
import pytest
from scipy import special

import optax_matrix as om
from examples.pretrain.data import DATA, as_bytes, read_text, split
from examples.pretrain.optimizers import methods
from examples.pretrain.options import listing
from examples.study.bench import results
from examples.study.bench.chains import chains
from examples.study.bench.comparison import not_run
from examples.study.bench.config import Config
from examples.study.bench.methods import OWN_RATES, find, own
from examples.study.bench.runs import run
from examples.study.bench.search import SEEDS, TUNING, Entry, due
from examples.study.bench.tasks import CLIP, FINAL, TASKS, WARM_UP, schedule
from examples.study.bench.workers import run_all

# Its first convolution has one channel, and AdamW on purpose.
STEM = pytest.mark.filterwarnings("ignore:Check how these parameters")

BOOKS = "king_james", "moby_dick"


def as_float64(params):
    leaves = jax.tree.leaves_with_path(params)
    name = lambda path: jax.tree_util.keystr(path, simple=True, separator="/")
    found = {name(path): np.asarray(leaf, np.float64) for path, leaf in leaves}
    return {name.removesuffix("/value"): leaf for name, leaf in found.items()}


def layer_norm(x, scale):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale


def gpt2(w, tokens, heads, layers):
    """GPT-2's logits for one window, as nanoGPT computes them."""
    x = w["embed/embedding"][tokens] + w["positions/embedding"][: len(tokens)]
    later = np.triu(np.ones((len(tokens),) * 2, bool), 1)
    for i in range(layers):
        at = lambda name, i=i: w[f"layers/{i}/{name}"]
        y = layer_norm(x, at("attn_norm/scale")) @ at("attn/qkv/kernel")
        q, k, v = (z.reshape(len(x), heads, -1) for z in np.split(y, 3, axis=-1))
        scores = np.einsum("ihd,jhd->hij", q, k) / math.sqrt(q.shape[-1])
        share = special.softmax(np.where(later, -np.inf, scores), axis=-1)
        mixed = np.einsum("hij,jhd->ihd", share, v).reshape(len(x), -1)
        x = x + mixed @ at("attn/o/kernel")
        y = layer_norm(x, at("mlp_norm/scale")) @ at("mlp/up/kernel")
        gelu = y * (1 + special.erf(y / math.sqrt(2))) / 2
        x = x + gelu @ at("mlp/down/kernel")
    return layer_norm(x, w["norm/scale"]) @ w["embed/embedding"].T


@pytest.mark.slow
def test_the_gpt_is_gpt2():
    task = TASKS["shakespeare"]
    params = jax.tree.map(lambda x: 3 * x, task.init(0))  # So that all parts matter.
    window = task.batches(0, 1, 1)[0]
    logits = gpt2(as_float64(params), window[0, :-1], heads=4, layers=4)
    chosen = special.log_softmax(logits, -1)[np.arange(64), window[0, 1:]]
    np.testing.assert_allclose(task.mean_loss(params, window), -chosen.mean(), 1e-5)


@pytest.mark.broad
def test_the_gpt_has_nanogpts_size_and_initial_scale():
    w = as_float64(TASKS["shakespeare"].init(0))
    assert sum(x.size for x in w.values()) - 64 * 128 == 795_904  # "0.80M".
    std = lambda name: w[name].std()
    assert std("layers/2/attn/qkv/kernel") == pytest.approx(0.02, rel=0.02)
    assert std("positions/embedding") == pytest.approx(0.02, rel=0.03)
    for name in ("attn/o", "mlp/down"):
        scale = std(f"layers/1/{name}/kernel")
        assert scale == pytest.approx(0.02 / math.sqrt(8), rel=0.02)


def test_the_schedule_is_nanogpts():
    rate = schedule(1e-3, 2000)
    assert float(rate(0)) == pytest.approx(1e-5)
    assert float(rate(99)) == pytest.approx(1e-3)
    assert float(rate(1999)) == pytest.approx(1e-4)
    half = 1e-4 + 9e-4 * (1 + math.cos(math.pi * 475 / 1900)) / 2
    assert float(rate(574)) == pytest.approx(half)


@pytest.mark.broad
def test_queries_keys_and_values_are_three_matrices():
    task = TASKS["shakespeare"]
    numbers = task.arena.dimension_numbers
    text = str(om.describe(task.init(0), dimension_numbers=numbers))
    row = next(line for line in text.splitlines() if "layers/0/attn/qkv" in line)
    assert row.count("1x (128, 128)") == 3
    for name in ("embed/embedding", "positions/embedding"):
        row = next(line for line in text.splitlines() if name in line)
        assert "other" in row


@pytest.mark.broad
@pytest.mark.parametrize(
    ("name", "shape"), [("shakespeare", (12, 65)), ("books", (16, 65))]
)
def test_text(name, shape):
    task = TASKS[name]
    one, again = (task.batches(3, 5, task.batch) for _ in range(2))
    np.testing.assert_array_equal(one, again)
    assert one.shape == (5, *shape)
    assert one.dtype == np.uint8
    assert (task.batches(4, 5, task.batch) != one).any()
    # A longer run begins with other windows, but a validation set is always the same.
    held_out = task.held_out()
    assert held_out[..., 1:].size >= 100_000
    held = {bytes(window) for part in held_out for window in part}
    assert len(held) == held_out.shape[0] * 64


def test_shakespeare_is_split_as_in_nanogpt():
    task = TASKS["shakespeare"]
    assert task.held_out().max() < 65
    seen = task.batches(0, 2000, 12)
    assert len(np.unique(seen)) >= 62
    text = TASKS["shakespeare"].held_out().swapaxes(0, 1).reshape(-1, 65)
    # Windows lie side by side, each in another part; the last token of one is the
    # first of the next.
    joined = (text[:-1, -1] == text[1:, 0]).mean()
    assert joined > 0.9


def texts(name):
    """The tokens of a task's texts."""
    names = ["tiny_shakespeare"] if name == "shakespeare" else BOOKS
    read = [as_bytes(read_text(DATA / f"{x}.txt.gz")) for x in names]
    if name == "books":
        return read
    _, tokens = np.unique(read[0], return_inverse=True)
    return [tokens.astype(np.uint8)]


@pytest.mark.broad
@pytest.mark.parametrize("name", ["shakespeare", "books"])
def test_a_search_sees_nothing_of_the_validation_text(name):
    windows = lambda rows: {bytes(row) for part in rows for row in part}
    search = TASKS[f"{name}/search"]
    seen = windows(search.batches(0, 200, 12)) | windows(search.held_out())
    assert len(windows(search.held_out())) == 1024
    held_out = b"|".join(bytes(split(text)[1]) for text in texts(name))
    share = lambda found: np.mean([window in held_out for window in found])
    assert share(windows(TASKS[name].held_out())) == 1
    assert share(seen) < 0.002  # The Bible repeats itself.
    assert not windows(search.held_out()) & windows(search.batches(0, 200, 12))


def described(name):
    """What decides the runs of a task, apart from what their keys have."""
    t = TASKS[name]
    numbers = {"dimension_numbers": t.arena.dimension_numbers}
    rows = om.describe(jax.eval_shape(t.init, 0), **numbers).rows
    views = [(row.leaf, row.shape, row.view) for row in rows]
    arrays = jax.tree.leaves((t.batches(0, 2, t.batch), t.held_out()))
    data = hashlib.sha256(b"".join(x.tobytes() for x in arrays)).hexdigest()
    arena = dataclasses.replace(t.arena, dimension_numbers=None)
    return "\n".join(map(str, (*views, data, arena, WARM_UP, FINAL, CLIP)))


@pytest.mark.broad
@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("shakespeare", "55b3a2423d37cf1d"),
        ("books", "280dc2768e7cda04"),
        ("digits", "1f424eeb0c7b7849"),
        ("large", "dbcfa64784e93ff9"),
        ("shakespeare/search", "04b7f49a0be61db1"),
        ("books/search", "5c7806dddb08d466"),
    ],
)
def test_tasks_are_those_of_the_runs(name, digest):
    """A run's key has only the name of its task: one that changes needs another."""
    text = described(name)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == digest, text


def options():
    """The methods with runs, a line each with its options, in both settings."""
    arena = TASKS["books"].arena
    of_papers = {f"{name} (own)": own(name, arena) for name in OWN_RATES}
    every = methods(arena) | {"chain": chains(arena)} | of_papers
    ran = {n: x for n, x in every.items() if n.split()[0] not in not_run()}
    return {n: listing({n: x}).splitlines()[2] for n, x in ran.items()}


@pytest.mark.broad
def test_defaults_are_those_of_the_runs():
    """A run's key has only the name of its method. A new option changes nothing."""
    path = results.PATH.with_name("options.txt")
    parts = lambda x: set(x.partition(": ")[2].split(", ")) - {"no options"}
    then = {x.partition(": ")[0]: x for x in path.read_text().splitlines()}
    now = options()
    changed = {name: parts(x) - parts(now.get(name, "")) for name, x in then.items()}
    changed = {name: sorted(x) for name, x in changed.items() if x}
    assert not changed, "Another default: remove the runs of these from bench.jsonl."
    lines = [line for name, line in now.items() if name not in then]
    assert not lines, f"New runs: add to {path.name} what they had."


@pytest.mark.broad
def test_images():
    task = TASKS["digits"]
    batch = task.batches(0, 3, 32)
    assert batch["pixels"].shape == (3, 32, 28, 28)
    assert batch["labels"].shape == (3, 32)
    held_out = task.held_out()
    assert held_out["labels"].size == 2500
    assert np.bincount(held_out["labels"].ravel()).min() > 200


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_a_fresh_model_knows_nothing(task):
    t = TASKS[task]
    part = jax.tree.map(lambda x: x[0], t.held_out())
    classes = {"books": 256, "digits": 10}.get(task.split("/")[0], 65)
    loss = float(jax.jit(t.mean_loss)(t.init(0), part))
    assert loss == pytest.approx(math.log(classes), rel=0.05)


@STEM
@pytest.mark.slow
def test_a_run_is_repeatable_and_depends_on_rate_and_seed():
    config = Config("digits", "muoneq", "matched", 2e-3, 0, 20, 4)
    one, again = run(config), run(config)
    assert (one.loss, one.curve) == (again.loss, again.curve)
    assert [step for step, _ in one.curve] == list(range(21))
    trial = run(Config(**{**config.__dict__, "seed": TUNING}))
    assert [step for step, _ in trial.curve] == [0, 5, 10, 15, 20]
    for change in ({"rate": 4e-3}, {"seed": 1}):
        assert run(Config(**{**config.__dict__, **change})).loss != one.loss


@STEM
@pytest.mark.slow
def test_a_run_that_diverges_ends_early_and_has_no_loss():
    got = run(Config("digits", "muoneq", "matched", 1e3, 0, 20, 4))
    assert got.loss is None
    assert len(got.curve) < 21


@STEM
@pytest.mark.slow
def test_every_method_has_both_settings_that_are_listed():
    for task in TASKS.values():
        for name in OWN_RATES:
            params = task.init(0)
            for setting in ("own", "matched"):
                jax.eval_shape(find(name, setting, task.arena)(1e-3).init, params)


@pytest.mark.slow
def test_processes_share_a_study_and_go_on_after_a_stop(tmp_path):
    path = tmp_path / "bench.jsonl"
    entries = [
        Entry("digits", name, "matched", 2e-3, 20, 4, trials=())
        for name in ("adamw", "muon")
    ]
    results.append(config := entries[0].config(2e-3, 1), run(config), path, "run")
    before = path.read_text()
    run_all(entries, path, 2, "run", lambda: 0)
    found = results.read(path)
    assert not any(due(entry, found) for entry in entries)
    assert len(found) == 2 * len(SEEDS)
    assert path.read_text().startswith(before)


STOPPED = """
import os, signal, sys
from examples.study.bench import cli, workers
workers._watch = lambda *_: os.kill(os.getpid(), signal.SIGTERM)
sys.exit(cli.main(["run", "search", "--results", sys.argv[1]]))
"""


@pytest.mark.slow
def test_a_long_study_that_is_stopped_ends(tmp_path):
    """Its entries are more than a pipe holds."""
    command = [sys.executable, "-c", STOPPED, str(tmp_path / "bench.jsonl")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert ended.returncode == 128 + 15
    assert "run the same command again" in ended.stderr
