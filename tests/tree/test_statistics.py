"""Extra arguments that are trees of the parameters are stacked as gradients are."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _matrices import gaussian
from _meshes import collectives, make_mesh
from _owned import normal, on_mesh
from _steps import first_update
from jax.sharding import NamedSharding, PartitionSpec as P

import optax_matrix as om

D = om.MatrixDimensionNumbers
RULE = om.matrices.by_path(
    numbers={
        "fused": D(0, 1, output_sections=(4, 4, 2)),
        "out": D((0, 1), 2, reduction_sections=4),
    }
)
# Layers of experts, sections on either side, merged axes.
SHAPES = {
    "up/kernel": (8, 6),
    "down/kernel": (8, 6),
    "moe/kernel": (2, 4, 8, 6),
    "fused": (16, 10),
    "out": (4, 8, 6),
    "bias": (6,),
}
SPECS = {
    "up/kernel": P("fsdp", "tp"),
    "down/kernel": P(None, "tp"),
    "moe/kernel": P(None, "fsdp", "tp", None),
    "fused": P(("fsdp", "tp"), None),
    "out": P("fsdp", None, "tp"),
    "bias": P(),
}
MATRICES = [path for path in SHAPES if path != "bias"]
FRONT = {"moe/kernel": (2, 4)}
IN = {"up/kernel": 8, "down/kernel": 8, "moe/kernel": 8, "fused": 16, "out": 32}
OUT = {"up/kernel": 6, "down/kernel": 6, "moe/kernel": 6, "fused": 10, "out": 6}
FORMS = {
    "inputs": ("in", "in"),
    "outputs": ("out", "out"),
    "columns": ("in",),
    "tokens": (),
    "likes": None,
}


def statistics(seed=5):
    """A tree for each of the names above."""
    rng = np.random.default_rng(seed)
    draw = lambda *shape: rng.standard_normal(shape).astype(np.float32)
    front = lambda path: FRONT.get(path, ())
    return {
        "inputs": {p: draw(*front(p), IN[p], IN[p]) for p in MATRICES},
        "outputs": {p: draw(*front(p), OUT[p], OUT[p]) for p in MATRICES},
        "columns": {p: draw(*front(p), IN[p]) for p in MATRICES},
        "tokens": {p: draw(*front(p)) for p in MATRICES},
        "likes": {p: draw(*SHAPES[p]) for p in SHAPES},
    }


def block(seen=None):
    """All statistics at once, in a form that shows any mistake of their places."""

    def update(updates, state, params=None, **extra):
        del params
        if seen is not None:
            seen.append(extra)

        def of(name, g):
            own = {key: extra[key][name] for key in FORMS}
            middle = own["outputs"] @ g @ own["inputs"] + own["likes"]
            return middle * own["columns"][:, None] * own["tokens"][:, None, None]

        return {name: of(name, g) for name, g in updates.items()}, state

    init = lambda _: optax.EmptyState()
    return optax.GradientTransformationExtraArgs(init, update)


def restated(path, g, extra):
    """The same of one leaf, as papers write it: ``(..., out, in)``."""
    own = {key: tree[path].astype(np.float64) for key, tree in extra.items()}

    def one(g, inputs, outputs, columns, tokens, likes):
        return (outputs @ g @ inputs + likes) * columns * tokens

    seen = lambda x: (
        x.reshape(-1, x.shape[-1]).T if path == "out" else x.swapaxes(-1, -2)
    )
    g, like = seen(g), seen(own["likes"])
    if path == "moe/kernel":
        parts = [
            one(g[i], *(own[k][i] for k in list(FORMS)[:4]), like[i])
            for i in np.ndindex(2, 4)
        ]
        return np.reshape(parts, g.shape).swapaxes(-1, -2)
    cuts = {"fused": [(slice(a, b), slice(None)) for a, b in ((0, 4), (4, 8), (8, 10))]}
    cuts["out"] = [(slice(None), slice(8 * i, 8 * i + 8)) for i in range(4)]
    new = np.zeros_like(g)
    for rows, cols in cuts.get(path, [(slice(None), slice(None))]):
        parts = own["inputs"][cols, cols], own["outputs"][rows, rows]
        args = *parts, own["columns"][cols], own["tokens"], like[rows, cols]
        new[rows, cols] = one(g[rows, cols], *args)
    return new.T.reshape(SHAPES[path])


def wrapped(**options):
    options = {"probe": False, "dimension_numbers": RULE, "statistics": FORMS} | options
    return om.on_matrices(block(options.pop("seen", None)), **options)


def assert_restated(updates, grads, extra):
    for path in MATRICES:
        want = restated(path, np.float64(grads[path]), extra)
        atol = 1e-5 * np.abs(want).max()
        np.testing.assert_allclose(updates[path], want, 1e-5, atol, err_msg=path)


@pytest.mark.parametrize("max_batch", [None, 1])
def test_each_matrix_has_its_own_statistics(max_batch):
    grads, extra, seen = normal(SHAPES, 1), statistics(), []
    tx = wrapped(max_batch=max_batch, seen=seen)
    updates, _ = first_update(tx, grads, None, **extra, loss=2.0, nothing=None)
    assert_restated(updates, grads, extra)
    assert set(seen[0]) == {*FORMS, "loss", "nothing"}
    assert jnp.shape(seen[0]["loss"]) == ()
    assert seen[0]["nothing"] is None


@pytest.mark.broad
@pytest.mark.parametrize("kind", ["explicit", "auto"])
@pytest.mark.parametrize(
    "axes", [("fsdp", "tp"), ("tp", "fsdp"), "fsdp", None], ids=str
)
@pytest.mark.parametrize("is_sharded", [False, True])
@pytest.mark.daily("explicit")
def test_statistics_reach_the_owners(axes, kind, is_sharded, cpus):
    mesh = make_mesh("fsdp4-tp2", kind, cpus)
    placement = None
    if axes is not None:
        known = {path: NamedSharding(mesh, spec) for path, spec in SPECS.items()}
        given = {"param_specs": known} if kind == "auto" else {}
        placement = om.owners(axes, **given)
    plain, extra = normal(SHAPES, 1), statistics()
    grads, trees = on_mesh(plain, SPECS, mesh), extra
    if is_sharded:  # In some other way than gradients are.
        place = lambda x: P(*[None] * (x.ndim - 1), "tp") if x.ndim else P()
        put = lambda x: jax.device_put(x, NamedSharding(mesh, place(x)))
        trees = {name: jax.tree.map(put, tree) for name, tree in extra.items()}
    with jax.set_mesh(mesh):
        updates, _ = first_update(wrapped(placement=placement), grads, None, **trees)
    assert_restated(updates, plain, extra)


def test_what_has_another_form_is_passed_as_it_is():
    params, seen = {"a/kernel": gaussian(2, 3), "b/kernel": gaussian(3, 2)}, []
    update = lambda u, s, *_, **extra: (u, seen.append(extra) or s)
    init = lambda _: optax.EmptyState()
    block = optax.GradientTransformationExtraArgs(init, update)
    tx = om.on_matrices(block, probe=False)
    given = {
        "key": jax.random.key(0),
        "transposed": {name: x.T for name, x in params.items()},
        "part": {"a/kernel": params["a/kernel"]},
        "batch": np.ones((2, 3)),
        "value": 3.0,
        "f": np.sin,
    }
    jax.eval_shape(lambda p: tx.update(p, tx.init(p), p, alike=params, **given), params)
    *_, last = seen
    shapes = lambda tree: jax.tree.map(jnp.shape, tree)
    assert last["f"] is given.pop("f")
    for name, value in given.items():
        assert shapes(last[name]) == shapes(value), name
    assert sorted(map(jnp.shape, last["alike"].values())) == [(1, 2, 3), (1, 3, 2)]


@pytest.mark.parametrize(
    ("statistics", "said"),
    [
        (["inputs"], "must be a dict of sides"),
        ({"params": ()}, "must name extra arguments of `update`"),
        ({3: ()}, "must name extra arguments of `update`"),
        ({"k": "in"}, "must have for each name a tuple"),
        ({"k": ("rows",)}, "must have for each name a tuple"),
        ({"k": ("in",) * 3}, "must have for each name a tuple"),
    ],
)
def test_mistakes_are_found_at_once(statistics, said):
    with pytest.raises(ValueError, match=f"`statistics` {said}"):
        om.on_matrices(optax.identity(), statistics=statistics)


def test_mistakes_of_trees_are_told():
    grads, extra = normal(SHAPES, 1), statistics()
    tx = wrapped()
    run = lambda **extra: jax.eval_shape(
        lambda g: tx.update(g, tx.init(g), g, **extra), grads
    )
    with pytest.raises(ValueError, match="`inputs` must be passed to `update`, since"):
        run(**extra | {"inputs": None})
    wrong = {path: x for path, x in extra["inputs"].items() if path != "out"}
    with pytest.raises(ValueError, match=r"`inputs` .*\(32, 32\) .*'out', got none"):
        run(**extra | {"inputs": wrong})
    wrong = extra["tokens"] | {"moe/kernel": np.zeros((4, 2))}
    with pytest.raises(
        ValueError, match=r"`tokens` .*\(2, 4\) .*'moe/kernel', got \(4"
    ):
        run(**extra | {"tokens": wrong})


def needing(decay=1.0):
    """A block that cannot do without its statistic."""

    def update(updates, state, params=None, *, moments, **extra):
        del params, extra
        return jax.tree.map(lambda g, k: decay * g @ k, updates, moments), state

    init = lambda _: optax.EmptyState()
    return optax.GradientTransformationExtraArgs(init, update)


MODEL = {"up": {"kernel": (4, 3), "bias": (3,)}, "down": {"kernel": (4, 3)}}
MOMENTS = {name: {"kernel": gaussian(4, 4, seed=i)} for i, name in enumerate(MODEL)}
GRADS = {
    name: {key: np.float32(gaussian(*shape)) for key, shape in leaves.items()}
    for name, leaves in MODEL.items()
}


def on_moments(chain, **options):
    forms = {"moments": ("in", "in")}
    return om.on_matrices(chain, statistics=forms, **options)


@pytest.mark.broad
def test_the_probe_finds_a_mix_of_matrices():
    on_moments(needing()).init(GRADS)

    def update(updates, state, params=None, *, moments, **extra):
        del params, extra
        mean = lambda g, k: g @ k.mean(0)
        return jax.tree.map(mean, updates, moments), state

    tx = optax.GradientTransformationExtraArgs(lambda _: optax.EmptyState(), update)
    with pytest.raises(ValueError, match="treat each matrix of a stack by itself"):
        on_moments(tx).init(GRADS)


half = lambda tree: jax.tree.map(lambda x: x / 2, tree)
is_kernel = lambda tree: jax.tree_util.tree_map_with_path(
    lambda keys, _: "kernel" in str(keys), tree
)
WRAPPED = {
    "chain": lambda: optax.chain(optax.identity(), on_moments(needing())),
    "injected": lambda: om.inject_hyperparams(lambda decay: on_moments(needing(decay)))(
        1.0
    ),
    "masked": lambda: optax.masked(on_moments(needing()), is_kernel),
    "partition": lambda: optax.partition(
        {"k": on_moments(needing()), "b": optax.identity()},
        lambda tree: jax.tree.map(lambda k: "k" if k else "b", is_kernel(tree)),
    ),
    "apply_every": lambda: optax.chain(optax.apply_every(1), on_moments(needing())),
    "multi_steps": lambda: optax.MultiSteps(on_moments(needing()), 1),
    "per_matrix": lambda: on_moments(om.per_matrix(needing())),
    "with_gradient": lambda: on_moments(om.transforms.with_gradient(needing())),
    "in_float32": lambda: on_moments(om.transforms.in_float32(needing())),
    "on_pairs": lambda: on_moments(
        om.transforms.on_pairs(lambda a, b: (a.update, b.update), needing())
    ),
    "nested": lambda: on_moments(om.per_matrix(optax.chain(needing(), optax.scale(1)))),
    "quantized": lambda: on_moments(needing(), placement=om.quantized()),
    "monitored": lambda: om.diagnostics.monitor(on_moments(needing()), ("update_rms",)),
}


@pytest.mark.broad
@pytest.mark.parametrize("name", WRAPPED)
def test_statistics_in_wrappers(name):
    updates, _ = first_update(WRAPPED[name](), GRADS, GRADS, moments=MOMENTS)
    for leaf in MODEL:
        want = MOMENTS[leaf]["kernel"].T @ GRADS[leaf]["kernel"]
        np.testing.assert_allclose(updates[leaf]["kernel"], want, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(updates["up"]["bias"], GRADS["up"]["bias"])


@pytest.mark.broad
def test_arguments_in_the_shape_of_the_matrices_are_cut_with_them():
    def update(updates, state, params=None, *, alike, **extra):
        del params, extra
        return jax.tree.map(jnp.multiply, updates, alike), state

    inner = optax.GradientTransformationExtraArgs(lambda _: optax.EmptyState(), update)
    tx = om.on_matrices(om.transforms.in_blocks(inner, 2), statistics={"alike": None})
    updates, _ = first_update(tx, GRADS, GRADS, alike=half(GRADS))
    want = GRADS["up"]["kernel"] ** 2 / 2
    np.testing.assert_allclose(updates["up"]["kernel"], want, rtol=1e-6)


@pytest.mark.broad
def test_what_no_block_reads_is_not_sent(cpus):
    mesh = make_mesh("fsdp8", "explicit", cpus)
    grads = on_mesh({"w": np.ones((8, 16), np.float32)}, {"w": P("fsdp")}, mesh)
    tx = om.on_matrices(optax.scale(2.0), placement=om.owners("fsdp"))
    with jax.set_mesh(mesh):
        state = jax.jit(tx.init)(grads)
        lower = lambda **extra: jax.jit(tx.update).lower(grads, state, grads, **extra)
        alone, more = (lower(**extra).compile() for extra in ({}, {"alike": grads}))
    assert collectives(alone) == collectives(more)
    assert collectives(alone)["all-to-all"] == 2


def test_a_tree_without_matrices_needs_no_statistics():
    biases = {"bias": np.ones(3, np.float32)}
    step = functools.partial(on_moments(needing()).update, params=biases)
    tx = on_moments(needing())
    jax.eval_shape(lambda g: step(g, tx.init(g)), biases)
