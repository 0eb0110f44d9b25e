"""MaxText: the keywords of its Muon, its hook, and layers scanned on axis 1.

Stand-in: `get_optimizer` of `maxtext/optimizers/optimizers.py` and `transform_logic` of
`maxtext/utils/muon_utils.py` in MaxText 0.2.5, whose axes these are. The model has its
parameter names, and `nnx.vmap` with axis 1 as its decoder has. The last test compares
the stand-in with the package, where it is installed; `examples.frameworks.maxtext`
trains with it.
"""

import inspect
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from clients._training import assert_close, update
from flax import nnx

import optax_matrix as om
from optax_matrix.adapters.maxtext import axes_by_name, use, with_keywords_of_muon

LAYERS, EMBED, HEADS, DIM, MLP, EXPERTS = 3, 8, 2, 4, 6, 2
numbers_of = optax.contrib.MuonDimensionNumbers


class Kernel(nnx.Module):
    def __init__(self, shape, rngs):
        self.kernel = nnx.Param(0.1 * jax.random.normal(rngs.params(), shape))


class Layer(nnx.Module):
    def __init__(self, rngs):
        heads = (EMBED, HEADS, DIM)
        self.self_attention = nnx.Dict(
            query=Kernel(heads, rngs), out=Kernel((HEADS, DIM, EMBED), rngs)
        )
        self.mlp = nnx.Dict(wi_0=Kernel((EMBED, MLP), rngs))
        self.norm = nnx.Dict(scale=nnx.Param(jnp.ones(EMBED)))


class Decoder(nnx.Module):
    def __init__(self, rngs):
        self.token_embedder = nnx.Dict(embedding=nnx.Param(jnp.ones((11, EMBED))))
        scanned = nnx.vmap(Layer, in_axes=0, out_axes=1)
        self.layers = scanned(rngs.split(LAYERS))
        self.moe = nnx.Dict(wo=nnx.Param(jnp.ones((EXPERTS, LAYERS, MLP, EMBED))))


def transform_logic(path):
    """Axes by name; layers, if scanned, are axis 1."""
    if {"scale", "embedding"} & set(path):
        return None
    if "moe" in path and "gate" not in path:
        return numbers_of((-2,), (-1,))
    if "out" in path:
        return numbers_of((0, -2), (-1,))
    return numbers_of((0,), (-2, -1) if "query" in path else (-1,))


def dimension_numbers(model):
    """The tree that MaxText makes for NNX: a `State` of them."""
    pure = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    names = lambda path: [key.key for key in path]
    found = jax.tree_util.tree_map_with_path(
        lambda path, _: transform_logic(names(path)), pure
    )
    return nnx.State(found)


def keywords(model, **changes):
    """What MaxText passes to its Muon."""
    return {
        "learning_rate": optax.linear_schedule(0.02, 0.0, 10),
        "eps": 1e-8,
        "mu_dtype": None,
        "ns_coeffs": (3.4445, -4.7750, 2.0315),
        "ns_steps": 5,
        "beta": 0.95,
        "weight_decay": 0.1,
        "muon_weight_dimension_numbers": dimension_numbers(model),
        "consistent_rms": None,
        "adam_b1": 0.9,
        "adam_b2": 0.95,
        "adam_eps_root": 0.0,
        "adam_weight_decay": 0.1,
    } | changes


def call(muon, model, **changes):
    """The call of MaxText's hook."""
    return muon(**keywords(model, **changes))


def module(**hooks):
    """A stand-in of `maxtext.optimizers.optimizers`."""
    made = types.ModuleType("maxtext.optimizers.optimizers")

    def get_optimizer(config, learning_rate_schedule, model=None, mesh=None):
        del mesh
        if config.opt_type == "adamw":
            return optax.adamw(learning_rate_schedule)
        rate = {"learning_rate": learning_rate_schedule}
        tx = call(getattr(made, config.calls), model, **rate)
        return optax.chain(optax.identity(), tx)  # As `skip_step_on_spikes` wraps it.

    without_mesh = lambda config, learning_rate_schedule, model=None: get_optimizer(
        config, learning_rate_schedule, model
    )
    before = "muon" in hooks  # The earlier version.
    vars(made).update(hooks, get_optimizer=without_mesh if before else get_optimizer)
    return made


def config(**changes):
    base = {"opt_type": "muon", "muon_type": "optax_muon", "calls": "optax_muon"}
    return types.SimpleNamespace(**{**base, **changes})


@pytest.fixture
def optimizers(monkeypatch):
    """The module, where the adapter imports it."""

    def install(**hooks):
        made = module(**hooks)
        package = types.ModuleType("maxtext.optimizers")
        package.optimizers = made
        monkeypatch.setitem(sys.modules, "maxtext", types.ModuleType("maxtext"))
        monkeypatch.setitem(sys.modules, package.__name__, package)
        monkeypatch.setitem(sys.modules, made.__name__, made)
        return made

    return install


def test_the_hook_passes_what_optax_takes():
    model = Decoder(nnx.Rngs(0))
    call(optax.contrib.muon, model)  # Keywords of optax's own.


@pytest.mark.broad
@pytest.mark.parametrize("name", ["muoneq", "aro"])
def test_scanned_layers_move_as_matrices_of_their_own(name):
    recipe, model = getattr(om, name), Decoder(nnx.Rngs(0))
    tx = call(with_keywords_of_muon(recipe), model)
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    start = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    seed = lambda path: sum(map(ord, jax.tree_util.keystr(path)))
    draw = lambda path, x: jax.random.normal(jax.random.key(seed(path)), x.shape)
    grads = jax.tree_util.tree_map_with_path(draw, nnx.state(model, nnx.Param))
    nnx.jit(lambda model, optimizer, grads: optimizer.update(model, grads))(
        model, optimizer, grads
    )
    moved = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    pure = nnx.to_pure_dict(grads)

    def matrices(t):
        """Each matrix on its own, (in, out), cut out by hand."""
        layers, moe = t["layers"], t["moe"]["wo"]
        query, out = (layers["self_attention"][n]["kernel"] for n in ("query", "out"))
        cut = {}
        for i in range(LAYERS):
            cut[f"query{i}"] = query[:, i].reshape(EMBED, HEADS * DIM)
            cut[f"out{i}"] = out[:, i].reshape(HEADS * DIM, EMBED)
            cut[f"wi{i}"] = layers["mlp"]["wi_0"]["kernel"][:, i]
            cut |= {f"wo{e}{i}": moe[e, i] for e in range(EXPERTS)}
        return {key: {"kernel": x} for key, x in cut.items()}

    bare = recipe(0.02, b1=0.95, weight_decay=0.1)
    params = matrices(start)
    want = update(bare, params, matrices(pure))
    assert_close(matrices(moved), optax.apply_updates(params, want))
    embedding = lambda t: t["token_embedder"]["embedding"]
    adam = optax.adamw(0.02, 0.9, 0.95, weight_decay=0.1)
    x, g = embedding(start), embedding(pure)
    assert_close(embedding(moved), x + update(adam, x, g))


def test_the_adapter_knows_every_keyword_of_muon():
    given = {
        "nesterov": True,
        "adaptive": False,
        "preconditioning": "frobenius",
        "weight_decay_mask": None,
        "adam_learning_rate": 0.01,
    }
    model = Decoder(nnx.Rngs(0))
    known = inspect.signature(optax.contrib.muon).parameters
    assert set(keywords(model)) | set(given) == set(known)
    call(with_keywords_of_muon(om.muoneq), model, **given)


@pytest.mark.parametrize(
    ("keyword", "value", "message"),
    [
        ("consistent_rms", 0.2, "muon_consistent_rms.*has its own scale"),
        ("nesterov", False, "`nesterov` must be True, got False"),
        ("adaptive", True, "`adaptive` must be False, got True"),
        ("preconditioning", "aol", "`preconditioning` must be 'frobenius', got 'aol'"),
        ("use_all_to_all", True, "optax.contrib.muon, got 'use_all_to_all'"),
    ],
)
def test_what_only_muon_has_is_refused(keyword, value, message):
    with pytest.raises(ValueError, match=message):
        call(with_keywords_of_muon(om.muoneq), Decoder(nnx.Rngs(0)), **{keyword: value})


def test_a_recipe_without_momentum_gets_none():
    call(with_keywords_of_muon(om.sinkgd), Decoder(nnx.Rngs(0)))


def test_the_rate_of_other_leaves_can_be_its_own():
    model = Decoder(nnx.Rngs(0))
    params = nnx.state(model, nnx.Param)
    embedding = lambda **rates: update(
        call(with_keywords_of_muon(om.muoneq), model, adam_weight_decay=0.0, **rates),
        params,
        params,
    )["token_embedder"]["embedding"].get_value()
    assert_close(
        embedding(learning_rate=0.02, adam_learning_rate=0.01),
        0.5 * embedding(learning_rate=0.02),
    )


@pytest.mark.parametrize("hook", ["optax_muon", "muon"])
def test_use_reaches_every_trainer(optimizers, hook):
    made = optimizers(**{hook: optax.contrib.muon})
    model = Decoder(nnx.Rngs(0))
    params = nnx.state(model, nnx.Param)
    use(om.soap)
    use(om.aro, b1=0.8)  # In place of the first.
    tx = made.get_optimizer(config(calls=hook), 0.02, model)
    want = call(with_keywords_of_muon(om.aro, b1=0.8), model, learning_rate=0.02)
    for x, y in zip(
        jax.tree.leaves(update(tx, params, params)),
        jax.tree.leaves(update(want, params, params)),
        strict=True,
    ):
        np.testing.assert_array_equal(x, y)
    assert getattr(made, hook) is optax.contrib.muon  # It is as before.


NAMED = {  # As MaxText names the axes of one kernel.
    ("self_attention", "query"): ("embed_attn", "q_heads", "kv"),
    ("self_attention", "out"): ("heads", "kv", "embed_attn"),
    ("mlp", "wo"): ("mlp", "embed"),
    ("moe", "wo"): ("exp", "embed_moe", "mlp_moe"),
    ("moe", "gate"): ("embed", None),
}
# Where `nnx.vmap` puts layers, from the inside out: the index and the name.
STACKS = {
    "one layer": [],
    "scanned": [(1, "layers")],
    "dense": [(1, "dense_layers")],
    "param_scan_axis=0": [(0, "layers")],
    "pipeline": [(0, "layers"), (0, "circular_repeats")],
    "scanned in a pipeline": [
        (1, "layers_per_stage"),
        (0, "layers"),
        (0, "circular_repeats"),
    ],
}


def named_model(stack):
    sizes = {"embed_attn": 8, "embed": 8, "embed_moe": 8, "kv": 4, "mlp": 6}
    sizes |= {"mlp_moe": 6, "q_heads": 3, "heads": 3, "exp": 5, None: 5}
    model = nnx.Module()
    for (block, kernel), axes in NAMED.items():
        names = list(axes)
        for index, name in stack:
            names.insert(index, name)
        shape = tuple(sizes.get(name, 2) for name in names)
        box = nnx.Param(
            jnp.ones(shape), out_sharding=tuple(names), eager_sharding=False
        )
        inside = getattr(model, block, nnx.Dict())
        inside[kernel] = box if block == "moe" else nnx.Dict(kernel=box)
        setattr(model, block, inside)
    return model


@pytest.mark.parametrize("stack", STACKS)
def test_layers_wherever_they_are_stay_outside_of_the_matrices(stack):
    model = named_model(STACKS[stack])
    params = nnx.state(model, nnx.Param)
    rule = axes_by_name(dimension_numbers(model), model)
    views = om.stacks.make_layout(params, rule).views
    count = 2 ** len(STACKS[stack])
    assert {path: str(view) for path, view in views.items()} == {
        "self_attention/query/kernel": f"{count}x (12, 8)",
        "self_attention/out/kernel": f"{count}x (8, 12)",
        "mlp/wo/kernel": f"{count}x (8, 6)",
        "moe/wo": f"{5 * count}x (6, 8)",
        "moe/gate": f"{count}x (5, 8)",
    }
    # The axes of layers are known, in their order.
    order = [name for _, name in reversed(STACKS[stack])]
    for path, view in views.items():
        box = om.matrices.boxes.boxes_of(params)[path].out_sharding
        assert [box[a] for a in view.layer_axes] == sorted(order, key=box.index)


@pytest.mark.parametrize("axis", [0, -1, 1, -2, 2, -3])
def test_numbers_of_either_sign_are_counted_in_the_kernel(axis):
    model = named_model([(0, "layers")])
    params, numbers = nnx.state(model, nnx.Param), dimension_numbers(model)
    numbers["mlp"]["wo"]["kernel"] = numbers_of((axis,), ((axis + 1) % 2,))
    rule = axes_by_name(numbers, model)
    if axis in (2, -3):
        message = r"of 'mlp/wo/kernel' must be axes of its kernel, which has 2.*got \("
        with pytest.raises(ValueError, match=message):
            om.stacks.make_layout(params, rule)
        return
    view = om.stacks.make_layout(params, rule).views["mlp/wo/kernel"]
    assert (view.reduction_axes, view.batch_axes) == ((1 + axis % 2,), (0,))


def test_use_leaves_other_optimizers_alone(optimizers):
    made = optimizers(optax_muon=optax.contrib.muon)
    use(om.aro)
    params = {"kernel": jnp.ones((4, 8))}
    tx = made.get_optimizer(config(opt_type="adamw"), 0.02)
    assert_close(update(tx, params, params), update(optax.adamw(0.02), params, params))


def test_use_without_the_hook_raises(optimizers):
    optimizers(orthogonal=optax.contrib.muon)
    with pytest.raises(RuntimeError, match=r"one of \('optax_muon', 'muon'\)"):
        use(om.aro)


def test_an_optimizer_made_without_the_hook_raises(optimizers):
    made = optimizers(optax_muon=optax.contrib.muon, another=optax.contrib.muon)
    use(om.aro)
    with pytest.raises(RuntimeError, match="made an optimizer without"):
        made.get_optimizer(config(calls="another"), 0.02, Decoder(nnx.Rngs(0)))


def test_maxtexts_own_muon_is_refused(optimizers):
    made = optimizers(optax_muon=optax.contrib.muon)
    use(om.aro)
    with pytest.raises(ValueError, match="`muon_type` must be 'optax_muon'"):
        made.get_optimizer(config(muon_type="maxtext_muon"), 0.02)


def test_a_placement_without_a_mesh_is_refused(optimizers):
    made = optimizers(optax_muon=optax.contrib.muon)
    use(om.aro, placement=om.owners("fsdp"))
    with pytest.raises(ValueError, match="`placement` must know the mesh"):
        made.get_optimizer(config(), 0.02, Decoder(nnx.Rngs(0)))


def test_the_stand_in_is_as_the_package():
    real = pytest.importorskip("maxtext.optimizers.optimizers")
    muon_utils = pytest.importorskip("maxtext.utils.muon_utils")
    stand_in = module(optax_muon=optax.contrib.muon)
    original = inspect.unwrap(real.get_optimizer)
    signature = lambda f: [(p.name, p.default) for p in f.parameters.values()]
    assert signature(inspect.signature(original)) == signature(
        inspect.signature(stand_in.get_optimizer)
    )
    passed, model = {}, Decoder(nnx.Rngs(0))
    settings = types.SimpleNamespace(
        opt_type="muon",
        muon_type="optax_muon",
        decoder_block="llama2",
        adam_eps=1e-8,
        mu_dtype=None,
        muon_beta=0.95,
        muon_weight_decay=0.1,
        muon_consistent_rms=None,
        adam_b1=0.9,
        adam_b2=0.95,
        adam_eps_root=0.0,
        adam_weight_decay=0.1,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(real, "optax_muon", lambda **given: passed.update(given))
        original(settings, 0.02, model)
    assert set(passed) == set(keywords(model))
    names = [f"{key}" for key in ("ns_coeffs", "ns_steps")]
    assert [passed[n] for n in names] == [keywords(model)[n] for n in names]
    # Routed experts of the package are in blocks of other names.
    flat = lambda t: dict(nnx.to_flat_state(t))
    got, want = flat(passed["muon_weight_dimension_numbers"]), dimension_numbers(model)
    dense = [path for path in flat(want) if "moe" not in path]
    assert [got[p] for p in dense] == [flat(want)[p] for p in dense]
    assert muon_utils.transform_logic(("moe_block", "wo")) == transform_logic(
        ("moe", "wo")
    )
