"""State in host memory: it is there after every step, and training is the same."""

import jax
import numpy as np
import pytest

from examples import offload


@pytest.mark.skipif(
    jax.__version_info__ < (0, 10),
    reason="before JAX 0.10 CPU devices of a mesh have no memory of the host",
)
@pytest.mark.broad
def test_offloaded_training_is_the_same():
    losses, state = offload.main(3)
    plain, on_device = offload.main(3, memory="device")
    np.testing.assert_allclose(losses, plain, rtol=1e-6)
    assert losses[-1] < losses[0]
    total = sum(x.nbytes for x in jax.tree.leaves(state))
    held = offload.bytes_by_memory(state)
    assert held.keys() == {"pinned_host"}
    assert offload.bytes_by_memory(on_device) == {"device": held["pinned_host"]}
    assert held["pinned_host"] >= total > 0
