"""Weights made of rotations: what they are, what is trained, what a merge does."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import optax_matrix as om
from optax_matrix.weights._reset import reset_rotations

# Every kind of view, and sides that no block divides.
SHAPES = {
    "layers/up/kernel": (2, 6, 10),  # Scanned layers, (in, out).
    "attn/query/kernel": (6, 2, 3),  # (in, heads, dim).
    "qkv/kernel": (6, 9),  # Split into three matrices.
    "bias": (5,),
}
RULE = om.matrices.by_path(
    numbers={"qkv": om.MatrixDimensionNumbers(0, 1, output_sections=(5, 2, 2))}
)
ADAM = optax.chain(
    optax.scale_by_adam(), optax.scale_by_learning_rate(lambda count: 0.1 / (1 + count))
)


def _params(dtype=jnp.float32):
    keys = jax.random.split(jax.random.key(0), len(SHAPES))
    pairs = zip(SHAPES.items(), keys, strict=True)
    return {p: jax.random.normal(key, s, dtype) for (p, s), key in pairs}


def _drawn(tree, seed=1):
    """Random numbers of 0.1 in place of every leaf."""
    leaves, structure = jax.tree.flatten(tree)
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    new = [
        0.1 * jax.random.normal(k, x.shape) for k, x in zip(keys, leaves, strict=True)
    ]
    return structure.unflatten(new)


def _poet(**options):
    return om.reparameterize(
        **{"block": 4, "merge_interval": 3, "dimension_numbers": RULE}
        | {"orthogonal": om.linalg.cayley_neumann}  # With a bound in the optimizer.
        | options
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"variant": "full", "block": 0.5}, marks=pytest.mark.broad),
        pytest.param({"sides": "in"}, marks=pytest.mark.broad),
    ],
    ids=["block", "full", "oft"],
)
def test_split_gives_the_same_weights_and_counts_only_rotations(options):
    params, poet = _params(), _poet(**options)
    frozen, trainable = poet.split(params)
    back = jax.jit(poet.materialize)(frozen, trainable)
    for path, leaf in params.items():
        # Permuted and multiplied by the identity: exact.
        np.testing.assert_array_equal(back[path], leaf)
    (bias,) = jax.tree.leaves(trainable.others)
    assert bias is params["bias"]
    assert not any(map(jnp.any, jax.tree.leaves(trainable.rotations)))
    sides = [set(s) for pieces in trainable.rotations.values() for s in pieces]
    assert set(map(frozenset, sides)) == {
        frozenset({"in"} if "sides" in options else {"in", "out"})
    }
    assert [len(pieces) for pieces in trainable.rotations.values()] == [1, 1, 3]


def _dense(triangle, perm, b):
    """R = Psi' diag(G_i) Psi in float64, the last block cut to what is left of it."""
    n = len(perm)
    blocks = np.eye(n)
    for i, v in enumerate(np.asarray(triangle, np.float64)):
        q = np.zeros((b, b))
        q[np.triu_indices(b, 1)] = v
        q = (q - q.T)[: n - i * b, : n - i * b]
        powers = sum(np.linalg.matrix_power(q, k) for k in range(5))
        at = slice(i * b, i * b + len(q))
        blocks[at, at] = (np.eye(len(q)) + q) @ powers
    psi = np.eye(n)[np.asarray(perm)]
    return psi.T @ blocks @ psi


@pytest.mark.broad
def test_weights_are_the_papers_product():
    """W = R W_0 P with W (in, out), as Flax stores it and the paper writes it."""
    w_0 = _params()["layers/up/kernel"]
    poet = _poet()
    frozen, trainable = poet.split({"layers/up/kernel": w_0})
    trainable = _drawn(trainable)
    w = jax.jit(poet.materialize)(frozen, trainable)["layers/up/kernel"]
    (q,) = trainable.rotations["layers/up/kernel"]
    (perms,) = frozen.perms["layers/up/kernel"]
    for layer in range(2):
        r = _dense(q["in"][layer], perms["in"][layer], 4)
        p = _dense(q["out"][layer], perms["out"][layer], 4).T
        want = r @ np.asarray(w_0[layer], np.float64) @ p
        # Sums of ten products of numbers up to about 2 in float32.
        np.testing.assert_allclose(w[layer], want, atol=3e-6)
        values = np.linalg.svd(w[layer], compute_uv=False)
        before = np.linalg.svd(w_0[layer], compute_uv=False)
        # The error of k = 4 is s^10, s about 0.3 here.
        np.testing.assert_allclose(values, before, rtol=1e-4)


def _loss(params):
    return sum(jnp.sum((x - 0.3) ** 2) for x in jax.tree.leaves(params))


def _merges(frozen):
    """The numbers of merges of the matrices."""
    return {int(n) for x in jax.tree.leaves(frozen.merges) for n in x}


def _train(poet, parts, steps, tx=None):
    """Parts, state and every state on the way, by one compiled step."""
    tx = tx or poet.optimizer(ADAM, optax.adam(0.1))
    frozen, trainable = parts
    state = tx.init(trainable)

    @jax.jit
    def step(frozen, trainable, state):
        loss = lambda t: _loss(poet.materialize(frozen, t))
        updates, state = tx.update(jax.grad(loss)(trainable), state, trainable)
        trainable = optax.apply_updates(trainable, updates)
        before = poet.materialize(frozen, trainable)
        new = poet.merge_if_due(frozen, trainable, state, tx)
        return new, before

    history = []
    for _ in range(steps):
        (frozen, trainable, state), before = step(frozen, trainable, state)
        history.append((frozen, trainable, state, before))
    assert step._cache_size() == 1
    return history


@pytest.fixture(scope="module")
def history():
    poet = _poet()
    return poet, _train(poet, poet.split(_params()), 7)


@pytest.mark.slow
def test_a_merge_changes_the_frame_and_not_the_weights(history):
    poet, states = history
    assert [_merges(f) for f, *_ in states] == [{0}, {0}, {1}, {1}, {1}, {2}, {2}]
    assert [int(f.count) for f, *_ in states] == [1, 2, 0, 1, 2, 0, 1]
    (old, *_), (frozen, trainable, _, before) = states[1:3]
    after = jax.jit(poet.materialize)(frozen, trainable)
    for path, w in before.items():
        np.testing.assert_array_equal(after[path], w)
    assert not any(map(jnp.any, jax.tree.leaves(trainable.rotations)))
    changed = jax.tree.map(lambda a, b: bool((a != b).any()), old.perms, frozen.perms)
    sizes = [x.shape[-1] for x in jax.tree.leaves(old.perms)]
    kept = [s for s, c in zip(sizes, jax.tree.leaves(changed), strict=True) if not c]
    assert set(kept) <= {2}  # Half of all permutations of two are the same.


@pytest.mark.slow
def test_singular_values_stay_and_the_loss_falls(history):
    poet, states = history
    frozen, trainable, *_ = states[-1]
    new, old = jax.jit(poet.materialize)(frozen, trainable), _params()
    assert _loss(new) < _loss(old) - 5
    for layer in range(2):
        after, before = (
            np.linalg.svd(tree["layers/up/kernel"][layer], compute_uv=False)
            for tree in (new, old)
        )
        np.testing.assert_allclose(after, before, rtol=1e-3)


def _moments(state, label):
    inner = state.inner_states[label].inner_state
    return inner[0] if label == "rotations" else inner  # Beside it is the bound's.


@pytest.mark.broad
def test_a_merge_resets_moments_of_rotations_alone(history):
    _, states = history
    before, after = (state for _, _, state, _ in states[1:3])
    adam, schedule = _moments(after, "rotations")
    assert int(adam.count) == 0
    assert not any(map(jnp.any, jax.tree.leaves((adam.mu, adam.nu))))
    assert int(schedule.count) == 3  # The learning rate goes on.
    others = _moments(after, "others")[0]
    assert int(others.count) == 3
    assert jnp.any(others.mu.others["bias"] != 0)
    assert int(_moments(before, "rotations")[0].count) == 2


@pytest.mark.slow
def test_state_is_kept_on_request_and_of_a_shared_adam_the_count():
    params = {"k": _params()["layers/up/kernel"], "bias": _params()["bias"]}
    kept = _poet(reset="none")
    *_, (_, _, state, _) = _train(kept, kept.split(params), 3)
    adam, _ = _moments(state, "rotations")
    assert int(adam.count) == 3
    assert jnp.any(adam.mu.rotations["k"][0]["in"] != 0)
    poet = _poet()
    *_, (_, _, state, _) = _train(poet, poet.split(params), 3, optax.adam(0.1))
    assert int(state[0].count) == 3  # It is the bias's as well.
    assert not jnp.any(state[0].mu.rotations["k"][0]["in"])
    assert jnp.any(state[0].mu.others["bias"])


@pytest.mark.broad
def test_a_remainder_stays_the_identity_even_if_someone_moves_it():
    poet = _poet(sides="in")
    params = {"kernel": _params()["qkv/kernel"]}  # Six inputs in blocks of four.
    frozen, trainable = poet.split(params)
    loss = lambda t: _loss(poet.materialize(frozen, t))
    gradient = jax.jit(jax.grad(loss))(_drawn(trainable))
    dead = gradient.rotations["kernel"][0]["in"][0, 1, 1:]
    np.testing.assert_array_equal(dead, 0)
    moved = trainable.rotations["kernel"][0]["in"].at[0, 1, 1:].set(1.0)
    trainable.rotations["kernel"][0]["in"] = moved
    back = jax.jit(poet.materialize)(frozen, trainable)
    np.testing.assert_array_equal(back["kernel"], params["kernel"])


@pytest.mark.slow
def test_bfloat16_weights_have_float32_rotations():
    params = _params(jnp.bfloat16)
    poet = _poet(train_others=False)
    frozen, trainable = poet.split(params)
    assert {x.dtype for x in jax.tree.leaves(trainable)} == {jnp.dtype(jnp.float32)}
    back = jax.jit(poet.materialize)(frozen, trainable)
    assert {x.dtype for x in back.values()} == {jnp.dtype(jnp.bfloat16)}
    np.testing.assert_array_equal(back["bias"], params["bias"])
    assert not jax.tree.leaves(trainable.others)


class _Model(nnx.Module):
    def __init__(self, rngs):
        self.up = nnx.Linear(6, 8, rngs=rngs)
        self.down = nnx.Linear(8, 6, rngs=rngs)

    def __call__(self, x):
        return self.down(jax.nn.gelu(self.up(x)))


@pytest.mark.slow
def test_an_nnx_model_trains_and_ends_as_itself():
    model = _Model(nnx.Rngs(0))
    graph, params = nnx.split(model, nnx.Param)
    poet = om.reparameterize(block=4, merge_interval=4)
    tx = poet.optimizer(optax.adam(0.05), optax.adam(0.05))
    x = jax.random.normal(jax.random.key(0), (16, 6))

    @jax.jit
    def step(frozen, trainable, state):
        def loss(trainable):
            params = poet.materialize(frozen, trainable)
            return jnp.mean((nnx.merge(graph, params)(x) - x) ** 2)

        value, gradient = jax.value_and_grad(loss)(trainable)
        updates, state = tx.update(gradient, state, trainable)
        trainable = optax.apply_updates(trainable, updates)
        return *poet.merge_if_due(frozen, trainable, state, tx), value

    parts = poet.split(params)
    parts, losses = (*parts, tx.init(parts[1])), []
    for _ in range(30):
        *parts, loss = step(*parts)
        losses.append(float(loss))
    assert losses[-1] < 0.6 * losses[0]
    final = nnx.merge(graph, jax.jit(poet.materialize)(*parts[:2]))
    assert jax.tree.structure(nnx.state(final)) == jax.tree.structure(nnx.state(model))
    values = np.linalg.svd(final.up.kernel[...], compute_uv=False)
    before = np.linalg.svd(model.up.kernel[...], compute_uv=False)
    np.testing.assert_allclose(values, before, rtol=1e-3)


@pytest.mark.slow
def test_layers_may_be_made_inside_the_scan_over_them():
    poet = om.reparameterize(block=4)
    layers = {
        "mlp": {"kernel": _params()["layers/up/kernel"], "bias": jnp.ones((2, 3))}
    }
    frozen, trainable = poet.split(layers)
    trainable = _drawn(trainable)
    want = jax.jit(poet.materialize)(frozen, trainable)

    def body(_, parts):
        weights, perms, trainable = parts
        layer = frozen._replace(weights=weights, perms=perms)
        return None, poet.materialize(layer, trainable)

    _, got = jax.lax.scan(body, None, (frozen.weights, frozen.perms, trainable))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), got, want
    )


@pytest.mark.parametrize(
    "options",
    [
        {"variant": "blocks"},
        {"reset": "all"},
        {"sides": "left"},
        {"block": 1},
        {"block": 1.5},
        {"block": {"in": 4}},
        {"merge_interval": 0},
        {"orthogonal": 4},
    ],
    ids=str,
)
def test_it_refuses(options):
    (name,) = options
    with pytest.raises(ValueError, match=f"`{name}` must"):
        om.reparameterize(**options)


def test_parts_of_other_blocks_are_refused():
    parts = om.reparameterize(block=8).split({"kernel": jnp.ones((16, 16))})
    with pytest.raises(ValueError, match=r"triangles of shape \(4, 6\)"):
        om.reparameterize(block=4).materialize(*parts)


@pytest.mark.daily("False")
@pytest.mark.parametrize("apart", [True, False])
def test_a_module_named_rotations_keeps_its_moments(apart):
    trainable = om.weights.Trainable(
        {"k": [{"in": jnp.ones((1, 1, 3))}]},
        {"rotations": {"k": {"a": {"b": jnp.ones(3)}}}},
    )
    adam = optax.adam(0.1)
    tx = _poet().optimizer(adam, adam) if apart else adam
    fresh = tx.init(trainable)
    _, state = jax.jit(tx.update)(trainable, fresh, trainable)
    new = reset_rotations(state, fresh, {"k": [jnp.ones((1,), bool)]})
    label = lambda name: _moments(new, name)[0] if apart else new[0]
    assert not label("rotations").mu.rotations["k"][0]["in"].any()
    assert int(label("rotations").count) == (0 if apart else 1)
    assert label("others").mu.others["rotations"]["k"]["a"]["b"].all()
    assert int(label("others").count) == 1


def test_a_reset_needs_the_optimizer():
    poet = _poet()
    frozen, trainable = poet.split({"bias": jnp.ones(3)})
    with pytest.raises(ValueError, match="`tx` must be the optimizer"):
        poet.merge(frozen, trainable, optax.adam(1e-3).init(trainable))


@pytest.mark.slow
def test_micro_steps_of_multi_steps_are_no_updates():
    poet = om.reparameterize(block=4, merge_interval=3, train_others=False)
    own = poet.optimizer(optax.sgd(0.01), optax.identity())
    tx = optax.MultiSteps(own, 4)
    frozen, trainable = poet.split({"k": _params()["layers/up/kernel"]})

    @jax.jit
    def step(frozen, trainable, state):
        loss = lambda t: _loss(poet.materialize(frozen, t))
        updates, state = tx.update(jax.grad(loss)(trainable), state, trainable)
        trainable = optax.apply_updates(trainable, updates)
        updated = tx.has_updated(state)
        return poet.merge_if_due(frozen, trainable, state, tx, updated=updated)

    state, counts = tx.init(trainable), []
    for _ in range(16):
        frozen, trainable, state = step(frozen, trainable, state)
        counts.append((*_merges(frozen), int(frozen.count)))
    assert counts[3::4] == [(0, 1), (0, 2), (1, 0), (1, 1)]
    assert counts[10] == (0, 2)
    assert int(state.gradient_step) == 4  # A merge keeps it.
