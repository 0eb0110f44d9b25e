"""Partners: which matrix a block sees beside each one, wherever the two live."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _connectives import CONNECTIVES
from _matrices import gaussian
from _meshes import make_mesh
from _owned import normal, on_mesh
from _registry import BLOCKS
from _steps import first_update
from _tiers import LONG_BLOCKS
from jax.sharding import NamedSharding, PartitionSpec as P

import optax_matrix as om
from optax_matrix.stacks import make_layout
from optax_matrix.transforms import on_pairs, partners_of

D = om.MatrixDimensionNumbers
HEADS = om.matrices.by_path(
    include="^a|^b",
    numbers={"query|key": D(0, 2), "^fused": D(0, 1, output_sections=(4, 4, 2))},
)
# Five of one shape, names in another order than their partners'; heads as an axis of a
# stack of layers; sections of two sizes; matrices without a partner.
SHAPES = {
    **{f"a{i}/kernel": (8, 6) for i in range(5)},
    **{f"b{i}/kernel": (8, 6) for i in range(5)},
    "query": (8, 4, 16),
    "key": (8, 4, 16),
    "fused_q": (16, 10),
    "fused_k": (16, 10),
    "plain/kernel": (8, 6),
    "bias": (8,),
}
SPECS = {
    **{f"a{i}/kernel": P("fsdp", "tp") for i in range(5)},
    **{f"b{i}/kernel": P(("fsdp", "tp"), None) for i in range(5)},
    "query": P("fsdp", "tp", None),
    "key": P(None, "tp", "fsdp"),
    "fused_q": P("fsdp", None),
    "fused_k": P(("fsdp", "tp"), None),
    "plain/kernel": P("fsdp", "tp"),
    "bias": P(),
}
PARTNER = {f"a{i}/kernel": f"b{4 - i}/kernel" for i in range(5)}
PARTNER |= {"query": "key", "fused_q": "fused_k"}
BOTH = PARTNER | {b: a for a, b in PARTNER.items()}


def swapped():
    """Partners get one another's gradients; others get their own twice."""
    update = lambda g, _: {n: partners_of(g).get(n, 2 * x) for n, x in g.items()}
    return optax.stateless(update)


def swap(**options):
    return om.on_matrices(
        swapped(), pairs=PARTNER.get, dimension_numbers=HEADS, **options
    )


def assert_swapped(updates, grads):
    for path, got in updates.items():
        want = grads[BOTH[path]] if path in BOTH else grads[path]
        want = 2 * np.asarray(want) if path == "plain/kernel" else want
        np.testing.assert_array_equal(got, want, err_msg=path)


@pytest.mark.parametrize("max_batch", [None, 2])
def test_partners_are_at_the_same_places(max_batch):
    grads = normal(SHAPES, 1)
    tx = swap(max_batch=max_batch, probe=False)
    assert_swapped(first_update(tx, grads)[0], grads)


@pytest.mark.broad
@pytest.mark.parametrize("kind", ["explicit", "auto"])
@pytest.mark.parametrize(
    "options",
    [
        {"mesh_axes": ("fsdp", "tp")},
        {"mesh_axes": ("fsdp", "tp"), "teams": 2},
        {"mesh_axes": ("fsdp", "tp"), "pad_to": 8},
        {"mesh_axes": "fsdp"},
        None,
    ],
    ids=["owners", "teams", "padded", "inside", "none"],
)
@pytest.mark.daily("explicit")
def test_partners_have_one_owner(options, kind, cpus):
    shapes, specs = dict(SHAPES), dict(SPECS)
    if options and "pad_to" in options:  # It wants whole batch axes.
        specs |= {"query": P("fsdp"), "key": P(None, None, "fsdp")}
    mesh = make_mesh("fsdp4-tp2", kind, cpus)
    placement = None
    if options:
        known = {path: NamedSharding(mesh, spec) for path, spec in specs.items()}
        given = {"param_specs": known} if kind == "auto" else {}
        placement = om.owners(**options, **given)
    grads = on_mesh(normal(shapes, 1), specs, mesh)
    tx = swap(placement=placement, probe=False)
    with jax.set_mesh(mesh):
        state = tx.init(grads)
        updates, _ = jax.jit(tx.update)(grads, state, grads)
    assert_swapped(updates, grads)


def test_partners_on_other_axes_are_refused(cpus):
    mesh = make_mesh("fsdp4-tp2", "explicit", cpus)
    specs = {"query": P("fsdp", "tp"), "key": P("fsdp", None, "tp")}
    params = on_mesh(normal({n: SHAPES[n] for n in specs}, 1), specs, mesh)
    rule = om.matrices.by_path(numbers={"query|key": D(0, 2)})
    tx = om.on_matrices(
        swapped(),
        pairs={"query": "key"},
        dimension_numbers=rule,
        placement=om.owners(("fsdp", "tp")),
    )
    wanted = r"`pairs` must join leaves whose .*'query' on \('tp',\) and 'key' on \(\)"
    with pytest.raises(ValueError, match=wanted):
        tx.init(params)


LORA = {"q": {"lora_a": (6, 2), "lora_b": (2, 5), "kernel": (6, 5), "bias": (5,)}}


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        ({"lora_a": "lora_c"}, "'q/lora_a' leads to 'q/lora_c', which is no parameter"),
        ({"lora_a": "bias"}, "leads to 'q/bias', which is no matrix"),
        ({"lora_a": r"\g<0>"}, "leads to 'q/lora_a', which is itself"),
        ({"lora_[ab]": "kernel"}, "one to one, but 'q/kernel' is paired with"),
        ({"lora_a": "lora_b", "lora_b": "lora_a"}, "one to one, but 'q/lora_b' is"),
        ({"lora_a": "lora_b", "lora_b": "kernel"}, "one to one, but 'q/lora_b' is"),
    ],
)
def test_mistakes_are_found_at_init(pairs, said):
    rule = om.matrices.by_path(include="lora")
    tx = om.on_matrices(swapped(), pairs=pairs, dimension_numbers=rule)
    with pytest.raises(ValueError, match=f"`pairs` must .*{said}"):
        jax.eval_shape(tx.init, normal_tree(LORA))


def normal_tree(shapes, seed=0, dtype=np.float32):
    is_shape = lambda x: isinstance(x, tuple)
    rng = np.random.default_rng(seed)
    draw = lambda shape: rng.standard_normal(shape).astype(dtype)
    return jax.tree.map(draw, shapes, is_leaf=is_shape)


def test_another_number_of_matrices():
    params = normal_tree({"query": (8, 4, 3), "key": (8, 2, 3)})
    rule = om.matrices.by_path(numbers={"query|key": D(0, 2)})
    tx = om.on_matrices(swapped(), pairs={"query": "key"}, dimension_numbers=rule)
    with pytest.raises(ValueError, match=r"equally many .*4x \(3, 8\).*2x \(3, 8\)"):
        jax.eval_shape(tx.init, params)
    layers = {"a/kernel": (2, 3, 4, 5), "b/kernel": (3, 2, 4, 5)}  # Equally many.
    tx = om.on_matrices(swapped(), pairs={"a": "b"})
    with pytest.raises(ValueError, match=r"in one order.*\(2, 3\).*\(3, 2\)"):
        jax.eval_shape(tx.init, normal_tree(layers))


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        (3, "a dict of replacements"),
        ({"(": "a"}, "a regular expression"),
        ({"a": r"\3"}, "a replacement for 'a' .*invalid group reference 3"),
        ({"a": 1}, "a replacement for 'a'"),
    ],
)
def test_mistakes_are_found_at_once(pairs, said):
    with pytest.raises(ValueError, match=f"`pairs` must (be|have) {said}"):
        om.on_matrices(swapped(), pairs=pairs)


def test_an_expression_without_a_match_is_told():
    params = normal_tree({"up/kernel": (3, 4)})
    tx = om.on_matrices(swapped(), pairs={"lora_a": "lora_b"}, probe=False)
    with pytest.warns(om.matrices.UnmatchedPatternWarning, match="`pairs` has 'lora"):
        jax.eval_shape(tx.init, params)


@pytest.mark.broad
def test_a_partner_is_all_that_a_matrix_may_depend_on():
    pairs = {"a": "b"}
    params = {f"{n}{i}/kernel": gaussian(3, 4) for n in "ab" for i in range(2)}
    om.on_matrices(swapped(), pairs=pairs).init(params)
    others = lambda g, _: {n: jnp.roll(partners_of(g)[n], 1, 0) for n in g}
    with pytest.raises(ValueError, match="treat each matrix of a stack by itself"):
        om.on_matrices(optax.stateless(others), pairs=pairs).init(params)


def test_partners_are_known_in_on_matrices_only():
    for tx in (swapped(), on_pairs(lambda a, b: (a.update, b.update))):
        with pytest.raises(ValueError, match=r"`pairs` must be known.*om.on_matrices"):
            tx.update({"w": jnp.ones((1, 2, 3))}, (), None)
    alone = om.per_matrix(optax.stateless(lambda g, _: partners_of(g)))
    tx = om.on_matrices(alone, pairs={"a": "b"})
    with pytest.raises(ValueError, match="inside `per_matrix` partners are unknown"):
        jax.eval_shape(tx.init, {"a": gaussian(2, 3), "b": gaussian(2, 3)})


# `on_pairs`.


def product(a, b):
    """Something of all that is known, that mixes all entries of both."""
    left = b.params.mT @ b.params @ a.update + a.gradient
    return left, b.update @ a.params @ a.params.mT - b.gradient


def restated(a, b, grad_a, grad_b, moment_a, moment_b):
    left = b.T @ b @ moment_a + grad_a
    return left, moment_b @ a @ a.T - grad_b


def chain(decay=0.5):
    inner = optax.chain(om.momentum(decay), on_pairs(product, optax.scale(-1.0)))
    return om.transforms.with_gradient(inner)


LAYERS = {f"l{i}": LORA for i in range(3)}
OPTIONS = {
    "pairs": {"lora_a": "lora_b"},
    "needs_params": True,
    "dimension_numbers": om.matrices.by_path(include="lora"),
}


def assert_is_restated(make, decay=0.5, rtol=1e-5, dtype=np.float32, steps=2):
    params = normal_tree(LAYERS, 0, dtype)
    tx = make(functools.partial(om.on_matrices, probe=False))
    state, update = jax.jit(tx.init)(params), jax.jit(tx.update)
    wide = lambda x: np.asarray(x, np.float64)
    moments = {}
    for step in range(steps):
        grads = normal_tree(LAYERS, 10 + step, dtype)
        updates, state = update(grads, state, params)
        for layer in LAYERS:
            w, g, u = (wide_of(t[layer]["q"], wide) for t in (params, grads, updates))
            for name in ("lora_a", "lora_b", "kernel"):
                old = moments.get((layer, name), 0)
                moments[layer, name] = decay * old + (1 - decay) * g[name]
            both = [moments[layer, n] for n in ("lora_a", "lora_b")]
            args = (w["lora_a"], w["lora_b"], g["lora_a"], g["lora_b"], *both)
            want = dict(zip(("lora_a", "lora_b"), restated(*args), strict=True))
            want["kernel"] = -moments[layer, "kernel"]
            for name, x in want.items():
                atol = rtol * np.abs(x).max()
                np.testing.assert_allclose(u[name], x, rtol, atol, err_msg=name)
    return params, state


def wide_of(leaves, wide):
    """The leaves as the papers' ``out x in``."""
    return {name: wide(x).T for name, x in leaves.items()}


def test_a_kernel_sees_gradients_momenta_and_weights_of_both():
    assert_is_restated(lambda on: on(chain(), **OPTIONS))


@pytest.mark.broad
@pytest.mark.parametrize(
    ("make", "rtol"),
    [
        (lambda on: optax.chain(on(chain(), **OPTIONS), optax.scale(1.0)), 1e-5),
        (lambda on: on(in_blocks_too(), **OPTIONS), 1e-5),
        (
            lambda on: om.inject_hyperparams(lambda decay: on(chain(decay), **OPTIONS))(
                0.5
            ),
            1e-5,
        ),
        (
            lambda on: on(
                chain(), **OPTIONS, placement=om.quantized(min_size=1, block_size=4)
            ),
            0.05,
        ),
        (lambda on: optax.masked(on(chain(), **OPTIONS), is_kept), 1e-5),
        (lambda on: optax.MultiSteps(on(chain(), **OPTIONS), 1), 1e-5),
    ],
    ids=["chain", "nested", "injected", "quantized", "masked", "multi_steps"],
)
def test_pairs_in_wrappers(make, rtol):
    assert_is_restated(make, rtol=rtol)


def in_blocks_too():
    """The chain within another connective, which is one of itself."""
    both = on_pairs(lambda a, b: (a.update, b.update), om.per_matrix(optax.scale(1.0)))
    return optax.chain(both, chain())


def without(name, tree):
    """A mask of all leaves but those of a name."""
    return jax.tree_util.tree_map_with_path(lambda k, _: name not in str(k), tree)


def is_kept(tree):
    return jax.tree_util.tree_map_with_path(
        lambda keys, _: "bias" not in str(keys), tree
    )


@pytest.mark.broad
def test_pairs_in_half_precision():
    assert_is_restated(
        lambda on: on(chain(), **OPTIONS), rtol=0.03, dtype=jnp.bfloat16, steps=1
    )


def test_one_without_its_partner_is_refused():
    params = normal_tree(LAYERS)
    tx = om.on_matrices(chain(), **OPTIONS)
    frozen = jax.tree_util.tree_map_with_path(
        lambda k, _: "lora_b" not in str(k), params
    )
    with pytest.raises(ValueError, match=r"leads to 'l0/q/lora_b', .*train both"):
        optax.masked(tx, frozen).init(params)
    alone = om.on_matrices(on_pairs(product), **OPTIONS)
    with pytest.raises(ValueError, match=r"every matrix a partner .*l0/q/kernel"):
        jax.eval_shape(alone.init, params)


def test_a_kernel_of_pairs_keeps_the_shapes():
    tx = om.on_matrices(on_pairs(lambda a, b: (a.update, b.update.mT)), **OPTIONS)
    only = {"l0": {k: normal_tree(LORA)["q"][k] for k in ("lora_a", "lora_b")}}
    with pytest.raises(ValueError, match=r"`f` must return the updates of both"):
        jax.eval_shape(tx.init, only)


@pytest.mark.broad
@pytest.mark.parametrize("policy", ["propagate", "skip", "zero"])
def test_a_bad_gradient_is_a_zero_one_to_the_partner(policy):
    params, grads = normal_tree(LAYERS), normal_tree(LAYERS, 1)
    bad, zero = (jax.tree.map(np.copy, grads) for _ in range(2))
    bad["l0"]["q"]["lora_a"][0, 0] = np.nan
    zero["l0"]["q"]["lora_a"][:] = 0
    tx = om.on_matrices(chain(), probe=False, nonfinite=policy, **OPTIONS)
    update = jax.jit(lambda g: tx.update(g, tx.init(params), params))
    (got, state), (want, other) = update(bad), update(zero)
    a = got["l0"]["q"].pop("lora_a")
    kept = want["l0"]["q"].pop("lora_a")
    jax.tree.map(np.testing.assert_array_equal, got, want)
    wanted = {
        "propagate": np.isnan,
        "skip": lambda x: x == 0,
        "zero": lambda x: x == kept,
    }
    assert wanted[policy](np.asarray(a)).all()
    if policy == "zero":
        jax.tree.map(np.testing.assert_array_equal, state, other)


def mixing(otherwise):
    """Linear functions of both for pairs, and what others get."""
    mixed = lambda a, b: (b.params.mT @ b.params @ a.update, 2 * b.update)
    return on_pairs(mixed, otherwise)


def mixed_64(name, w, otherwise):
    if name == "kernel":
        return otherwise
    left = w["lora_b"].T @ w["lora_b"] if name == "lora_a" else 2 * np.eye(5)
    return lambda xs, _: [left @ x for x in xs]


def assert_nested(tx, restated, steps=2):
    """``restated`` makes a leaf's function of a stream of its name and the weights."""
    params, tx = normal_tree(LAYERS), om.on_matrices(tx, probe=False, **OPTIONS)
    grads = [normal_tree(LAYERS, 10 + step) for step in range(steps)]
    state, update = jax.jit(tx.init)(params), jax.jit(tx.update)
    for tree in grads:
        updates, state = update(tree, state, params)
    wide = lambda tree, layer: wide_of(tree[layer]["q"], np.float64)
    for layer in LAYERS:
        w, u = wide(params, layer), wide(updates, layer)
        for name in ("lora_a", "lora_b", "kernel"):
            stream = [wide(tree, layer)[name] for tree in grads]
            want = restated(name, w)(stream, stream)[-1]
            np.testing.assert_allclose(u[name], want, 2e-5, 2e-5, err_msg=name)


SAME = optax.identity(), lambda xs, _: xs
MOMENTUM = om.momentum(0.5), lambda xs, _: [xs[0] / 2, xs[0] / 4 + xs[1] / 2]
WHOLE = [name for name in CONNECTIVES if name not in ("in_blocks", "per_matrix")]


@pytest.mark.broad
@pytest.mark.parametrize("outer", WHOLE)
def test_pairs_within_every_connective(outer):
    around = CONNECTIVES[outer]
    pairs = mixing(SAME[0])
    tx, _ = around((pairs, SAME[1]), MOMENTUM)
    each = lambda name, w: around((pairs, mixed_64(name, w, SAME[1])), MOMENTUM)[1]
    assert_nested(tx, each)


@pytest.mark.broad
@pytest.mark.parametrize("inner", [*CONNECTIVES, "on_pairs"])
def test_every_connective_within_pairs(inner):
    """Pairs have the kernel alone; of two, the outer one has them."""
    inside = (mixing(SAME[0]), SAME[1])
    if inner != "on_pairs":
        inside = CONNECTIVES[inner](MOMENTUM, MOMENTUM)
    each = lambda name, w: mixed_64(name, w, inside[1])
    assert_nested(mixing(inside[0]), each)


@pytest.mark.parametrize("outer", ["in_blocks", "per_matrix"])
def test_matrices_taken_apart_have_no_partners(outer):
    inner, _ = CONNECTIVES[outer]((mixing(SAME[0]), SAME[1]), MOMENTUM)
    tx = om.on_matrices(inner, **OPTIONS)
    with pytest.raises(ValueError, match="`on_pairs` must get whole matrices"):
        jax.eval_shape(tx.init, normal_tree(LAYERS))


@pytest.mark.broad
def test_state_of_pairs_is_portable_and_seen_by_map_params():
    params, state = assert_is_restated(lambda on: on(chain(), **OPTIONS))
    tx = om.on_matrices(chain(), **OPTIONS | {"max_batch": 1})
    other = om.from_portable(om.to_portable(state, params), tx.init(params), params)
    whole = om.on_matrices(chain(), **OPTIONS)
    updates = [t.update(params, s, params)[0] for t, s in ((whole, state), (tx, other))]
    close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
    jax.tree.map(close, *updates)
    marked = optax.tree.map_params(whole, lambda x: x + 1, state)
    seen = jax.tree.map(lambda a, b: bool((a != b).all()), marked, state)
    assert all(jax.tree.leaves(seen.inner_state)), seen.inner_state
    assert jax.tree.leaves(seen.inner_state)


def is_long(name):
    """Whether a block compiles for long."""
    return any(word in name for word in LONG_BLOCKS)


@pytest.mark.broad
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if is_long(name) else name
        for name in BLOCKS
    ],
)
def test_other_blocks_do_not_know_of_pairs(name):
    params = {f"{n}{i}/kernel": gaussian(4, 6, seed=i) for n in "ab" for i in range(2)}
    params = jax.tree.map(np.float32, params)
    both = {}
    for pairs in (None, {"a": "b"}):
        tx = om.on_matrices(BLOCKS[name](), pairs=pairs, probe=False)
        step = jax.jit(tx.update)
        state = tx.init(params)
        for _ in range(2):
            updates, state = step(params, state)
        both[pairs is None] = updates
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    jax.tree.map(close, both[True], both[False])


def test_without_pairs_the_layout_has_none():
    assert make_layout(normal_tree(LAYERS)).partners == {}
