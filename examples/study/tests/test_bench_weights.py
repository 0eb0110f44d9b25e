"""Weights in bfloat16: the forms of the study, and which runs it has."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from examples.pretrain.errors import UserError
from examples.study.bench import bf16, results, runs, table
from examples.study.bench.comparison import all_methods
from examples.study.bench.search import SEEDS, due
from examples.study.bench.statistics import ranked
from examples.study.bench.tasks import TASKS
from examples.study.bench.weights import FORMS, kept, wide

ROUNDING = 2.0**-8  # Half the distance of bfloat16 numbers, relative to them.


def trained(form, rate, steps):
    """Weights of size one after steps of one size, and their dtype."""
    exact = {"kernel": jax.random.uniform(jax.random.key(0), (64, 64)) + 1, "bias": 1.0}
    exact = jax.tree.map(jnp.asarray, exact)
    tx = FORMS[form](optax.sgd(rate))
    params = kept(exact, form)

    def step(carry, _):
        params, state = carry
        grads = jax.tree.map(jnp.ones_like, wide(params))
        updates, state = tx.update(grads, state, params)
        return (optax.apply_updates(params, updates), state), None

    start = params, tx.init(params)
    (last, _), _ = jax.jit(lambda x: jax.lax.scan(step, x, None, steps))(start)
    gone = jax.tree.map(lambda a, b: (a - b) / (rate * steps), wide(params), wide(last))
    return last["kernel"].dtype, gone


@pytest.mark.broad
@pytest.mark.parametrize("form", FORMS)
def test_small_steps_are_lost_where_weights_are_rounded_to_nearest_only(form):
    dtype, gone = trained(form, 2.0**-12, 256)  # Eight distances of bfloat16.
    assert dtype == (jnp.float32 if form == "float32" else jnp.bfloat16)
    assert gone["bias"] == pytest.approx(1, rel=1e-2)  # A vector, in float32.
    mean = float(gone["kernel"].mean())
    assert mean == pytest.approx(0.0 if form == "rounded" else 1.0, abs=0.02)


@pytest.mark.broad
def test_remainders_make_the_steps_of_float32_weights():
    params = {"kernel": jax.random.normal(jax.random.key(1), (32, 16))}
    params = wide(kept(params, "rounded"))  # Where both forms can start.
    ends = []
    for form in ("float32", "store_remainders"):
        tx, w = FORMS[form](optax.adam(1e-3)), kept(params, form)
        state = tx.init(w)
        for seed in range(20):
            noise = jax.random.normal(jax.random.key(seed), (32, 16))
            updates, state = tx.update({"kernel": noise}, state, w)
            w = optax.apply_updates(w, updates)
        ends.append(wide(w)["kernel"])
    np.testing.assert_allclose(ends[1], ends[0], rtol=1.01 * ROUNDING)
    assert not np.array_equal(ends[0], ends[1])


def test_runs_with_float32_weights_are_those_of_books():
    found = results.read()
    first = {e.method: e for e in reversed(bf16.entries(found))}
    assert list(first) == ["soap", "muoneq", "adamw"]
    for method, entry in first.items():
        assert entry.weights == "float32"
        here = [e for e in all_methods("books") if e.method == method]
        (best, *_) = ranked(here, found)
        assert (entry.rate, entry.setting) == (best.rate, best.entry.setting)
        assert due(dataclasses.replace(entry, seeds=SEEDS), found) is None


def test_the_study_waits_for_books():
    with pytest.raises(UserError, match="the better setting of adamw of `books`"):
        bf16.entries({})
    assert "waits for the end of another one" in table.table("bf16", {})


def test_bytes_are_those_of_the_weights_and_the_state():
    params = jax.eval_shape(lambda: TASKS["books"].init(0))
    count = sum(x.size for x in jax.tree.leaves(params))
    assert bf16._size("float32") == (4 * count, count)
    size, same = bf16._size("store_remainders")
    vectors = sum(x.size for x in jax.tree.leaves(params) if x.ndim == 1)
    assert (size, same) == (2 * count + 2 * vectors, count)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_a_run_keeps_its_weights_in_its_form(form):
    bench = runs.bench("books", "adamw", "matched", 4, 2, form)
    params = bench.weights(0)
    exact = runs.bench("books", "adamw", "matched", 4, 2).weights(0)
    for w, x in zip(jax.tree.leaves(params), jax.tree.leaves(exact), strict=True):
        half = form != "float32" and w.ndim > 1
        assert w.dtype == (jnp.bfloat16 if half else jnp.float32)
        np.testing.assert_allclose(wide(w), x, rtol=ROUNDING if half else 0)
    assert bench.run(1e-2, 0, TASKS["books"].held_out(), 1).loss < 5.5
