"""What a matrix does whose gradient has become zero, the same for every recipe."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _dead_matrix import distances
from _registry import RECIPES, TABLE
from _tiers import DAILY, QUICK
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import optax_matrix as om

SHAPE = (6, 4)
LIVE = (True, True, False, False, False, True, False)  # Of the dead matrix's gradients.
ROW = (0, 0, 1, 2, 3, 0, 1)  # The zero gradients in a row at each step.
STEPS = len(LIVE)
PARAMS = {
    "dead": {"kernel": np.full(SHAPE, 0.5, np.float32)},
    "good": {"kernel": np.full(SHAPE, 0.25, np.float32)},  # In the same stack.
    "bias": np.full(4, 0.5, np.float32),
}
# Without momentum, or with steps that are finished.
FADELESS = {"swan", "sinkgd", "shampoo", "shampoo-blocks", "poet", "oft", "poet-full"}
FADELESS |= {"racs", "racs-corrected", "apollo", "apollo_mini", "apollo_svd"}


def tier(name):
    if name in QUICK:
        return name
    marks = pytest.mark.broad if name in DAILY else pytest.mark.slow
    return pytest.param(name, marks=marks)


recipes = pytest.mark.parametrize("name", [tier(name) for name in RECIPES])


def stream(dtype=np.float32, live=LIVE):
    rng = np.random.default_rng(5)
    draw = lambda x: rng.standard_normal(x.shape)
    grads = [jax.tree.map(draw, PARAMS) for _ in live]
    for g, is_live in zip(grads, live, strict=True):
        g["dead"]["kernel"] *= is_live
    return jax.tree.map(dtype, grads)


@functools.cache
def run(name, policy, decay=0.0):
    """Updates and portable states of a recipe."""
    tx = RECIPES[name](0.01, weight_decay=decay, zero_gradient=policy)
    update = jax.jit(lambda g, s: tx.update(g, s, PARAMS))
    state, updates, states = tx.init(PARAMS), [], []
    for g in stream():
        new, state = update(g, state)
        updates.append(jax.tree.map(np.asarray, new))
        states.append(om.to_portable(state, PARAMS))
    return updates, states


def of(matrix, state):
    return {k: np.asarray(v) for k, v in state.items() if f"{matrix}/kernel" in k}


def assert_same(got, want):
    assert got.keys() == want.keys()
    for key in want:
        np.testing.assert_array_equal(got[key], want[key], err_msg=key)


def decay_rate(name):
    """The decay rate of a recipe's momentum."""
    default = TABLE[name.split("-")[0]].recipe.signature.parameters["b1"].default
    return RECIPES[name].keywords.get("b1", default)


@pytest.mark.broad
@recipes
def test_fade_multiplies_the_kth_update_by_the_kth_power_of_b1(name):
    """And nothing else of the method, not by a bit."""
    got, states = run(name, "fade")
    want, plain = run(name, "follow")
    b1 = None if name in FADELESS else decay_rate(name)
    for t in range(STEPS):
        for leaf in ("good", "bias"):
            jax.tree.map(np.testing.assert_array_equal, got[t][leaf], want[t][leaf])
        pair = got[t]["dead"]["kernel"], want[t]["dead"]["kernel"]
        if LIVE[t] or b1 is None:
            np.testing.assert_array_equal(*pair)
        else:
            faded = np.float64(b1) ** ROW[t] * pair[1]
            np.testing.assert_allclose(pair[0], faded, rtol=1e-6, atol=1e-12)
        counts = {k: v for k, v in states[t].items() if k.startswith("zero_gradients")}
        others = {k: v for k, v in states[t].items() if k not in counts}
        assert_same(others, plain[t])
        if b1 is None:
            assert not counts
            continue
        assert_same(
            counts,
            {
                "zero_gradients/dead/kernel": np.int32([ROW[t]]),
                "zero_gradients/good/kernel": np.int32([0]),
            },
        )


@pytest.mark.broad
@recipes
def test_skip_neither_moves_nor_learns(name):
    updates, states = run(name, "skip", 0.1)
    plain, held = run(name, "follow", 0.1)
    # The compiler fuses two programs differently.
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    for t in range(STEPS):
        jax.tree.map(close, updates[t]["bias"], plain[t]["bias"])
        good, want = of("good", states[t]), of("good", held[t])
        assert good.keys() == want.keys()
        for key, x in want.items():
            if x.dtype.kind == "f":  # Fingerprints show every bit.
                close(good[key], x, err_msg=key)
        if not LIVE[t]:
            assert not updates[t]["dead"]["kernel"].any()
            assert_same(of("dead", states[t]), of("dead", states[t - 1]))
    assert updates[5]["dead"]["kernel"].any()


@pytest.mark.broad
@pytest.mark.parametrize("name", ["muon", "muoneq"])
def test_the_whole_distance_is_the_geometric_series(name):
    tx = RECIPES[name](1.0, weight_decay=0.0, polar=om.linalg.polar_svd)
    grads = stream(live=[True] * 3 + [False] * 300)
    grads = jax.tree.map(lambda *x: jnp.stack(x), *grads)
    step = lambda s, g: tx.update(g, s, PARAMS)[::-1]
    _, updates = jax.jit(lambda g: jax.lax.scan(step, tx.init(PARAMS), g))(grads)
    sizes = jnp.linalg.norm(updates["dead"]["kernel"], axis=(1, 2))
    want = 0.95 / (1 - 0.95) * (1 - 0.95**300)
    np.testing.assert_allclose(sizes[3:].sum() / sizes[2], want, rtol=1e-4)


WITHOUT = {"poet", "oft"}  # Finished steps: Adam's, which stop by themselves.
HAVE_B1 = [n for n, r in TABLE.items() if "b1" in r.recipe.signature.parameters]


@pytest.mark.broad
@pytest.mark.daily("muon", "dion", "dion2", "ldadam")
@pytest.mark.parametrize("name", sorted(set(HAVE_B1) - WITHOUT))
def test_without_momentum_a_dead_matrix_stops_at_once(name):
    """Also where an error is fed back."""
    tx = RECIPES[name](0.01, weight_decay=0.0, b1=0.0)
    update = jax.jit(lambda g, s: tx.update(g, s, PARAMS))
    state = tx.init(PARAMS)
    for g, row in zip(stream(), ROW, strict=True):
        new, state = update(g, state)
        assert bool(np.any(new["dead"]["kernel"])) == (row == 0)


@pytest.mark.broad
@recipes
def test_a_dead_matrix_goes_no_further_than_a_momentum_lasts(name):
    _, long = distances(name, "fade")
    lasts = 1 / (1 - decay_rate(name)) if name not in FADELESS else 10
    assert long <= 1.1 * lasts


@pytest.mark.parametrize("name", ["muon", pytest.param("aro", marks=pytest.mark.broad)])
def test_follow_is_the_chain_by_itself(name):
    """Under `on_matrices` as it is by default, with its learning rate behind."""
    tx = optax.chain(
        getattr(om, f"scale_by_{name}")(zero_gradient="follow"), optax.scale(-0.01)
    )
    state = tx.init(PARAMS)
    assert state[0].zero_gradients is None
    for g, want in zip(stream(), run(name, "follow")[0], strict=True):
        got, state = jax.jit(tx.update)(g, state, PARAMS)
        np.testing.assert_array_equal(got["dead"]["kernel"], want["dead"]["kernel"])
    sizes = [np.linalg.norm(u["dead"]["kernel"]) for u in run(name, "follow")[0]]
    np.testing.assert_allclose(sizes[2:5], sizes[2], rtol=0.05)


LAYERS = {"w": {"kernel": np.full((3, *SHAPE), 0.5, np.float32)}}


def layers(live, dtype=np.float32):
    """Gradients of three layers; the second is dead where not ``live``."""
    rng = np.random.default_rng(1)
    each = [rng.standard_normal((3, *SHAPE)) for _ in live]
    for x, is_live in zip(each, live, strict=True):
        x[1] *= is_live
    return [{"w": {"kernel": np.asarray(x, dtype)}} for x in each]


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("policy", ["fade", "skip"])
def test_each_layer_of_a_leaf_by_itself(policy, dtype):
    params = jax.tree.map(lambda x: np.asarray(x, dtype), LAYERS)
    make = lambda p: om.muon(0.01, weight_decay=0.1, zero_gradient=p)
    txs = [make(policy), make("follow")]
    states = [jax.jit(tx.init)(params) for tx in txs]
    steps = [jax.jit(tx.update) for tx in txs]
    for g, is_live, row in zip(layers(LIVE, dtype), LIVE, ROW, strict=True):
        both = [f(g, s, params) for f, s in zip(steps, states, strict=True)]
        (got, want), states = zip(*both, strict=True)
        got, want = (np.float32(x["w"]["kernel"]) for x in (got, want))
        # Compilers may fuse the two programs in other ways.
        np.testing.assert_allclose(got[[0, 2]], want[[0, 2]], rtol=1e-5, atol=1e-8)
        decay = -0.01 * 0.1 * 0.5
        wanted = decay + 0.95**row * (want[1] - decay)
        if policy == "skip" and not is_live:
            wanted = 0 * want[1]
        tolerance = {"rtol": 2e-2, "atol": 1e-4} if dtype == jnp.bfloat16 else {}
        if is_live and policy == "skip":
            continue  # Its momentum is another one by then.
        np.testing.assert_allclose(got[1], wanted, **{"atol": 1e-7, **tolerance})


@pytest.mark.broad
def test_skip_stops_the_decay_of_a_part_of_a_fused_kernel():
    numbers = {"qkv": om.MatrixDimensionNumbers((0,), (1,), output_sections=3)}
    params = {"qkv": jnp.ones((6, 12))}
    tx = om.muon(
        0.01, weight_decay=0.1, zero_gradient="skip", dimension_numbers=numbers
    )
    g = {"qkv": jnp.asarray(np.random.default_rng(0).standard_normal((6, 12)))}
    g = jax.tree.map(lambda x: x.at[:, 4:8].set(0), g)
    (new,) = jax.jit(tx.update)(g, tx.init(params), params)[0].values()
    assert not new[:, 4:8].any()
    assert jnp.delete(new, jnp.arange(4, 8), axis=1).all()


@pytest.mark.broad
def test_a_gradient_that_is_not_finite_counts_as_nothing():
    """Neither as zero nor as another gradient, unless it is taken for zero."""
    grads = stream(live=[True, False, False, False])
    grads[2]["dead"]["kernel"] = jnp.full(SHAPE, jnp.nan)

    def counts(nonfinite):
        tx = om.muon(0.01, nonfinite=nonfinite)
        state, found = tx.init(PARAMS), []
        for g in grads:
            _, state = jax.jit(tx.update)(g, state, PARAMS)
            flat = om.to_portable(state, PARAMS)
            found.append(int(flat["zero_gradients/dead/kernel"][0]))
        return found

    assert counts("propagate") == counts("skip") == [0, 1, 1, 2]
    assert counts("zero") == [0, 1, 2, 3]


@pytest.mark.broad
def test_a_traced_decay_rate_fades_and_follows_its_changes():
    tx = om.inject_hyperparams(om.muon)(0.01, b1=0.9, weight_decay=0.0)
    plain = om.muon(0.01, b1=0.9, weight_decay=0.0)
    states = [tx.init(PARAMS), plain.init(PARAMS)]
    for g in stream():
        new, states[0] = jax.jit(tx.update)(g, states[0], PARAMS)
        want, states[1] = jax.jit(plain.update)(g, states[1], PARAMS)
        jax.tree.map(
            functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-8),
            new,
            want,
        )
    states[0].hyperparams["b1"] = jnp.float32(0.0)
    dead, _ = jax.jit(tx.update)(stream()[2], states[0], PARAMS)
    assert not dead["dead"]["kernel"].any()


@pytest.mark.broad
def test_accumulation_counts_updates_and_not_its_parts():
    tx = optax.MultiSteps(om.muon(0.01), 2)
    state = tx.init(PARAMS)
    for g in stream(live=[True, False, False, False]):
        _, state = jax.jit(tx.update)(g, state, PARAMS)
    flat = om.to_portable(state, PARAMS)
    (count,) = (v for k, v in flat.items() if "zero_gradients/dead" in k)
    assert count.tolist() == [1]


@pytest.mark.broad
def test_the_count_survives_the_portable_form_and_a_renaming():
    tx, state = om.muon(0.01), om.muon(0.01).init(PARAMS)
    for g in stream()[:5]:
        _, state = tx.update(g, state, PARAMS)
    renamed = {"off" if k == "dead" else k: v for k, v in PARAMS.items()}
    flat = om.to_portable(state, PARAMS)
    new = om.from_portable(flat, tx.init(renamed), renamed, rename={"dead": "off"})
    flat = om.to_portable(new, renamed)
    assert flat["zero_gradients/off/kernel"].tolist() == [3]
    assert flat["zero_gradients/good/kernel"].tolist() == [0]


@pytest.mark.quick("False-AxisType.Explicit-skip")
@pytest.mark.parametrize("policy", ["fade", "skip"])
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("owned", [True, False])
def test_on_eight_devices(policy, kind, owned):
    """With five matrices, so that three devices have padding."""
    mesh = jax.make_mesh((8,), ("fsdp",), axis_types=(kind,))
    sharding = NamedSharding(mesh, P(None, "fsdp"))
    names = "abcde"
    host = {n: np.full((8, 16), 0.5, np.float32) for n in names}
    params = {n: jax.device_put(x, sharding) for n, x in host.items()}
    rng = np.random.default_rng(3)
    grads = [{n: np.float32(rng.standard_normal((8, 16))) for n in names} for _ in LIVE]
    for g, is_live in zip(grads, LIVE, strict=True):
        g["c"] *= is_live

    def train(params, grads, placement):
        tx = om.muon(0.01, weight_decay=0.1, zero_gradient=policy, placement=placement)
        state, path, update = tx.init(params), [], jax.jit(tx.update)
        for g in grads:
            new, state = update(g, state, params)
            path.append(new)
        return path, om.to_portable(state, params)

    given = None if kind == AxisType.Explicit else dict.fromkeys(names, sharding)
    placement = om.owners("fsdp", param_specs=given) if owned else None
    with jax.set_mesh(mesh):
        put = [{n: jax.device_put(x, sharding) for n, x in g.items()} for g in grads]
        got, held = train(params, put, placement)
    want, wanted = train(host, grads, None)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6)
    for a, b in zip(got, want, strict=True):
        jax.tree.map(close, a, b)
    assert held.keys() == wanted.keys()
    for key in held:
        if key.startswith("zero_gradients"):
            assert (
                held[key].tolist() == wanted[key].tolist() == [ROW[-1] * ("/c" in key)]
            )


def test_wrong_words_are_refused():
    with pytest.raises(ValueError, match="`zero_gradient` must be one of"):
        om.muon(0.1, zero_gradient="ignore")
    with pytest.raises(ValueError, match=r"one of 'follow', 'skip', a number in \[0"):
        om.on_matrices(om.match_rms(), zero_gradient="fade")
    with pytest.raises(ValueError, match=r"`zero_gradient` must be in \[0, 1\), got 2"):
        om.on_matrices(om.match_rms(), zero_gradient=2.0)


def test_the_state_of_another_policy_is_refused():
    state = om.muon(0.1, zero_gradient="follow").init(PARAMS)
    with pytest.raises(ValueError, match=r"it lacks .*zero_gradients"):
        om.muon(0.1).update(PARAMS, state, PARAMS)
