"""MaxText: the keywords of its Muon, and layers scanned on axis 1.

Stand-in, not installable from a package index: `get_optimizer` in
`src/maxtext/optimizers/optimizers.py` and `transform_logic` in
`src/maxtext/utils/muon_utils.py` of AI-Hypercomputer/maxtext, whose axes these are. The
model has its parameter names, and `nnx.vmap` with axis 1 as its decoder has.
"""

import jax
import jax.numpy as jnp
import optax
import pytest
from clients._training import assert_close, update
from flax import nnx

import optax_matrix as om
from examples.adapters.maxtext import with_keywords_of_muon

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
    if "moe" in path:
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


def get_optimizer(muon, model, **changes):
    """The call of MaxText's hook, with the keywords that it passes."""
    return muon(
        **{
            "learning_rate": optax.linear_schedule(0.02, 0.0, 10),
            "eps": 1e-8,
            "mu_dtype": None,
            "beta": 0.95,
            "weight_decay": 0.1,
            "muon_weight_dimension_numbers": dimension_numbers(model),
            "consistent_rms": None,
            "adam_b1": 0.9,
            "adam_b2": 0.95,
            "adam_eps_root": 0.0,
            "adam_weight_decay": 0.1,
        }
        | changes
    )


def test_the_hook_passes_what_optax_takes():
    model = Decoder(nnx.Rngs(0))
    get_optimizer(optax.contrib.muon, model)  # Keywords of optax's own.


@pytest.mark.broad
@pytest.mark.parametrize("name", ["muoneq", "aro"])
def test_scanned_layers_move_as_matrices_of_their_own(name):
    recipe, model = getattr(om, name), Decoder(nnx.Rngs(0))
    tx = get_optimizer(with_keywords_of_muon(recipe), model)
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


def test_another_scale_is_refused():
    with pytest.raises(ValueError, match=r"muon_consistent_rms.*has its own scale"):
        get_optimizer(
            with_keywords_of_muon(om.muoneq), Decoder(nnx.Rngs(0)), consistent_rms=0.2
        )
