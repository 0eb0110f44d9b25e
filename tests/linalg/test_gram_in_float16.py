"""The Gram form in float16: bounded on hard matrices, closer than bfloat16."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _matrices import gaussian, matrix_with_singular_values, near_singular, rank_one

from optax_matrix import linalg
from optax_matrix.linalg import JORDAN

M, N = 64, 224
RANKS = np.arange(1, M + 1)
SPECTRA = {
    "inverse": 1 / RANKS,
    "four decades": np.geomspace(1, 1e-4, M),
    "eight decades": np.geomspace(1, 1e-8, M),
    "one large": np.where(RANKS == 1, 1.0, 1e-2),
}
FULL = {
    **{name: matrix_with_singular_values(s, M, N) for name, s in SPECTRA.items()},
    "gaussian": gaussian(M, N),
    "near singular": near_singular(M, N, 1e-7),
}
HARD = {
    "zero": np.zeros((M, N)),
    "rank one": rank_one(M, N),
    "half the rank": matrix_with_singular_values(RANKS <= M // 2, M, N),
    "rows of all sizes": gaussian(M, N) * np.geomspace(1e-15, 1e15, M)[:, None],
    **FULL,
}
TOP = 1.203  # The most that five of these steps make of a value in [0, 1].
# Rounding in float16 (5e-4) of the factors of three steps behind the restart, each of
# which has a slope of up to 3.44.
ROUNDED = 0.02


def exact(x, shrink=1.0):
    """The iteration in float64, from matrices of norm ``1 / shrink``."""
    x = x / (np.linalg.norm(x, axis=(-2, -1), keepdims=True) * shrink)
    a, b, c = JORDAN[0]
    for _ in range(5):
        gram = x @ x.swapaxes(-1, -2)
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


@functools.cache
def _jitted(name, dtype):
    f = getattr(linalg, name)
    return jax.jit(functools.partial(f, coefficients=JORDAN, compute_dtype=dtype))


def run(name, x, dtype):
    return np.asarray(_jitted(name, dtype)(np.float32(x)), np.float64)


def tops(x):
    return np.linalg.norm(x, 2, axis=(-2, -1))


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_singular_values_are_bounded(scale):
    x = np.stack(list(HARD.values()))
    scale = np.float64(scale) / np.maximum(np.abs(x).max((-2, -1), keepdims=True), 1)
    q = run("gram_newton_schulz", x * scale, jnp.float16)
    assert np.isfinite(q).all()
    np.testing.assert_array_equal(q[0], 0)
    assert tops(q).max() < TOP + ROUNDED


def test_in_bfloat16_they_are_not():
    q = run("gram_newton_schulz", np.stack(list(HARD.values())), jnp.bfloat16)
    assert tops(q).max() > TOP + 3 * ROUNDED


def test_no_farther_from_the_iteration_than_newton_schulz_in_bfloat16():
    x = np.stack(list(FULL.values()))
    far = lambda q: np.linalg.norm(q - exact(x), axis=(-2, -1))
    ours = far(run("gram_newton_schulz", x, jnp.float16))
    theirs = far(run("newton_schulz", x, jnp.bfloat16))
    assert dict(zip(FULL, ours < theirs, strict=True)) == dict.fromkeys(FULL, True)


def test_entries_of_a_large_matrix():
    """Of norm one, those of 8192 x 28672 are at the end of float16's full precision."""
    x = np.stack(list(FULL.values()))
    shrink = (8192 * 28672 / (M * N)) ** 0.5
    peak = np.abs(x).max((-2, -1), keepdims=True)
    eps = np.float32(np.linalg.norm(x / peak, axis=(-2, -1)) * (shrink - 1))
    kernel = jax.vmap(
        lambda x, eps: _jitted("gram_newton_schulz", jnp.float16)(x, eps=eps)
    )
    q = np.asarray(kernel(np.float32(x), eps), np.float64)
    want = exact(x, shrink)
    error = np.linalg.norm(q - want, axis=(-2, -1))
    assert (error / np.linalg.norm(want, axis=(-2, -1))).max() < ROUNDED
