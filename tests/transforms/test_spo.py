"""`spo`: trajectories, gradients, edits from outside, precision, merges."""

import math
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _identities import identified
from _matrices import gaussian, ones, orthonormal
from _reference import poet as ref

import optax_matrix as om
from optax_matrix.linalg import cayley, cayley_neumann, to_skew
from optax_matrix.linalg.permuted_blocks import draw_permutations, materialize
from optax_matrix.transforms.stochastic_primitives.merges import reset_moments
from optax_matrix.transforms.stochastic_primitives.primitives import Primitives

IDS = {"w": np.array([[7, 0], [7, 1]], np.uint32)}


def identified_spo(*args, **options):
    return identified(om.spo(*args, **options), IDS)


SHAPE = (2, 7, 10)  # (count, out, in): blocks of 4 leave a remainder on both sides
ADAM = partial(optax.adam, eps=1e-6)
SIDES = {"both": ("in", "out"), "in": ("in",), "out": ("out",)}


def start(dtype=jnp.float32, shape=SHAPE):
    return {"w": np.asarray(gaussian(*shape, seed=1), dtype)}


def noise(steps, shape=SHAPE):
    return gaussian(steps, *shape, seed=2)


def run(tx, params, noises, state=None, slope=0.1, edit=lambda w: w):
    """Parameters and state after each step, in one compiled scan."""

    @jax.jit
    def scan(params, state, noises):
        def body(carry, noise_t):
            params, state = carry
            grads = {"w": (slope * params["w"] + noise_t).astype(params["w"].dtype)}
            updates, state = tx.update(grads, state, params)
            params = {"w": edit(optax.apply_updates(params, updates)["w"])}
            return (params, state), (params["w"], state)

        return jax.lax.scan(body, (params, state), noises)

    state = tx.init(params) if state is None else state
    (params, state), (path, states) = scan(params, state, jnp.asarray(noises))
    return path, states, (params, state)


def singular_values(w):
    return np.linalg.svd(np.asarray(w, np.float64), compute_uv=False)


CASES = {
    "block": {"variant": "block", "block": 4},
    "full": {"variant": "full", "block": 0.5},
    "in": {"variant": "block", "block": 4, "sides": "in", "reset": "none"},
    "k=2": {"variant": "full", "block": 3, "sides": "out"},
}


@pytest.mark.daily("full-stored", "block-recovered")
@pytest.mark.broad
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("case", "hold"),
    [
        ("block", "stored"),
        ("full", "stored"),
        ("block", "recovered"),
        pytest.param("in", "stored", marks=pytest.mark.slow),
        pytest.param("k=2", "stored", marks=pytest.mark.slow),
    ],
)
def test_trajectory_is_the_papers(case, hold):
    options = CASES[case]
    k = 2 if case == "k=2" else 4
    map_ = partial(cayley_neumann, terms=k)
    tx = identified_spo(
        ADAM(0.02), **options, orthogonal=map_, hold=hold, merge_interval=4
    )
    params, noises = start(jnp.float64), noise(10)
    path, _, _ = run(tx, params, noises)
    full, size = options["variant"] == "full", options["block"]
    for i in range(2):
        want, _ = ref.poet(
            np.asarray(params["w"][i]).T,
            lambda w, t, i=i: 0.1 * w + noises[t, i].T,
            lambda side, merges, i=i: np.asarray(
                draw_permutations(
                    IDS["w"][i],
                    {"out": SHAPE[1], "in": SHAPE[2]}[side],
                    *(0, ("out", "in").index(side), merges),
                )
            ),
            len(noises),
            lambda n: int(size * n) if isinstance(size, float) else min(size, n),
            lr=0.02,
            interval=4,
            k=k,
            full=full,
            sides=SIDES[options.get("sides", "both")],
            reset=options.get("reset") != "none",
        )
        # Float64; Adam divides by roots of small second moments.
        np.testing.assert_allclose(path[:, i].mT, want, atol=1e-9)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_gradients_of_q_are_those_through_materialize():
    tx = identified_spo(optax.sgd(1.0), block=4, orthogonal=cayley_neumann)
    frame = start(jnp.float64)
    state = tx.init(frame)
    q = {
        side: 0.1 * jnp.asarray(gaussian(*x.shape, seed=i))
        for i, (side, x) in enumerate(state.q["w"].items())
    }
    q["in"] = q["in"].at[:, -1, 1:].set(0)  # Beyond the remainder of 2.
    q["out"] = q["out"].at[:, -1, jnp.array([2, 4, 5])].set(0)  # Of 3.
    primitives = Primitives({"out": 4, "in": 4}, "block", cayley_neumann, 0)
    perms = state.perms["w"]
    weights = lambda q: materialize(
        state.frame["w"], primitives.blocks(q, frame["w"]), perms
    )
    loss = lambda w: jnp.sum(jnp.sin(w) * jnp.arange(10))
    want = jax.jit(jax.grad(lambda q: loss(weights(q))))(q)

    w = {"w": weights(q)}
    # The fingerprint is not of these parameters: they count as edited, by nothing.
    _, new = jax.jit(tx.update)(
        jax.grad(lambda w: loss(w["w"]))(w), state._replace(q={"w": q}), w
    )
    np.testing.assert_allclose(new.frame["w"], state.frame["w"], atol=1e-12)
    for side, x in want.items():
        assert float(jnp.abs(x).max()) > 0.1
        np.testing.assert_allclose(q[side] - new.q["w"][side], x, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_applied_updates_are_no_edits(dtype):
    """Bit for bit: rounding of the update and of its sum is foreseen."""
    tx = identified_spo(ADAM(0.02), block=4, merge_interval=None)
    params = start(dtype)
    _, states, _ = run(tx, params, noise(30))
    first = tx.init(params).frame["w"]
    assert first.dtype == jnp.float32
    np.testing.assert_array_equal(states.frame["w"], np.stack([first] * 30))
    assert float(jnp.abs(states.q["w"]["in"][-1]).max()) > 0.1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hold", "dtype"),
    [
        ("stored", jnp.float32),
        ("stored", jnp.bfloat16),
        pytest.param("recovered", jnp.float32, marks=pytest.mark.slow),
        pytest.param("recovered", jnp.bfloat16, marks=pytest.mark.slow),
    ],
)
def test_an_edit_is_folded_into_the_frame_and_not_undone(dtype, hold):
    tx = identified_spo(ADAM(0.02), block=4, merge_interval=None, hold=hold)
    _, _, (params, state) = run(tx, start(dtype), noise(8))
    edit = jnp.asarray(gaussian(*SHAPE[1:], seed=5), dtype)
    edited = {"w": params["w"].at[1].add(edit)}
    zero = jax.tree.map(jnp.zeros_like, edited)
    still = identified_spo(optax.set_to_zero(), block=4, merge_interval=None, hold=hold)
    state = state._replace(inner_state=still.init(params).inner_state)
    updates, new = jax.jit(still.update)(zero, state, edited)
    # To rounding of W, or of an R that is not quite orthogonal at worst.
    atol = 4 * float(jnp.finfo(jnp.float32).eps) * 8
    half_ulp = np.abs(np.asarray(edited["w"], np.float32)) * jnp.finfo(dtype).eps
    left = np.abs(np.asarray(updates["w"], np.float32))
    assert (left <= atol + (half_ulp if dtype == jnp.bfloat16 else 0)).all()
    jax.tree.map(np.testing.assert_array_equal, new.q, state.q)
    if hold == "stored":
        np.testing.assert_array_equal(new.frame["w"][0], state.frame["w"][0])
        assert not np.allclose(new.frame["w"][1], state.frame["w"][1], atol=0.1)


@pytest.mark.slow
def test_weight_decay_after_it_shrinks_all_singular_values():
    spo = identified_spo(ADAM(0.01), block=4, merge_interval=5)
    tx = optax.chain(spo, optax.add_decayed_weights(-0.01))
    params = start()
    path, _, _ = run(tx, params, noise(20))
    want = 0.99**20 * singular_values(params["w"])
    # What decays is W before the step, which is turned against it by some 0.03: the
    # singular values of W' - 0.01 W are 1 - 0.01 cos(0.03) of what they were.
    np.testing.assert_allclose(singular_values(path[-1]), want, rtol=5e-4)


def flip(w):
    return w.at[:, 0, 0].multiply(-1)


@pytest.mark.slow
@pytest.mark.parametrize("edit", [lambda w: w, flip], ids=["no edit", "edits"])
def test_bfloat16_moves_where_single_updates_round_to_nothing(edit):
    """Also where something else happens to another entry at every step."""
    steps, lr = 60, 1e-4
    train = lambda *args: np.asarray(
        run(*args, slope=0, edit=edit)[0][-1].astype(jnp.float32)
    )
    drift = np.broadcast_to(gaussian(*SHAPE, seed=3), (steps, *SHAPE))
    make = partial(identified_spo, ADAM(lr), block=4, merge_interval=25)
    coarse = start(jnp.bfloat16)
    fine = jax.tree.map(lambda x: x.astype(jnp.float32), coarse)
    want, got = train(make(), fine, drift), train(make(), coarse, drift)
    first = np.asarray(fine["w"])
    ulp = np.abs(want) * jnp.finfo(jnp.bfloat16).eps
    assert (np.abs(want - first) > ulp).mean() > 0.2
    # Half an ulp of rounding, and what rounded gradients make of the way here.
    other_way = 0.01 * np.abs(want - first).max()
    assert (np.abs(got - want) <= 0.5 * ulp + other_way).all()
    stuck = train(make(hold="recovered"), coarse, drift)
    assert np.linalg.norm(stuck - want) > 3 * np.linalg.norm(got - want)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_without_p_it_is_oft():
    """R alone, and R and P with a P that is never moved."""

    def keep_out(updates, params):
        del params
        return {n: {**x, "out": 0 * x["out"]} for n, x in updates.items()}

    frozen = optax.chain(ADAM(0.02), optax.stateless(keep_out))
    options = {"block": 4, "merge_interval": 4}
    params = start(jnp.float64)
    oft, _, _ = run(
        identified_spo(ADAM(0.02), sides="in", **options), params, noise(10)
    )
    poet, _, _ = run(identified_spo(frozen, **options), params, noise(10))
    np.testing.assert_allclose(poet, oft, atol=1e-12)
    # Angles between neurons, the rows, stay: but for k = 4, at |Q| < 0.3.
    gram = lambda w: np.asarray(w @ w.mT)
    np.testing.assert_allclose(gram(oft[-1]), gram(params["w"]), atol=1e-4)
    assert float(jnp.abs(oft[-1] - params["w"]).max()) > 0.3


@pytest.mark.slow
def test_products_of_primitives_reach_any_rotation():
    """Lemma 1, by descent on |W - T|^2 from the identity."""
    target = orthonormal(5, 5, seed=3)
    target[:, 0] *= np.linalg.det(target)
    tx = om.spo(
        optax.sgd(0.2),
        variant="full",
        block=3,
        sides="in",
        merge_interval=5,
        orthogonal=cayley,
    )
    steps = np.broadcast_to(-target, (600, 1, 5, 5))
    path, _, _ = run(tx, {"w": jnp.eye(5)[None]}, steps, slope=1.0)
    assert np.linalg.norm(np.eye(5) - target) > 2
    np.testing.assert_allclose(path[-1][0], target, atol=1e-3)


def spectral_norms(q, b):
    q = to_skew(q, b)
    return jnp.sqrt(jnp.max(jnp.sum(q * q, axis=(-2, -1)))) / np.sqrt(2)


@pytest.mark.slow
def test_singular_values_stay_within_the_bound_of_the_map():
    """sqrt(1 + s^10) for each side and merge, at the largest |Q| before it."""
    steps, interval = 60, 12
    options = {"block": 4, "orthogonal": cayley_neumann}
    tx = identified_spo(ADAM(0.01), merge_interval=interval, **options)
    params = start()
    path, states, _ = run(tx, params, noise(steps), slope=1.0)
    # All but those of merges, where Q is set to zero; |Q|_2 <= |Q|_F / sqrt(2).
    s = max(float(spectral_norms(x, 4)) for x in states.q["w"].values())
    s = s * interval / (interval - 1) + 0.01
    bound = (steps / interval) * s**10 + 50 * float(jnp.finfo(jnp.float32).eps)
    assert bound < 0.01
    ratio = singular_values(path[-1]) / singular_values(params["w"])
    assert np.abs(ratio - 1).max() < bound
    assert float(jnp.abs(path[-1] - params["w"]).max()) > 0.5


@pytest.mark.broad
def test_merge_resets_moments_and_goes_on_with_schedules():
    schedule = optax.linear_schedule(0.02, 0.0, 20)
    params, noises = start(), noise(6)
    for reset, adam_count in (("moments", 2), ("none", 6)):
        tx = identified_spo(ADAM(schedule), block=4, merge_interval=4, reset=reset)
        _, states, (_, state) = run(tx, params, noises)
        adam, by_schedule = state.inner_state
        assert int(adam.count) == adam_count
        assert int(by_schedule.count) == 6
        after_merge = jax.tree.map(lambda x: x[3], states)
        assert not any(x.any() for x in jax.tree.leaves(after_merge.q))
        moments = jax.tree.leaves(after_merge.inner_state[0].nu)
        assert any(bool(x.any()) for x in moments) == (reset == "none")


@pytest.mark.broad
def test_a_reset_in_a_list_leaves_the_count_of_a_schedule_alone():
    inner = ADAM(optax.linear_schedule(0.02, 0.0, 20))
    q = [{"in": ones(1, 3)}, {"in": ones(1, 3)}]
    fresh = inner.init(q)
    _, state = inner.update(q, fresh)
    due = [{"in": np.ones((1,), bool)}] * 2
    adam, schedule = reset_moments(fresh, state, due, True)
    assert not any(x.any() for x in jax.tree.leaves(adam))
    assert int(schedule.count) == 1


@pytest.mark.slow
def test_draws_differ_between_matrices_sides_and_merges():
    tx = identified_spo(ADAM(0.02), block=4, merge_interval=2)
    _, states, _ = run(tx, start(shape=(2, 8, 8)), noise(4, (2, 8, 8)))
    perms = {side: np.asarray(x) for side, x in states.perms["w"].items()}
    np.testing.assert_array_equal(np.sort(perms["in"][2]), [np.arange(8)] * 2)
    assert (perms["in"][0] == perms["in"][2]).all() is np.False_
    np.testing.assert_array_equal(perms["in"][1], perms["in"][2])
    assert (perms["in"][0, 0] != perms["in"][0, 1]).any()
    assert (perms["in"][0, 0] != perms["out"][0, 0]).any()
    seeded = identified_spo(ADAM(0.02), block=4, seed=1).init(start(shape=(2, 8, 8)))
    assert (seeded.perms["w"]["in"] != perms["in"][0]).any()


@pytest.mark.broad
def test_what_sticks_out_of_a_side_does_not_act_whatever_inner_does():
    push = optax.stateless(lambda u, _: jax.tree.map(lambda x: 0.1 + 0 * x, u))
    tx = om.spo(push, block=4, orthogonal=cayley)
    params = start()
    updates, _ = jax.jit(tx.update)(params, tx.init(params), params)
    got = singular_values(params["w"] + updates["w"])
    np.testing.assert_allclose(got, singular_values(params["w"]), rtol=1e-5)
    assert float(jnp.abs(updates["w"]).max()) > 0.1


@pytest.mark.broad
def test_blocks_may_differ_between_the_sides():
    block = {"in": 0.5, "out": np.int64(3)}
    tx = om.spo(ADAM(0.02), variant="full", block=block)
    q = tx.init(start()).q["w"]
    assert (q["in"].shape, q["out"].shape) == ((2, 1, 10), (2, 1, 3))


@pytest.mark.broad
@pytest.mark.parametrize("hold", ["stored", "recovered"])
def test_no_matrix_of_a_whole_side_is_formed(hold):
    m, n = 95, 87
    tx = om.spo(ADAM(0.02), block=8, hold=hold, merge_interval=2)
    params = {"w": jax.ShapeDtypeStruct((2, m, n), jnp.float32)}
    state = jax.eval_shape(tx.init, params)
    jaxpr = str(jax.make_jaxpr(tx.update)(params, state, params))
    shapes = re.findall(r"[fiu]\d+\[([\d,]+)\]", jaxpr)
    assert f"2,{m},{n}" in shapes
    assert not [s for s in shapes if f"{m},{m}" in s or f"{n},{n}" in s]
    filled = 2 * 96 * 88
    largest = max(math.prod(map(int, s.split(","))) for s in shapes)
    assert largest <= filled


@pytest.mark.broad
def test_one_compilation_with_donated_state():
    tx = identified_spo(ADAM(0.02), block=4, merge_interval=2)

    @partial(jax.jit, donate_argnums=(0, 1))
    def step(params, state):
        updates, state = tx.update(params, state, params)
        return optax.apply_updates(params, updates), state

    params = jax.device_put(start())
    state = tx.init(params)
    types = jax.tree.map(jax.typeof, state)
    for _ in range(3):
        params, state = step(params, state)
        assert jax.tree.map(jax.typeof, state) == types
    assert step._cache_size() == 1


@pytest.mark.slow
def test_sides_of_one_have_nothing_to_rotate():
    params = {"w": jnp.ones((2, 1, 6)), "v": jnp.full((1, 1, 1), 2.0)}
    tx = om.spo(ADAM(0.02), block=4)
    grads = jax.tree.map(lambda x: x * jnp.arange(x.shape[-1]), params)
    updates, _ = jax.jit(tx.update)(grads, tx.init(params), params)
    assert not updates["v"].any()
    new = params["w"] + updates["w"]
    np.testing.assert_allclose(jnp.linalg.norm(new, axis=-1), 6**0.5, rtol=1e-5)


@pytest.mark.slow
def test_portable_state_goes_on_where_it_was():
    tx = om.poet(0.01, block=4, merge_interval=3)
    params = {"up": {"kernel": start()["w"]}}
    step = jax.jit(lambda p, s: tx.update(p, s, p))
    noisy = lambda p, t: jax.tree.map(lambda x: x + gaussian(*x.shape, seed=t), p)
    state = tx.init(params)
    for t in range(4):
        _, state = step(noisy(params, t), state)
    portable = om.to_portable(state, params)
    again = om.from_portable(portable, tx.init(params), params)
    jax.tree.map(np.testing.assert_array_equal, again, state)
    assert any("perms" in key and "up/kernel" in key for key in portable)


WRONG = [
    ({"inner": 1e-3}, "`inner` must be a gradient transformation"),
    ({"variant": "blocks"}, "`variant` must be one of 'block', 'full'"),
    ({"block": 1}, "`block` must be an int of at least 2, got 1"),
    ({"block": 0.5}, "fractions are for variant='full'"),
    ({"block": 1.5, "variant": "full"}, r"a float in \(0, 1\] .* got 1.5"),
    ({"block": {"in": 4}}, "`block` must name the sides that rotate, out, in"),
    ({"sides": "left"}, "`sides` must be one of 'both', 'in', 'out'"),
    ({"reset": True}, "`reset` must be one of 'moments', 'none'"),
    ({"hold": "frame"}, "`hold` must be one of 'stored', 'recovered'"),
    ({"orthogonal": "euler"}, "`orthogonal` must be a function"),
    ({"merge_interval": 0}, "`merge_interval` must be a positive int, got 0"),
    ({"seed": -1}, "`seed` must be an int from 0 to 2..32 - 1, got -1"),
    ({"seed": 2**32}, "`seed` must be an int from 0"),
]


@pytest.mark.parametrize(("options", "message"), WRONG, ids=lambda x: str(x)[:30])
def test_wrong_arguments_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        om.spo(**{"inner": ADAM(1e-3), **options})


@pytest.mark.broad
def test_parameters_are_needed():
    tx = om.spo(ADAM(1e-3), block=4)
    with pytest.raises(ValueError, match="`params` must be passed"):
        tx.update(start(), tx.init(start()))
