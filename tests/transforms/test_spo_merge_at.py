"""`merge_at` of `spo`: a matrix whose Q grows large is merged by itself."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _identities import identified
from _matrices import gaussian, ones, zeros
from _reference import poet as ref
from _steps import first_update

import optax_matrix as om
from optax_matrix.linalg import cayley_neumann
from optax_matrix.linalg.permuted_blocks import draw_permutations
from optax_matrix.transforms import limit_skew_norm, scale_by_adam_per_matrix
from optax_matrix.transforms.stochastic_primitives.merges import reset_moments

IDS = {"w": np.array([[7, 0], [7, 1]], np.uint32)}


def identified_spo(*args, **options):
    return identified(om.spo(*args, **options), IDS)


SHAPE, STEPS, LR, AT = (2, 7, 10), 12, 0.05, 0.4


def inner(decay=0.0):
    return optax.chain(
        scale_by_adam_per_matrix(eps=1e-6),
        optax.add_decayed_weights(decay),
        optax.scale(-LR),
    )


def run(tx, w, noises, slope=0.1):
    """Weights and state after each step of a descent to zero, with noise."""

    @jax.jit
    def scan(w, noises):
        def body(carry, noise):
            w, state = carry
            updates, state = tx.update({"w": slope * w["w"] + noise}, state, w)
            return (optax.apply_updates(w, updates), state), (w, state)

        return jax.lax.scan(body, (w, tx.init(w)), noises)

    (w, _), (path, states) = scan({"w": w}, noises)
    return np.concatenate([path["w"][1:], w["w"][None]]), states


def noises(steps=STEPS):
    """The second matrix has ten times the gradients, but for half of the time."""
    scale = np.where(np.arange(steps) < steps // 2, 1.0, 1e-3)
    noise = gaussian(1, *SHAPE, seed=2) + 0.5 * gaussian(steps, *SHAPE, seed=3)
    noise[:, 1] *= scale[:, None, None]
    return noise


@pytest.mark.daily("stored")
@pytest.mark.broad
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("options", "decay"),
    [
        ({"variant": "block", "block": 4}, 0.0),
        ({"variant": "block", "block": 4, "hold": "recovered"}, 0.3),
        pytest.param({"variant": "full", "block": 0.6}, 0.0, marks=pytest.mark.slow),
    ],
    ids=["stored", "recovered and decay", "full"],
)
def test_each_matrix_is_merged_when_its_own_q_is_large(options, decay):
    """Every matrix of the stack follows the restatement that knows it alone."""
    kernel = {"orthogonal": cayley_neumann}
    tx = identified_spo(
        inner(decay), merge_interval=7, merge_at=AT, **kernel, **options
    )
    w, noise, found = gaussian(*SHAPE, seed=1), noises(), []
    path, states = run(tx, jnp.asarray(w), jnp.asarray(noise))
    size = options["block"]
    for i in range(2):
        draw = lambda side, merges, i=i: np.asarray(
            draw_permutations(
                IDS["w"][i],
                {"out": SHAPE[1], "in": SHAPE[2]}[side],
                *(0, ("out", "in").index(side), merges),
            )
        )
        want, merges = ref.poet(
            w[i].T,
            lambda w, t, i=i: 0.1 * w + noise[t, i].T,
            draw,
            STEPS,
            lambda n: int(size * n) if isinstance(size, float) else min(size, n),
            lr=LR,
            interval=7,
            k=4,
            full=options["variant"] == "full",
            sides=("in", "out"),
            reset=True,
            merge_at=AT,
            decay=decay,
        )
        np.testing.assert_allclose(path[:, i].swapaxes(-1, -2), want, atol=1e-9)
        counted = np.asarray(states.merges["w"][:, i])
        np.testing.assert_array_equal(counted, np.cumsum(np.isin(range(STEPS), merges)))
        found.append(merges)
    # Both are merged after the seventh step, and each at other times besides.
    assert all(6 in merges and len(merges) > 1 for merges in found)
    assert found[0] != found[1]


@pytest.mark.slow
def test_it_turns_as_far_as_it_likes_and_keeps_singular_values():
    """A steady pull by more than the bound allows between two merges."""
    target = np.linalg.qr(gaussian(6, 6, seed=4))[0]
    target[:, 0] *= np.linalg.det(target)
    left, values = {}, {}
    for at in (None, 0.5):
        chain = optax.chain(inner(), limit_skew_norm(0.5))
        options = {"block": 6, "sides": "in", "orthogonal": cayley_neumann}
        tx = om.spo(chain, merge_interval=None, merge_at=at, **options)

        def step(carry, _, tx=tx):
            w, state = carry
            updates, state = tx.update({"w": w["w"] - target}, state, w)
            return (optax.apply_updates(w, updates), state), None

        w = {"w": jnp.eye(6)[None]}
        scan = jax.jit(lambda s, step=step: jax.lax.scan(step, s, length=400)[0])
        (w, state) = scan((w, tx.init(w)))
        left[at] = np.linalg.norm(w["w"][0] - target)
        values[at] = np.linalg.svd(np.float64(w["w"][0]))[1]
    assert int(state.merges["w"][0]) > 2
    assert left[0.5] < 0.2 < 0.5 < left[None]  # Adam's steps of 0.05 go on.
    # Each merge is off by at most 0.5^10 / 2 on one side.
    assert (
        np.abs(values[0.5] - 1).max() < int(state.merges["w"][0]) * 0.5**10 / 2 + 1e-5
    )


@pytest.mark.slow
@pytest.mark.parametrize("own_count", [True, False])
def test_moments_are_reset_for_the_merged_matrix_only(own_count):
    adam = scale_by_adam_per_matrix() if own_count else optax.scale_by_adam()
    chain = optax.chain(adam, optax.scale_by_schedule(lambda _: -LR))
    tx = identified_spo(chain, block=4, merge_interval=None, merge_at=AT)
    w, noise = jnp.float32(gaussian(*SHAPE, seed=1)), jnp.float32(noises())
    noise = noise.at[:, 1].set(0)
    _, states = run(tx, w, noise, slope=0.0)
    merges = np.asarray(states.merges["w"])
    assert merges[-1, 0] > 0 == merges[-1, 1]
    last = int(np.flatnonzero(np.diff(merges[:, 0]))[-1]) + 1
    adam, schedule = jax.tree.map(lambda x: x[last], states.inner_state)
    assert int(schedule.count) == last + 1
    moment = np.abs(adam.nu["w"]["in"][0]).max()
    assert (moment == 0) == own_count
    if own_count:
        weights = adam.nu_weight["w"]["in"][:, 0, 0]
        np.testing.assert_allclose(weights, [0, 1 - 0.999 ** (last + 1)], rtol=1e-3)
    assert not states.q["w"]["in"][last, 0].any()


@pytest.mark.slow
def test_a_matrix_without_gradients_and_nan_are_never_merged():
    tx = identified_spo(inner(), block=4, merge_interval=None, merge_at=AT)
    noise = zeros(3, *SHAPE)
    noise[:, 0] = np.nan
    _, states = run(tx, jnp.float32(gaussian(*SHAPE, seed=1)), jnp.asarray(noise))
    assert not states.merges["w"].any()


@pytest.mark.broad
def test_adam_per_matrix_is_adam():
    q = {"w": {"in": np.float32(gaussian(2, 3, 6)), "out": zeros(2, 1, 3)}}
    txs = (
        scale_by_adam_per_matrix(0.8, 0.99, 1e-3),
        optax.scale_by_adam(0.8, 0.99, 1e-3),
    )
    states = [tx.init(q) for tx in txs]
    for _ in range(3):
        outs = [tx.update(q, s) for tx, s in zip(txs, states, strict=True)]
        states = [s for _, s in outs]
        q = jax.tree.map(jnp.sin, q)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5), outs[0][0], outs[1][0])
    half = scale_by_adam_per_matrix(mu_dtype=jnp.bfloat16).init(q)
    assert half.mu["w"]["in"].dtype == jnp.bfloat16


@pytest.mark.parametrize(
    "block", [scale_by_adam_per_matrix, om.transforms.scale_by_amsgrad]
)
def test_half_precision_trees_keep_their_dtype_and_move_by_adams_steps(block):
    """In bfloat16 the decay rate 0.999 would round to 1, and divide by zero."""
    q = {"w": np.asarray(gaussian(2, 3, 6), jnp.bfloat16)}
    tx = block()
    out, state = first_update(tx, q)
    update = jax.jit(tx.update)
    for _ in range(2):
        out, state = update(q, state)
    assert out["w"].dtype == jnp.bfloat16
    np.testing.assert_allclose(out["w"], np.sign(q["w"]), rtol=2**-7)
    assert state.mu["w"].dtype == jnp.bfloat16
    seconds = state[2:] if hasattr(state, "nu") else state[2:4]
    assert {x.dtype for x in jax.tree.leaves(seconds)} == {jnp.dtype("float32")}


def test_one_count_for_all_matrices_is_reset_with_the_interval_only():
    """A device may hold merged matrices alone, while others are not merged."""
    inner = optax.adam(LR)
    q = {"w": {"in": ones(1, 2, 6)}}
    fresh = jax.jit(inner.init)(q)
    _, state = first_update(inner, q)
    due = {"w": {"in": np.ones((1,), bool)}}
    for every, count in ((False, 1), (jnp.array(True), 0)):
        adam = jax.jit(partial(reset_moments, every=every))(fresh, state, due)[0]
        assert int(adam.count) == count
        assert np.any(adam.nu["w"]["in"]) == (count == 1)


def test_a_norm_that_the_bound_keeps_q_from_is_refused():
    message = r"`merge_at` must not exceed `max_norm` \(0.5 here\), got 0.6"
    with pytest.raises(ValueError, match=message):
        om.poet(1e-3, terms=4, merge_at=0.6)
    with pytest.raises(ValueError, match=message):
        om.reparameterize(merge_at=0.6).optimizer(
            optax.sgd(1.0), optax.sgd(1.0), max_norm=0.5
        )
    om.poet(1e-3, terms=4, merge_at=0.5)
    om.poet(1e-3, merge_at=0.6)


@pytest.mark.parametrize("value", [0.0, -1, "always"])
def test_wrong_arguments_are_refused(value):
    with pytest.raises(ValueError, match="`merge_at` must be"):
        om.spo(optax.sgd(1.0), merge_at=value)
