"""Sums of transformations, and a connective inside every other, against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _connectives import CONNECTIVES
from _matrices import gaussian, polar

import optax_matrix as om

add, with_gradient = om.transforms.add, om.transforms.with_gradient
x64 = pytest.mark.usefixtures("x64")
SHAPE, STEPS = (2, 3, 4), 3
STREAM = [gaussian(*SHAPE, seed=k) for k in range(STEPS)]
GRADIENTS = [gaussian(*SHAPE, seed=10 + k) for k in range(STEPS)]


def run(tx, stream=STREAM, gradients=()):
    """The last update, as one program, and the state after it."""
    tx = optax.with_extra_args_support(tx)

    @jax.jit
    def steps(stream, gradients):
        state = tx.init({"w": stream[0]})
        for x, *g in zip(stream, *gradients, strict=True):
            extra = {"gradient": {"w": g[0]}} if g else {}
            new, state = tx.update({"w": x}, state, {"w": 0 * x}, **extra)
        return new["w"], state

    return jax.device_get(steps(stream, gradients))


def average(stream, decay):
    m = 0.0
    for g in stream:
        m = decay * m + (1 - decay) * g
    return m


def averages(stream, decay):
    return [average(stream[: k + 1], decay) for k in range(len(stream))]


@x64
def test_a_sum_of_momenta_with_a_number_and_a_schedule():
    rate = lambda count: 0.5 - count
    got, state = run(add(om.momentum(0.9), om.momentum(0.5), weights=(-2.0, rate)))
    want = -2 * average(STREAM, 0.9) + (0.5 - 2) * average(STREAM, 0.5)
    np.testing.assert_allclose(got, want, rtol=1e-12)
    assert int(state.count) == STEPS


@x64
def test_lion_is_a_sum_and_a_sign():
    b1, b2 = 0.9, 0.99
    blend = add(om.momentum(b2), optax.identity(), weights=(b1 / b2, 1 - b1 / b2))
    got, _ = run(optax.chain(blend, optax.scale_by_sign()))
    want, _ = run(optax.scale_by_lion(b1, b2))
    np.testing.assert_array_equal(got, want)


def _by_norms(x, s, gradient, _):
    s = s + jnp.sum(gradient**2, (-2, -1), keepdims=True)
    return x / s, s


def _by_norms_64(xs, gs):
    sizes = np.cumsum([np.sum(g**2, (-2, -1), keepdims=True) for g in gs], axis=0)
    return [x / size for x, size in zip(xs, sizes, strict=True)]


MOMENTUM = om.momentum(0.8), lambda xs, _: averages(xs, 0.8)
NUMBER = om.transforms.with_state(_by_norms), _by_norms_64
POLAR = om.orthogonalize(om.linalg.polar_svd), lambda xs, _: [polar(x) for x in xs]


@x64
@pytest.mark.broad
@pytest.mark.parametrize("outer", CONNECTIVES)
@pytest.mark.parametrize("inner", CONNECTIVES)
def test_every_connective_inside_every_other(outer, inner):
    inside = CONNECTIVES[inner](MOMENTUM, NUMBER)
    tx, restated = CONNECTIVES[outer](inside, POLAR if inner == "add" else MOMENTUM)
    got, _ = run(tx, STREAM, (GRADIENTS,))
    np.testing.assert_allclose(got, restated(STREAM, GRADIENTS)[-1], rtol=1e-9)


def test_parts_keep_their_own_dtypes_and_the_sum_has_the_widest():
    x = [np.asarray(STREAM[0], jnp.bfloat16)]
    sign = optax.scale_by_sign()
    assert run(add(sign, sign), x)[0].dtype == jnp.bfloat16
    assert run(add(sign, om.momentum(0.9)), x)[0].dtype == jnp.float32
    # 256 + 1 - 256 is zero in bfloat16.
    tx = add(optax.scale(256.0), optax.identity(), optax.scale(-256.0))
    assert run(tx, [np.ones((1, 1, 1), jnp.bfloat16)])[0] == 1.0


@pytest.mark.broad
def test_an_injected_weight_is_traced():
    def blend(weight: float):
        parts = optax.identity(), om.momentum(0.5)
        return om.on_matrices(add(*parts, weights=(1.0, weight)))

    want = STREAM[-1] + 3 * average(STREAM, 0.5)
    tx = om.inject_hyperparams(blend)(optax.linear_schedule(1.0, 3.0, STEPS - 1))
    got, _ = run(tx)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (add, "`parts` must be at least one transformation"),
        (lambda: add(om.momentum), r"`parts\[0\]` must be a gradient transformation"),
        (lambda: add(optax.identity(), weights=(1, 2)), "each of the 1 parts"),
        (lambda: add(optax.identity(), weights=2.0), "each of the 1 parts"),
        (
            lambda: add(optax.identity(), weights=(float("inf"),)),
            r"`weights\[0\]` must be finite, got inf",
        ),
        (
            lambda: add(optax.identity(), weights=("1",)),
            r"`weights\[0\]` must be a number and must be no NaN, got '1'",
        ),
        (
            lambda: add(optax.identity(), weights=(lambda a, b: a + b,)),
            r"`weights\[0\]` must be a number or a function from the count",
        ),
    ],
)
def test_wrong_arguments_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
