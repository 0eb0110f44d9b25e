"""Singular values of updates: closed forms, every method, and the file."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _tiers import tiered
from flax import nnx

import optax_matrix as om
from examples.pretrain.errors import UserError
from examples.pretrain.optimizers import Arena
from examples.study.bench import results, spectra
from examples.study.bench.comparison import MATCHED, not_run
from examples.study.bench.config import Config
from examples.study.bench.spectra import METHODS, Spectra
from examples.study.bench.tasks import TASKS, Task
from optax_matrix.linalg import polar_svd

Q = np.linalg.qr(np.random.default_rng(0).standard_normal((2, 4, 4)))[0]
CONFIG = Config("books", "muon", "matched", rate=0.01, seed=0, steps=3, batch=1)


class Model(nnx.Module):
    """A kernel whose gradient is the batch, and which starts as 3 Q."""

    def __init__(self):
        self.kernel = nnx.Param(jnp.asarray(3 * Q[0] @ Q[1]))


def _batches(seed, steps, batch):
    """Gradients of known singular values, which are others in the last step."""
    del seed, batch
    values = np.array([1.0, 1 / 2, 1 / 4, 1 / 8])
    many = [values if step < steps - 1 else values[::-1] ** 2 for step in range(steps)]
    return np.stack([Q[0] * one @ Q[1] for one in many])


LINEAR = Task(
    *("linear", lambda _: Model(), lambda model, g: (model.kernel[...] * g).sum()),
    *(_batches, lambda: None, Arena(), 0.01, 3, 1),
)
_seen = functools.partial(spectra.spectra, LINEAR, config=CONFIG, kernel=("kernel",))
close = functools.partial(pytest.approx, abs=2e-3)


@pytest.mark.broad
def test_of_gradient_descent_the_update_is_the_last_gradient():
    got = _seen(optax.sgd)
    assert got.gradient == close([1.0, 1 / 4, 1 / 16, 1 / 64])
    assert got.update == close(got.gradient)
    assert got.first == close([3.0] * 4)


def test_of_gradient_descent_the_change_is_the_sum_of_updates():
    """Both gradients have the kernel's singular vectors."""
    config = dataclasses.replace(CONFIG, steps=2)
    got = _seen(lambda _: optax.sgd(0.1), config=config)
    gradients = np.array([(1, 1 / 2, 1 / 4, 1 / 8), (1 / 64, 1 / 16, 1 / 4, 1)])
    norms = np.linalg.norm(gradients, axis=1, keepdims=True)  # They are clipped.
    total = (gradients / np.maximum(norms, 1)).sum(0)
    assert got.change == close(np.sort(total / total.max())[::-1])
    assert got.last == pytest.approx(3 - 0.1 * np.sort(total), rel=2e-3)


@pytest.mark.broad
def test_of_muon_with_the_exact_polar_factor_all_values_are_one():
    got = _seen(functools.partial(om.muon, polar=polar_svd, weight_decay=0.0))
    assert got.update == close([1.0] * 4)
    assert got.change == close([1.0] * 4)
    assert got.gradient == close([1.0, 1 / 4, 1 / 16, 1 / 64])


@pytest.mark.broad
def test_of_galore_values_beyond_the_rank_are_zero():
    got = _seen(functools.partial(om.galore, rank=2, weight_decay=0.0))
    assert [x > 0 for x in got.update] == [True, True, False, False]


def test_a_run_that_diverges_is_named():
    with pytest.raises(UserError, match=r"muon diverged at the learning rate 0.01"):
        _seen(lambda _: optax.sgd(np.nan))


@pytest.mark.broad
@pytest.mark.parametrize("name", tiered(METHODS))
def test_nothing_decays(name):
    _stays(spectra.configs(results.read())[name])


@pytest.mark.broad
def test_nothing_decays_where_the_setting_is_the_papers():
    _stays(dataclasses.replace(CONFIG, method="muon_plus", setting="own"))


def _stays(config):
    tx = spectra.undecayed(config, Arena())(0.1)
    kernel = jnp.asarray(Q.reshape(4, 8), jnp.float32)
    params = {"embed": {"embedding": kernel}, "kernel": kernel}
    still = jax.tree.map(jnp.zeros_like, params)
    updates, _ = jax.jit(tx.update)(still, tx.init(params), params)
    for leaf in jax.tree.leaves(updates):
        np.testing.assert_allclose(leaf, 0.0, atol=1e-6)


def test_every_method_of_the_study_has_a_row():
    wanted = [name for name in METHODS if name not in not_run()]
    missing = [name for name in wanted if name not in spectra.read()]
    assert not missing, f"Run `{spectra.COMMAND}` for {', '.join(missing)}."
    assert [x for x in spectra.read() if x in wanted] == wanted
    for name, row in spectra.read().items():
        for values in dataclasses.astuple(row.spectra):
            assert len(values) == 96, name
            assert values == sorted(values, reverse=True), name
            assert values[0] > 0, name


@pytest.mark.broad
def test_rates_are_the_best_of_the_study():
    found = spectra.configs(results.read())
    assert list(found) == list(METHODS)
    assert found["muoneq"] == Config("books", "muoneq", "matched", 0.008, 0, 400, 16)
    assert found["racs"].setting == "own"
    assert found["shampoo"].method in MATCHED
    assert spectra.configs({})["muoneq"].rate == TASKS["books"].rate


def test_rows_show_what_the_papers_state():
    rows = {name: row.spectra for name, row in spectra.read().items()}
    for name in ("poet", "oft"):  # The weights keep their singular values.
        np.testing.assert_allclose(rows[name].last, rows[name].first, rtol=0.02)
    for name in ("muon", "muoneq", "normuon"):  # Updates are nearly orthogonal.
        assert rows[name].update[-1] > 0.25 > 10 * rows[name].gradient[-1]
    for name in ("galore", "sumo"):  # A quarter of the 96 directions.
        assert sum(x > 1e-3 for x in rows[name].update) == 24


@pytest.mark.broad
def test_what_the_file_has_is_not_measured_again(tmp_path, monkeypatch, capsys):
    path, measured = tmp_path / "new" / "spectra.jsonl", []

    def measure(config):
        measured.append(config)
        return Spectra([1.0], [1.0], [1.0], [2.0], [3.0])

    monkeypatch.setattr(spectra, "measure", measure)
    monkeypatch.setattr(spectra, "METHODS", ("adamw", "muon"))
    spectra.run(path, {})
    assert capsys.readouterr().out.splitlines()[1] == "muon: learning rate 0.004"
    monkeypatch.setattr(spectra, "METHODS", ("adamw", "kron", "muon"))
    spectra.run(path, {})
    assert [one.method for one in measured] == ["adamw", "muon", "kron"]
    assert list(spectra.read(path)) == ["adamw", "kron", "muon"]
    assert spectra.read(path)["kron"].where["command"] == spectra.COMMAND
    spectra.run(path, results.read())  # With the rates that the study found.
    assert {"adamw", "muon"} <= {one.method for one in measured[3:]}
    assert spectra.read(path)["muon"].config.rate == 0.008
    assert len(path.read_text().splitlines()) == 3


def test_a_damaged_line_is_named(tmp_path):
    path = tmp_path / "spectra.jsonl"
    path.write_text("nothing\n")
    with pytest.raises(UserError, match="is damaged; delete it, and its method will"):
        spectra.read(path)


@pytest.mark.slow
def test_the_model_is_the_one_of_the_rows():
    row = spectra.read()["adamw"]
    got = spectra.measure(dataclasses.replace(row.config, steps=2))
    assert got.first == pytest.approx(row.spectra.first, rel=0.01)
    assert got.last != got.first
