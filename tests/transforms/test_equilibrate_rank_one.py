"""RACS's step by vectors is that of the chain of its blocks, which read the matrix."""

from functools import partial

import jax
import numpy as np
import optax
import pytest

from optax_matrix.linalg import rank_one_scales
from optax_matrix.transforms import equilibrate_with_ema, limit_norm_growth
from optax_matrix.transforms.equilibration import equilibrate_rank_one

SHAPES = {"wide": (2, 6, 10), "tall": (9, 5), "square": (7, 7), "row": (1, 8)}
STEPS = 6


def streams(scale=1.0):
    """Spread, with a zero row, a zero column, a zero step and one of rank one."""
    rng = np.random.default_rng(0)
    draw = lambda s: rng.standard_normal((STEPS, *s)) * np.exp(rng.standard_normal(s))
    grads = {name: scale * draw(shape) for name, shape in SHAPES.items()}
    grads["wide"][..., 2, :] = grads["wide"][..., :, 4] = 0
    grads["wide"][3, 1] = grads["square"][0] = 0
    tall = grads["tall"]
    tall[1::2] = tall[1::2, :, :1] * tall[1::2, :1, :] / scale
    grads["square"][4] *= 30
    return grads


def chain(
    decay=0.9, *, rounds, bias_correction, max_rms, max_growth, max_shrink, scale
):
    scales = partial(rank_one_scales, rounds=rounds)
    options = {"bias_correction": bias_correction, "max_rms": max_rms}
    return optax.chain(
        equilibrate_with_ema(scales, decay, **options),
        limit_norm_growth(max_growth, max_shrink=max_shrink),
        optax.scale(scale),
    )


def path_of(tx, grads):
    @jax.jit
    def scan(grads):
        start = tx.init(jax.tree.map(lambda g: g[0], grads))
        state, path = jax.lax.scan(lambda s, g: tx.update(g, s)[::-1], start, grads)
        return path, state

    return jax.tree.map(np.asarray, scan(grads))


def assert_close(got, want, tolerance):
    """Relative to the largest entry of each array."""
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * np.abs(b).max())


OPTIONS = {
    "default": {},
    "tight": {"max_rms": 1.0, "max_growth": 1.3, "rounds": 2},
    "corrected": {"bias_correction": True, "rounds": 1, "max_rms": 1.0},
    "paper": {"max_rms": None, "max_shrink": None, "scale": 0.05},
}
DEFAULTS = {"rounds": 5, "bias_correction": False, "max_rms": 4.0}
DEFAULTS |= {"max_growth": 1.01, "max_shrink": 2.0, "scale": 1.0}


@pytest.mark.broad
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", OPTIONS)
def test_updates_and_state_are_those_of_the_chain(name):
    """In float64, so that only the identities of the docstring make them equal."""
    options = DEFAULTS | OPTIONS[name]
    got = path_of(equilibrate_rank_one(0.9, **options), streams())
    assert_close(got, path_of(chain(**options), streams()), 1e-13)


@pytest.mark.broad
@pytest.mark.parametrize("scale", [1.0, 1e-12, 1e12])
def test_float32_agrees_at_every_scale(scale):
    grads = {k: np.float32(x) for k, x in streams(scale).items()}
    got = path_of(equilibrate_rank_one(0.9), grads)
    assert_close(got, path_of(chain(**DEFAULTS), grads), 2e-6)


@pytest.mark.broad
def test_vanishing_entries_are_bounded_or_zero():
    """Rows whose squares vanish beside the largest are no exception to the bound."""
    rng = np.random.default_rng(1)
    tiny = 10.0 ** rng.uniform(-24, 0, (4, 8, 12)) * rng.standard_normal((4, 8, 12))
    blocks = np.kron([[1, 0, 0], [1e-7, 1e-3, 0], [0, 0, 1e-8]], np.ones((2, 3)))
    blocks = blocks * np.ones((4, 1, 1))
    grads = {"tiny": np.float32(tiny), "blocks": np.float32(blocks)}
    path, _ = path_of(equilibrate_rank_one(0.9, max_growth=1e9), grads)
    for x in path.values():
        rms = np.sqrt(np.mean(np.square(x, dtype=np.float64), axis=-1))
        assert 0.1 < rms.max() <= 4.0 / (1 - 0.9) * (1 + 1e-5)
    below = np.abs(tiny) < 1e-19 * np.abs(tiny).max((-2, -1), keepdims=True) / 2
    assert below.any()
    np.testing.assert_array_equal(path["tiny"][below], 0)
