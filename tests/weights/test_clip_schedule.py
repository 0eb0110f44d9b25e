"""The threshold after a merge, against the authors' arithmetic, and in a chain."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from optax_matrix.weights import clip_after_merge


def _authors(step, interval, clip, warm_up=2000):
    """Threshold at a 0-based step; `pos` counts from each merge."""
    if step < interval or step >= warm_up:
        return clip
    pos = step - step // interval * interval
    return clip * (0.1 + 0.9 * pos / 10) if pos < 10 else clip


@pytest.mark.parametrize("interval", [25, 400])
def test_it_is_the_authors_ramp(interval):
    steps = np.arange(2 * interval + 2050)
    want = [_authors(step, interval, 0.1) for step in steps]
    got = clip_after_merge(0.1, interval)(jnp.asarray(steps))
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_it_clips_in_a_chain():
    clip = clip_after_merge(1.0, 3, ramp=2, start=0.5, until=None)
    tx = optax.inject_hyperparams(optax.clip_by_global_norm)(max_norm=clip)
    grads, norms = {"q": jnp.array([30.0, 40.0])}, []
    state = tx.init(grads)
    for _ in range(8):
        updates, state = tx.update(grads, state)
        norms.append(float(jnp.linalg.norm(updates["q"])))
    want = [1, 1, 1, 0.5, 0.75, 1, 0.5, 0.75]
    np.testing.assert_allclose(norms, want, rtol=1e-6)


@pytest.mark.parametrize("name", ["max_norm", "merge_interval", "ramp", "start"])
def test_it_refuses(name):
    with pytest.raises(ValueError, match=f"`{name}` must"):
        clip_after_merge(**({"max_norm": 1.0} | {name: 0}))
