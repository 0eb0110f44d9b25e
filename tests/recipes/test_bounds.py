"""Bounds of updates that their docstrings state; those of RACS are in test_racs.py."""

import functools

import jax
import numpy as np
import pytest

import optax_matrix as om

M, N, RANK, LEADING = 6, 9, 3, 1


@functools.partial(jax.jit, static_argnums=0)
def path(tx, stream):
    """Updates of one Flax kernel, (in, out)."""
    start = tx.init({"kernel": stream[0]})
    step = lambda state, g: tx.update({"kernel": g}, state)[::-1]
    return jax.lax.scan(step, start, stream)[1]["kernel"]


def test_singular_values_of_swan_are_bounded():
    """By 1.21 times 0.2 sqrt(max(m, n)); the polynomial's largest value is 1.203."""
    rng = np.random.default_rng(0)
    usual = rng.standard_normal((5, 9, 6))
    usual[1] = np.outer(usual[1, :, 0], usual[1, 0])
    usual[2, 4, 3] = 1e6
    usual[3, :, :5] = 1.0
    usual[4] *= 1e-20
    updates = np.float64(path(om.scale_by_swan(), np.float32(usual)))
    values = np.linalg.svd(updates, compute_uv=False) / (0.2 * 9**0.5)
    assert values.max() < 1.21
    assert (values[:, 0] > 0.6).all()


@pytest.mark.slow
def test_carried_moments_do_not_exceed_adams():
    """Gradients of rank two in one plane, and a tiny one of full rank at a renewal.

    That leaves a second moment of 1e-40 where the transport puts momenta. No entry may
    be larger than the 1 / sqrt(1 - b2) of a gradient.
    """
    rng = np.random.default_rng(0)
    stream = rng.standard_normal((M, 2)) @ rng.standard_normal((7, 2, N))
    stream[4:6] = 1e-20 * rng.standard_normal((2, M, N))
    stream = np.float32(np.swapaxes(stream, -1, -2))
    options = {"rank": RANK, "update_interval": 5, "transport": "carry", "scale": 1.0}
    alice = om.scale_by_alice_0(leading=2, compensation=None, **options)
    for tx, largest in ((alice, 10**0.5), (om.scale_by_galore(**options), 1e3**0.5)):
        # r orthonormal columns, times coordinates within the bound.
        u = np.float64(path(tx, stream))
        assert np.linalg.norm(u, axis=-1).max() <= largest * RANK**0.5 * (1 + 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["keep", "carry"])
def test_no_column_of_alice_exceeds_its_bound(transport):
    """Of spikes, tiny gradients, and blocks that decouple or nearly do."""
    rng = np.random.default_rng(0)
    usual = rng.standard_normal((8, M, N))
    spike, tiny = usual.copy(), usual.copy()
    spike[4] *= 1e4
    tiny[[0, 4]] *= 1e-20
    blocks = np.kron(np.diag([1.0, 0.01]), np.ones((M // 2, 1)))[:, [0] * 5 + [1] * 4]
    streams = [usual, spike, tiny, usual * blocks, usual * np.maximum(blocks, 1e-5)]
    streams = np.float32(np.swapaxes(np.stack(streams), -1, -2))
    options = {"update_interval": 4, "transport": transport}
    tx = om.scale_by_alice(rank=RANK, leading=LEADING, **options)

    norms = np.linalg.norm(
        jax.jit(jax.vmap(functools.partial(path, tx)))(streams), axis=-1
    )
    largest = 1.0 if transport == "keep" else 10**0.5
    bound = 0.3 * (RANK**0.5 * largest + 0.4 * ((M - RANK) / (1 - 0.9)) ** 0.5)
    assert norms.max() <= bound * (1 + 1e-5)
    assert norms.max() > 0.3 * bound  # It is not far away.
