"""Options of kernels are checked once, where a block is made."""

import functools
import pickle
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _matrices import gaussian

import optax_matrix as om
from optax_matrix._arguments import unchecked
from optax_matrix.linalg import cholesky_qr, newton_schulz, sinkhorn

W = {"w": jnp.asarray(gaussian(2, 3, 5), jnp.float32)}


def test_wrong_options_of_a_kernel_fail_in_the_factory():
    with pytest.raises(ValueError, match="`rounds` must be a positive int, got 0"):
        om.equilibrate(partial(sinkhorn, rounds=0))
    with pytest.raises(TypeError, match=r"sinkhorn\(\) .*'round'.*`rounds`"):
        om.equilibrate(partial(sinkhorn, round=3))


def test_a_block_computes_what_its_kernel_does():
    tx = om.equilibrate(partial(sinkhorn, rounds=2))
    got, _ = jax.jit(tx.update)(W, tx.init(W))
    want = jax.jit(partial(sinkhorn, rounds=2))(W["w"])
    np.testing.assert_array_equal(got["w"], want)


@functools.wraps(sinkhorn)
def with_fewer_rounds(x):
    return sinkhorn(x, rounds=1)


@pytest.mark.parametrize(
    "f",
    [
        *(newton_schulz, jnp.sign, partial(newton_schulz, steps=3), "polar_svd", None),
        *(with_fewer_rounds, jax.jit(sinkhorn), partial(with_fewer_rounds)),
    ],
)
def test_functions_without_a_check_stay_as_they_are(f):
    assert unchecked(f) is f


def test_the_public_kernel_still_checks():
    assert unchecked(cholesky_qr) is not cholesky_qr
    assert pickle.loads(pickle.dumps(cholesky_qr)) is cholesky_qr
    with pytest.raises(ValueError, match="`passes` must be"):
        cholesky_qr(jnp.asarray(np.eye(3, dtype=np.float32)), passes=0)
