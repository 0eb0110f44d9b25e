"""Gradients and momenta of a run with known ones, and errors of known kernels."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from examples.pretrain.optimizers import Arena
from examples.study.bench import signals
from examples.study.bench.config import Config
from examples.study.bench.tasks import Task
from optax_matrix.linalg import JORDAN, newton_schulz

SHAPE = (3, 5)
CONFIG = Config("books", "muon", "matched", rate=0.01, seed=0, steps=3, batch=1)


class Model(nnx.Module):
    """A kernel whose gradient is the batch."""

    def __init__(self):
        self.kernel = nnx.Param(jnp.ones(SHAPE))


GRADIENTS = np.random.default_rng(0).standard_normal((3, *SHAPE)).astype(np.float32)
LINEAR = Task(
    *("linear", lambda _: Model(), lambda model, g: (model.kernel[...] * g).sum()),
    *(lambda *_: GRADIENTS, lambda: None, Arena(), 0.01, 3, 1),
)


@pytest.mark.broad
def test_momenta_are_what_muon_hands_to_its_kernel():
    """With Nesterov's step ahead: the last gradient is added once more."""
    found = signals.signals(LINEAR, optax.sgd, CONFIG, at=(1, 3), inside="kernel")
    a, b, c = np.float64(GRADIENTS)
    beta = signals.DECAY
    want = {
        (1, "gradient", "kernel"): a,
        (1, "momentum", "kernel"): (1 + beta) * a,
        (3, "gradient", "kernel"): c,
        (3, "momentum", "kernel"): c + beta * (c + beta * (b + beta * a)),
    }
    assert found.keys() == want.keys()
    for key, x in want.items():
        np.testing.assert_allclose(found[key], x, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(4, 6), (6, 4)])
@pytest.mark.parametrize("shrink", [1.0, 3.0])
def test_errors_are_those_of_the_kernel(shape, shrink):
    """Of one in float64's place there are next to none; times 1.1, a tenth."""
    x = np.random.default_rng(1).standard_normal((2, *shape))
    larger = lambda x, **options: 1.1 * newton_schulz(x, **options)
    exact = signals.errors(newton_schulz, x, signals.TABLES["JORDAN"], shrink)
    other = signals.errors(larger, x, signals.TABLES["JORDAN"], shrink)
    tops = np.linalg.norm(signals.iterated(x, [*JORDAN] * 5, shrink), 2, axis=(1, 2))
    for one, two, top in zip(exact, other, tops, strict=True):
        assert one.rounding < 1e-4
        assert two.rounding == pytest.approx(0.1, rel=1e-2)
        assert two.excess == pytest.approx(0.1 * top, rel=1e-2)


@pytest.mark.broad
def test_the_table_has_a_row_for_each_kernel():
    x = np.random.default_rng(2).standard_normal((2, 4, 6))
    found = {"books": {(1, "gradient", "a"): x[0], (1, "momentum", "a"): x[1]}}
    lines = signals.table(found).splitlines()
    assert len(lines) == 2 + len(signals.KERNELS) * len(signals.TABLES)
    assert "books, gradient" in lines[0]
    cells = dict(line.strip("| ").split(" | ", 1) for line in lines[2:])
    of = lambda name: float(cells[name].split(" | ")[1].split(",")[0])
    assert of("Newton-Schulz, float32, `YOU`") < 1e-4
    assert of("Newton-Schulz, bfloat16, `YOU`") > 1e-3
