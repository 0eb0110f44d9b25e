"""What every recipe and block keeps to, whatever it computes.

One compilation per recipe serves all assertions on its plain update.
"""

import functools

import chex
import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _registry import BLOCKS, MATRICES, PAIRED, RECIPES, SHAPES, on_block, tree

import optax_matrix as om
from optax_matrix._paths import key_name, named_leaves
from optax_matrix.stacks.layout import make_layout
from optax_matrix.tree.state import OnMatricesState

LEARNING_RATE = 0.01
PARAMS = tree(0)

# By `scope`, what one recipe compiles is used up before the next one's turn.
recipes = pytest.mark.parametrize("name", RECIPES, scope="module")
blocks = pytest.mark.parametrize("name", [*BLOCKS, *PAIRED], scope="module")


def of_type(pytree):
    return jax.tree.map(lambda x: (jnp.shape(x), jnp.result_type(x)), pytree)


def assert_close(got, want, **tolerance):
    compare = functools.partial(np.testing.assert_allclose, **tolerance)
    jax.tree.map(compare, got, want)


@functools.cache
def compiled(name):
    """A recipe and its update, compiled once for the whole file."""
    tx = RECIPES[name](LEARNING_RATE)
    return tx, jax.jit(lambda g, s, p: tx.update(g, s, p, unknown_extra_arg=1.0))


@functools.cache
def compiled_block(name, probe=True):
    tx = on_block(name, probe=probe)  # The probe runs at `init`.
    return tx, jax.jit(lambda g, s: tx.update(g, s, unknown_extra_arg=1.0))


def extreme(kind):
    """A gradient that training may meet once."""
    grads = tree(1)
    if kind == "zero":
        return jax.tree.map(np.zeros_like, grads)
    if kind == "rank-one":
        return jax.tree.map(lambda x: np.full_like(x, np.mean(x)), grads)
    if kind == "one-row":
        keep = lambda x: x * (np.arange(x.shape[-1]) == 0) if x.ndim > 1 else x
        return jax.tree.map(keep, grads)
    return jax.tree.map(lambda x: x * float(kind), grads)


EXTREMES = ("zero", "rank-one", "one-row", "1e-20", "1e20")


@recipes
def test_update_has_the_parameters_structure_shape_and_dtype(name):
    tx, update = compiled(name)
    updates, _ = update(tree(1), tx.init(PARAMS), PARAMS)
    chex.assert_trees_all_equal_shapes_and_dtypes(updates, PARAMS)
    chex.assert_tree_all_finite(updates)
    moved = {k: np.any(v) for k, v in named_leaves(jax.device_get(updates)).items()}
    assert all(moved.values()), moved


@recipes
def test_matrices_really_take_the_matrix_path(name):
    tx, _ = compiled(name)
    is_ours = lambda x: isinstance(x, OnMatricesState)
    nodes = jax.tree.leaves(tx.init(PARAMS), is_leaf=is_ours)
    (state,) = [node for node in nodes if is_ours(node)]
    layout = make_layout(PARAMS)
    assert set(layout.views) == MATRICES
    assert set(state.manifest) == set(layout.groups)


@recipes
def test_state_is_stable_and_the_second_call_compiles_nothing(name):
    tx, update = compiled(name)
    state = tx.init(PARAMS)
    types = jax.tree.map(jax.typeof, state)
    for seed in (1, 2):
        _, state = update(tree(seed), state, PARAMS)
        assert jax.tree.map(jax.typeof, state) == types
    assert update._cache_size() == 1
    chex.assert_tree_all_finite(state._replace(other=None))


@recipes
def test_abstract_init_equals_init(name):
    tx, _ = compiled(name)
    shapes = jax.eval_shape(lambda: PARAMS)
    assert of_type(jax.eval_shape(tx.init, shapes)) == of_type(tx.init(PARAMS))


@recipes
@pytest.mark.parametrize("kind", EXTREMES)
def test_extreme_gradients_give_finite_updates_and_state(name, kind):
    tx, update = compiled(name)
    state = tx.init(PARAMS)
    for _ in range(2):
        updates, state = update(extreme(kind), state, PARAMS)
        matrices = {p: named_leaves(updates)[p] for p in MATRICES}
        chex.assert_tree_all_finite(matrices)
    chex.assert_tree_all_finite(state._replace(other=None))


@recipes
def test_a_zero_first_gradient_delays_nothing(name):
    """As where zero kernels behind it keep a gradient from a matrix at step 1."""
    tx, update = compiled(name)
    zero, start = extreme("zero"), tx.init(PARAMS)
    _, after = update(zero, start, PARAMS)

    def steps(state):  # Less the decay, and whatever else a zero gradient moves.
        both = (update(g, state, PARAMS)[0] for g in (tree(1), zero))
        return named_leaves(jax.tree.map(np.subtract, *map(jax.device_get, both)))

    got, want = steps(after), steps(start)
    for path in MATRICES:
        size = np.linalg.norm(got[path]) / np.linalg.norm(want[path])
        assert 0.5 < size < 2, (path, size)


NORMAL, AFTER = 10, 100
# The kinds that training survives behind the clip of these papers' training loops;
# 1e20 overflows in the global norm and comes out as zeros, 1e10 as norm 1.
FORGOTTEN = ("zero", "rank-one", "one-row", "1e-20", "1e-3", "1e10", "1e20")


def _clip(grads):
    clip = optax.clip_by_global_norm(1.0)
    return clip.update(grads, clip.init(grads))[0]


@pytest.mark.broad
def test_the_clip_does_to_extremes_what_is_said_above():
    assert optax.tree.norm(_clip(extreme("1e20"))) == 0
    np.testing.assert_allclose(optax.tree.norm(_clip(extreme("1e10"))), 1, rtol=1e-5)
    assert optax.tree.norm(_clip(extreme("1e-3"))) < 0.05


# A run with one more step renews its basis one step earlier: here at every step, from
# averages that forget in time (0.999 is most of a life of 100 steps), and on gradients
# with a mean, as noise alone has no eigenvectors to find again.
# What Alice draws at a renewal depends on how many there were.
ACCUMULATING = {
    # Not an average, but a frame that follows the last one: of eight streams of noise
    # alone (4 x 4) it came back to 0.1% to 0.5%, of the one here to 8%.
    "aro": {},
    "eigen_adam": {"b3": 0.9},
    "soap": {"b3": 0.9},
    "soap-blocks": {"b3": 0.9},
    "soap_muon": {"b3": 0.9},
    "kl_shampoo": {"b2": 0.9},
    "kl_soap": {"b2": 0.9, "b3": 0.9},
    "splus": {"b2": 0.9},
    "alice-carry": {"b3": 0.9, "switch": "none"},
}
# A merge draws other primitives a step earlier; Dion2 takes other rows in turn; the
# noise of Kron is that of another step.
SHIFTED = {
    "kron-full": {"damping": 1e-9, "update_interval": 1},
    "dion2": {"fraction": 1.0},
    "poet": {"merge_interval": None},
    "poet-full": {"merge_interval": None, "merge_at": None},
}
# 0.95^100 = 0.6% of a momentum of 20 gradients' weight may be left, and one part in
# 111 of the slowest second moment (decay 0.999). With error feedback at half rank,
# half of the momentum decays per step: 0.95^50 = 8% are left of the gradient. Of what
# is left, Dion2's coefficients enlarge small singular values most: 1 to 6%.
LEFT = {"dion-low_rank": 0.1, "dion2": 0.1}


@recipes
@pytest.mark.broad
def test_one_extreme_gradient_is_forgotten(name):
    """100 normal gradients after it, a run is where it would be without it."""
    tx, update = compiled(name)
    drift = 0.0
    if name in ACCUMULATING:
        drift = 2.0
        tx = RECIPES[name](LEARNING_RATE, update_interval=1, **ACCUMULATING[name])
        update = jax.jit(tx.update)
    if name in SHIFTED:
        tx = RECIPES[name](LEARNING_RATE, **SHIFTED[name])
        update = jax.jit(tx.update)
    noisy = lambda t: jax.tree.map(lambda m, x: drift * m + x, tree(99), tree(100 + t))
    stream = [_clip(noisy(t)) for t in range(NORMAL + AFTER)]

    def follow(state, stream):
        for grads in stream:
            updates, state = update(grads, state, PARAMS)
        return updates, state

    _, middle = follow(tx.init(PARAMS), stream[:NORMAL])
    undisturbed, _ = follow(middle, stream[NORMAL:])
    for kind in FORGOTTEN:
        _, state = update(_clip(extreme(kind)), middle, PARAMS)
        updates, _ = follow(state, stream[NORMAL:])
        for path in MATRICES:
            got = np.asarray(named_leaves(updates)[path])
            want = np.asarray(named_leaves(undisturbed)[path])
            error = np.linalg.norm(got - want) / np.linalg.norm(want)
            assert error < LEFT.get(name, 0.05), (kind, path, error)


FORGETFUL = {
    "muon": lambda: om.scale_by_muon(b1=0.5),
    "muoneq": lambda: om.scale_by_muoneq(b1=0.5),
    "muon_plus": lambda: om.scale_by_muon_plus(b1=0.5),
    "scion": lambda: om.scale_by_scion(b1=0.5),
    "adamuon": lambda: om.scale_by_adamuon(b1=0.5, b2=0.5),
    "normuon": lambda: om.scale_by_normuon(b1=0.5, b2=0.5),
    "racs": lambda: om.scale_by_racs(b1=0.3, limiter=10.0),
    "mars_adamw": lambda: om.scale_by_mars_adamw(b1=0.5, b2=0.5),
    "aro": lambda: om.scale_by_aro(b1=0.5),
    "aro-adam": lambda: om.scale_by_aro(base="adam", b1=0.3, b2=0.3),
    "eigen_rownorm": lambda: om.scale_by_eigen_rownorm(b1=0.5),
    "eigen_adam": lambda: om.scale_by_eigen_adam(
        b1=0.3, b2=0.3, b3=0.3, update_interval=1
    ),
    "soap": lambda: om.scale_by_soap(
        b1=0.3, b2=0.3, b3=0.3, policy="eigen_exact", update_interval=1
    ),
    "shampoo": lambda: om.scale_by_shampoo(b2=0.3),
    "mousse": lambda: om.scale_by_mousse(b1=0.5, b2=0.3, update_interval=1),
    "dion": lambda: om.scale_by_dion(b1=0.5),
    "alice": lambda: om.scale_by_alice(
        **{"rank": 2, "leading": 2, "b1": 0.3, "b2": 0.3, "b3": 0.3, "limiter": 10.0},
        # Moments that stay in the old basis depend on the signs of eigenvectors.
        **{"update_interval": 1, "transport": "carry"},
    ),
    "sumo": lambda: om.scale_by_sumo(rank=2, b1=0.5, basis="svd", update_interval=1),
    "fira": lambda: om.scale_by_fira(
        rank=2, b1=0.3, b2=0.3, limiter=10.0, basis="svd", update_interval=1
    ),
    "apollo": lambda: om.scale_by_apollo(rank=2, b1=0.3, b2=0.3, limiter=10.0),
    "apollo_mini": lambda: om.scale_by_apollo_mini(b1=0.3, b2=0.3, limiter=10.0),
}


# Bases that move by power steps meet again where gradients have a mean to find.
TRACKING = ("aro", "aro-adam", "eigen_rownorm", "eigen_adam", "alice")


@pytest.mark.parametrize("name", FORGETFUL)
@pytest.mark.broad
def test_state_stays_alive_through_an_unclipped_gradient_of_1e20(name):
    """With decay rates that forget 1e20 within 150 steps, nothing of it is left.

    With the papers' own (0.9 and more) the methods themselves remember it for longer.
    """
    tx = FORGETFUL[name]()
    update = jax.jit(tx.update)
    state, fresh = tx.init(PARAMS), tx.init(PARAMS)
    _, state = update(extreme("1e20"), state)
    drift = 2.0 if name in TRACKING else 0.0
    for t in range(150):
        grads = jax.tree.map(lambda m, x: drift * m + x, tree(999), tree(t))
        got, state = update(grads, state)
        want, fresh = update(grads, fresh)
    for path in MATRICES:
        x, y = (named_leaves(tree_)[path] for tree_ in (got, want))
        np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-3 * np.abs(y).max())


# Least cosine, and largest relative gap of sizes, between a bfloat16 and a float32
# update of a leaf. Rounding is 2**-8; other decay rates (0.8 for 0.95) break one of
# the two for every method that has any.
BFLOAT16_GAP = (0.99, 0.05)
# SWAN takes the mean out of every row: of a tall matrix one direction is empty, and
# Newton-Schulz makes a visible one of the rounding in it (its slope at zero is 485).
# A sign that rounding changes turns the frame of ARO.
BFLOAT16_GAPS = {"swan": (0.9, 0.1), "aro-sign": (0.85, 0.1)}


@recipes
@pytest.mark.broad
def test_bfloat16_with_injected_hyperparameters(name):
    """optax rounds 0.999 to 1.0 there, and the first update is NaN."""
    steps, total = 3, 10
    gaps = BFLOAT16_GAPS.get(name, BFLOAT16_GAP)
    params = tree(0, jnp.bfloat16)
    recipe = RECIPES[name]
    factory = getattr(recipe, "func", recipe)
    keywords = getattr(recipe, "keywords", {})
    schedule = optax.linear_schedule(LEARNING_RATE, 0.0, total)
    injected = om.inject_hyperparams(factory)(schedule, **keywords)
    plain, in_float32 = compiled(name)

    wide = lambda t: optax.tree.cast(t, jnp.float32)
    state, wide_state = injected.init(params), plain.init(wide(params))
    types = jax.tree.map(jax.typeof, state)
    update = jax.jit(injected.update)
    for t in range(steps):
        grads = tree(1 + t, jnp.bfloat16)
        got, state = update(grads, state, params)
        want, wide_state = in_float32(wide(grads), wide_state, wide(params))
        chex.assert_tree_all_finite(got)
        chex.assert_trees_all_equal_shapes_and_dtypes(got, params)
        assert_parallel(wide(got), want, 1 - t / total, *gaps)
    assert jax.tree.map(jax.typeof, state) == types
    for value in state.hyperparams.values():
        assert value.dtype == jnp.float32


def assert_parallel(got, want, ratio, least_cosine, most_gap):
    """Leaf by leaf the same direction, and a given ratio of sizes."""
    for path, x in named_leaves(got).items():
        x, y = np.ravel(x), np.ravel(named_leaves(want)[path])
        sizes = np.linalg.norm(x), np.linalg.norm(y)
        cosine = np.vdot(x, y) / (sizes[0] * sizes[1])
        assert cosine > least_cosine, (path, cosine)
        assert np.abs(sizes[0] / sizes[1] / ratio - 1) < most_gap, path


@recipes
@pytest.mark.broad
def test_works_inside_the_wrappers_of_optax(name):
    """One compilation of all of them around each other, against the bare update."""
    tx, update = compiled(name)
    mask = jax.tree.map(lambda _: True, PARAMS)
    wrapped = optax.chain(optax.identity(), tx)
    wrapped = optax.partition({"all": optax.masked(wrapped, mask)}, "all")
    wrapped = optax.MultiSteps(optax.apply_if_finite(wrapped, 3), 2)
    state, bare = wrapped.init(PARAMS), tx.init(PARAMS)

    @jax.jit
    def two_updates(state, grads):
        def body(state, g):
            updates, state = wrapped.update(g, state, PARAMS)
            return state, updates

        return jax.lax.scan(body, state, grads)

    halves = jax.tree.map(lambda a, b: np.stack([a, b]), tree(1), tree(2))
    mean = jax.tree.map(lambda x: x.mean(0), halves)
    for _ in range(2):
        state, updates = two_updates(state, halves)
        want, bare = update(mean, bare, PARAMS)
        accumulated = jax.tree.map(lambda u: u[1], jax.device_get(updates))
        assert_close(accumulated, want, rtol=1e-3, atol=1e-5)


def numbers(x):
    is_key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(x) if is_key else x


@recipes
def test_map_params_sees_what_is_per_matrix(name):
    """And neither the counts of blocks nor what says whose state it is."""
    tx, _ = compiled(name)
    state = tx.init(PARAMS)
    marked = jax.jit(lambda s: optax.tree.map_params(tx, lambda x: x + 1, s))(state)
    chex.assert_trees_all_equal_shapes_and_dtypes(marked, state)
    stacks = set(state.manifest)
    pairs = zip(
        jax.tree.leaves_with_path(state._replace(other=None)),
        jax.tree.leaves(marked._replace(other=None)),
        strict=True,
    )
    for (keys, old), new in pairs:
        names = set(map(key_name, keys))
        is_param = bool(stacks & names) and not names & {"manifest", "sides"}
        old, new = np.asarray(numbers(old)), np.asarray(numbers(new))
        np.testing.assert_array_equal(new, old + is_param, err_msg=str(keys))


# With options that change what a recipe consists of.
VARIANTS = {
    "aro-global": functools.partial(om.aro, sharing="global"),
    "aro-chain": functools.partial(om.aro, sharing="chain", update_interval=2),
    "aro-full": functools.partial(om.aro, full_model=True, base="adam"),
    "mousse-every": functools.partial(om.mousse, update_interval=1, side="short"),
    "shampoo-seldom": functools.partial(om.shampoo, b2=0.9, update_interval=5),
    "soap-exact": functools.partial(om.soap, policy="eigen_exact", side="in"),
    "splus-identity": functools.partial(om.splus, policy="identity"),
    "galore-staggered": functools.partial(om.galore, rank=2, stagger=True),
    "alice-last": functools.partial(
        om.alice, rank=2, leading=1, last_layer="method", start="exact"
    ),
}


@pytest.mark.parametrize("name", RECIPES | VARIANTS)
def test_a_model_without_matrices(name):
    tx, params = (
        (RECIPES | VARIANTS)[name](LEARNING_RATE),
        {"b": np.ones(3, np.float32)},
    )
    state = jax.eval_shape(tx.init, params)
    updates, new = jax.eval_shape(tx.update, params, state, params)
    assert of_type(updates) == of_type(params)
    assert of_type(new) == of_type(state)


@pytest.mark.broad
def test_kernel_that_couples_matrices_is_refused():
    tx = om.muon(1e-3, polar=lambda x: x / jnp.linalg.norm(x))
    with pytest.raises(ValueError, match="treat each matrix of a stack by itself"):
        tx.init(PARAMS)


ONE_STACK = {"wide": SHAPES["wide"], "temperature": ()}  # Compiles faster.


@pytest.mark.broad
@blocks
@pytest.mark.parametrize(
    ("dtype", "shapes"),
    [
        ("float32", SHAPES),
        ("bfloat16", ONE_STACK),
        pytest.param("float16", ONE_STACK, marks=pytest.mark.slow),
    ],
    ids=["float32", "bfloat16", "float16"],
)
def test_block_keeps_shape_dtype_and_state(name, dtype, shapes):
    # The probe casts stacks to float32, so it looks at each block once.
    tx, update = compiled_block(name, probe=dtype == "float32")
    shapes = SHAPES if name in PAIRED else shapes
    draw = functools.partial(tree, dtype=dtype, shapes=shapes)
    params = draw(0)
    state = tx.init(params)
    types = jax.tree.map(jax.typeof, state)
    for seed in (1, 2):
        updates, state = update(draw(seed), state)
        chex.assert_trees_all_equal_shapes_and_dtypes(updates, params)
        chex.assert_tree_all_finite(updates)
        assert jax.tree.map(jax.typeof, state) == types
    np.testing.assert_array_equal(updates["temperature"], draw(2)["temperature"])


@pytest.mark.broad
@blocks
@pytest.mark.parametrize("kind", EXTREMES)
def test_block_survives_extreme_gradients(name, kind):
    tx, update = compiled_block(name)
    state = tx.init(PARAMS)
    for grads in (extreme(kind), extreme(kind), tree(2)):
        updates, state = update(grads, state)
        chex.assert_tree_all_finite(updates)
        chex.assert_tree_all_finite(state._replace(other=None))


SIDES = st.integers(1, 5)
DEGENERATE = ("normal", "zero", "rank-one", "zero-row", "zero-column", "1e-20", "1e20")


@hypothesis.given(
    shape=st.tuples(SIDES, SIDES),
    kind=st.sampled_from(DEGENERATE),
    dtype=st.sampled_from(["float32", "bfloat16"]),
    seed=st.integers(0, 2**16),
)
@hypothesis.settings(max_examples=25, deadline=None, derandomize=True)
@pytest.mark.parametrize("name", ["muoneq-rowcol", "normuon", "racs", "sinkgd", "swan"])
@pytest.mark.slow
def test_any_shape_and_gradient(name, shape, kind, dtype, seed):
    x = np.random.default_rng(seed).standard_normal(shape)
    if kind == "zero":
        x = 0 * x
    elif kind == "rank-one":
        x = np.outer(x[:, 0], x[0])
    elif kind == "zero-row":
        x[0] = 0
    elif kind == "zero-column":
        x[:, 0] = 0
    elif kind != "normal":
        x = x * float(kind)
    grads = {"w": jnp.asarray(x, dtype), "v": jnp.ones((3, *shape), dtype)}
    told = om.MatrixDimensionNumbers(-2, -1)  # By default a side of one is no side.
    tx = RECIPES[name](LEARNING_RATE, dimension_numbers=told)
    state, update = tx.init(grads), jax.jit(tx.update)
    for _ in range(2):
        updates, state = update(grads, state, grads)
        chex.assert_trees_all_equal_shapes_and_dtypes(updates, grads)
        chex.assert_tree_all_finite(updates)
    chex.assert_tree_all_finite(state._replace(other=None))


STATE_OF_A_MATRIX = {
    "muon": lambda m, n: m * n,
    "muoneq": lambda m, n: m * n,
    "muon_plus": lambda m, n: m * n,
    "muon2": lambda m, n: 2 * m * n,
    "aurora": lambda m, n: m * n,
    "adamuon": lambda m, n: 2 * m * n,
    "normuon": lambda m, n: m * n + m,
    "scion": lambda m, n: m * n,
    "muonh": lambda m, n: m * n + 1,
    "swan": lambda *_: 0,
    "sinkgd": lambda *_: 0,
    "racs": lambda m, n: m + n + 1,
    "racs-corrected": lambda m, n: m + n + 2,
    "mars_adamw": lambda m, n: 3 * m * n,
    "aro": lambda m, n: m * n + min(m, n) ** 2,
    "aro-adam": lambda m, n: 2 * m * n + min(m, n) ** 2,
    **dict.fromkeys(
        ("eigen_sinkhorn", "eigen_sign", "eigen_rownorm"),
        lambda m, n: m * n + min(m, n) ** 2,
    ),
    # The statistics of each side have a peak; a bias correction has a weight.
    "eigen_adam": lambda m, n: 2 * m * n + 2 * min(m, n) ** 2 + 1,
    "soap": lambda m, n: 2 * m * n + 2 * m**2 + 2 * n**2 + 4,
    "kl_shampoo": lambda m, n: m * n + 2 * m**2 + 2 * n**2 + m + n + 2,
    "kl_soap": lambda m, n: 2 * m * n + 2 * min(m, n) ** 2 + m + n + 1,
    # The diagonal of the longer side; two bounds; the weight of a bias correction.
    "kron": lambda m, n: m * n + min(m, n) ** 2 + max(m, n) + 3,
    "splus": lambda m, n: m * n + 2 * m**2 + 2 * n**2 + 2,
    "shampoo": lambda m, n: m**2 + n**2 + 2,
    "mousse": lambda m, n: m * n + 2 * m**2 + 2 * n**2 + 2,
    "dion2": lambda m, n: m * n,
    "soap_muon": lambda m, n: 2 * m * n + 2 * min(m, n) ** 2 + 2,
    "dion": lambda m, n: m * n + n * min(m, n),
    # With r = 2; two weights of bias corrections; a limiter's norm; an average's peak.
    "galore": lambda m, n: 2 * max(m, n) * 2 + min(m, n) * 2 + 2,
    "alice": lambda m, n: 2 * max(m, n) * 2 + min(m, n) * 2 + 2**2 + max(m, n) + 2,
    "alice_0": lambda m, n: 2 * max(m, n) * 2 + min(m, n) * 2 + max(m, n) + 1,
    "sumo": lambda m, n: (m + n) * 2 + 1,
    "fira": lambda m, n: 2 * max(m, n) * 2 + min(m, n) * 2 + 3,
    "fira_plus": lambda m, n: 2 * max(m, n) * 2 + min(m, n) * 2 + 2,
    "apollo": lambda m, n: 2 * max(m, n) * 2 + 3,
    "apollo_mini": lambda m, n: 2 * max(m, n) + 3,
    "apollo_svd": lambda m, n: 2 * max(m, n) * 2 + min(m, n) * 2 + 3,
    "ldadam": lambda m, n: m * n + 2 * max(m, n) * 2 + min(m, n) * 2,
    "dion-low_rank": lambda m, n: m * n + n * -(-min(m, n) // 2),
    # A block of side four has six numbers; merges that the weights have seen; two
    # weights of bias corrections and one count less for each side.
    "poet": lambda m, n: m * n + 18 * (-(-m // 4) - (-n // 4)) + m + n + 3,
    "oft": lambda m, n: m * n + 18 * -(-n // 4) + n + 2,
}


@pytest.mark.parametrize("name", STATE_OF_A_MATRIX)
def test_state_size_is_the_papers(name):
    """Elements per matrix, as `.docs/methods.md` says; step counts aside."""
    m, n = 12, 7
    params = {"kernel": jax.ShapeDtypeStruct((n, m), jnp.float32)}
    state = jax.eval_shape(RECIPES[name](LEARNING_RATE).init, params)
    (ours,) = (
        x
        for x in jax.tree.leaves(
            state, is_leaf=lambda x: isinstance(x, OnMatricesState)
        )
        if isinstance(x, OnMatricesState)
    )
    sizes = [x.size for x in jax.tree.leaves(ours.inner_state)]
    counts = [x for x in jax.tree.leaves(ours.inner_state) if x.dtype == jnp.int32]
    assert sum(sizes) - len(counts) == STATE_OF_A_MATRIX[name](m, n)


@recipes
@pytest.mark.broad
def test_a_matrix_moves_the_same_whoever_shares_its_stack(name):
    """What the probe of `on_matrices` looks for, on the recipes themselves."""
    tx, update = compiled(name)
    alone, _ = update(tree(1), tx.init(PARAMS), PARAMS)
    more = lambda seed: tree(seed) | {"a_wide": 1e3 * tree(seed + 7)["wide"]["kernel"]}
    together, _ = jax.jit(tx.update)(more(1), tx.init(more(0)), more(0))
    together.pop("a_wide")
    assert_close(together, alone, rtol=1e-4, atol=1e-7)


@pytest.mark.broad
@pytest.mark.parametrize("name", RECIPES)
def test_no_array_stands_twice_in_a_fresh_state(name):
    """Or it could not be donated; at full rank of a square matrix, too."""
    params = {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2)}
    leaves = jax.tree.leaves((params, RECIPES[name](0.01).init(params)))
    assert len({id(x) for x in leaves}) == len(leaves)
