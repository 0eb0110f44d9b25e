"""`scion`: the authors' step on every kind of leaf, and which leaf is of which kind."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _matrices import ones
from _reference.kernels import newton_schulz5
from _steps import first_update

import optax_matrix as om
from optax_matrix.matrices.ends import ends_of

D, VOCAB = 6, 10
TIED = {
    "wte/embedding": (VOCAB, D),
    "wpe/embedding": (5, D),
    "layers/up/kernel": (3, D, 8),
    "attn/query/kernel": (D, 2, 3),
    "mlp/down/kernel": (8, D),
    "mlp/down/bias": (D,),
    "layers/norm/scale": (3, D),
    "router/kernel": (D, 4),
    "temperature": (),
}
UNTIED = TIED | {"lm_head/kernel": (D, VOCAB)}
LR = 2.0**-6


def arrays(shapes, seed, scale=1.0):
    rng = np.random.default_rng(seed)
    return {name: scale * rng.standard_normal(shape) for name, shape in shapes.items()}


def each(f, inputs):
    """A function of matrices, rows being outputs, on leaves ``(layers, in, out)``.

    ``inputs`` is the axis of the inputs; all behind it are outputs.
    """

    def run(g):
        matrices = g.reshape(-1, g.shape[inputs], int(np.prod(g.shape[inputs + 1 :])))
        return np.stack([f(m.T).T for m in matrices]).reshape(g.shape)

    return run


def spectral(g, rho):
    return rho * np.sqrt(g.shape[0] / g.shape[1]) * newton_schulz5(g)


def sign(g, rho, fan_in):
    return rho * np.sign(g) / fan_in


def bias_rms(g, rho):
    axis = -1 if g.ndim else None
    return rho * g / np.sqrt(np.mean(g**2, axis=axis, keepdims=True))


def oracles(rho, first, last, tied):
    """`scale * norm_backend.lmo(g)` of LIONS-EPFL/scion, by leaf."""
    hidden = partial(spectral, rho=rho)
    vector = partial(bias_rms, rho=rho)
    embedding = partial(sign, rho=first, fan_in=1)
    head = partial(sign, rho=last, fan_in=D)
    return {
        "wte/embedding": head if tied else embedding,
        "wpe/embedding": embedding,
        "layers/up/kernel": each(hidden, 1),
        "attn/query/kernel": each(hidden, 0),
        "mlp/down/kernel": each(hidden, 0),
        "mlp/down/bias": vector,
        "layers/norm/scale": vector,
        "router/kernel": partial(sign, rho=rho, fan_in=D),
        "temperature": vector,
        "lm_head/kernel": head,
    }


def authors(oracle, w, grads, constrained, lr=LR, momentum=0.1):
    """`Scion.step`, in the words of its program."""
    buf = np.zeros_like(w)
    for g in grads:
        buf = (1 - momentum) * buf + momentum * g
        if constrained:
            w = w * (1 - lr)
        w = w - lr * oracle(buf)
    return w


@pytest.mark.broad
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("constrained", [True, False])
@pytest.mark.parametrize("tied", [True, False])
def test_every_leaf_makes_the_authors_step(tied, constrained):
    shapes = TIED if tied else UNTIED
    params = arrays(shapes, 0)
    grads = [arrays(shapes, t + 1) for t in range(5)]
    tx = om.scion(LR, weight_decay=float(constrained), weight_decay_mask=True)
    state, update, tree = tx.init(params), jax.jit(tx.update), params
    for g in grads:
        updates, state = update(g, state, tree)
        tree = optax.apply_updates(tree, updates)
    radii = (50.0 / 3, 3000.0) if tied else (50.0 / 3, 500.0 / 3)
    table = oracles(50.0, *radii, tied)
    assert set(table) >= set(tree)
    for name, x in tree.items():
        stream = [g[name] for g in grads]
        want = authors(table[name], params[name], stream, constrained)
        np.testing.assert_allclose(x, want, rtol=1e-9, atol=1e-9, err_msg=name)


@pytest.mark.broad
def test_by_default_vectors_are_not_constrained():
    params = jax.tree.map(jnp.asarray, arrays(UNTIED, 0))
    zeros = jax.tree.map(jnp.zeros_like, params)
    tx = om.scion(LR)
    updates, _ = jax.jit(tx.update)(zeros, tx.init(params), params)
    vectors = {"mlp/down/bias", "layers/norm/scale", "temperature"}
    for name, x in updates.items():
        want = 0 if name in vectors else -LR * params[name]
        np.testing.assert_allclose(x, want, rtol=1e-6, err_msg=name)


@pytest.mark.slow
def test_the_constraint_keeps_weights_in_their_balls():
    """From outside they come in: in 300 steps of 1/16 all but e**-19 of the start."""
    params = jax.tree.map(jnp.asarray, arrays(UNTIED, 0, 30.0))
    tx = om.scion(1 / 16, radius=2.0, polar=om.linalg.polar_svd)

    @jax.jit
    def run(params, key):
        def body(carry, key):
            p, state = carry
            g = jax.tree.map(lambda x: jax.random.normal(key, x.shape), p)
            updates, state = tx.update(g, state, p)
            return (optax.apply_updates(p, updates), state), None

        keys = jax.random.split(key, 300)
        return jax.lax.scan(body, (params, tx.init(params)), keys)[0][0]

    end = run(params, jax.random.key(0))
    assert jnp.abs(end["wte/embedding"]).max() <= 2 / 3 * 1.001
    assert jnp.abs(end["lm_head/kernel"]).max() <= 20 / 3 / D * 1.001
    down = np.linalg.norm(end["mlp/down/kernel"], 2)
    assert down <= 2 * np.sqrt(D / 8) * 1.001


def places(params, **options):
    return {path: end.place for path, end in ends_of(params, **options).items()}


def test_places_in_a_model():
    found = places(arrays(UNTIED, 0))
    assert found["wte/embedding"] == found["wpe/embedding"] == "first"
    assert found["lm_head/kernel"] == "last"
    assert found["router/kernel"] == found["mlp/down/kernel"] == "inner"
    assert found["layers/norm/scale"] == found["temperature"] == "vector"
    tied = places(arrays(TIED, 0))
    assert tied == {p: x for p, x in found.items() if p != "lm_head/kernel"} | {
        "wte/embedding": "tied"
    }
    said = places(arrays(TIED, 0), first="wte")
    assert said["wte/embedding"] == said["wpe/embedding"] == "first"
    said = places(arrays(UNTIED, 0), last="wte")
    assert said["wte/embedding"] == "tied"


def test_a_vector_by_the_name_of_an_embedding_is_a_vector():
    params = {"embed": ones(3), "up": ones(3, 4)}
    assert places(params)["embed"] == "vector"


def test_layers_of_equinox_tell_their_sides():
    """There heads are ``(out, in)``."""

    def model():
        keys = jax.random.split(jax.random.key(0))
        return {
            "tokens": eqx.nn.Embedding(VOCAB, D, key=keys[0]),
            "lm_head": eqx.nn.Linear(D, VOCAB, key=keys[1], use_bias=False),
        }

    found = ends_of(eqx.filter_eval_shape(model))
    assert found["tokens/weight"].place == "first"
    view = found["lm_head/weight"].view
    assert (view.rows, view.cols) == (VOCAB, D)


@pytest.mark.broad
@pytest.mark.daily("sign", "row")
@pytest.mark.parametrize("norm", ["row", "column", "sign"])
def test_norms_of_first_and_last_layers_by_name(norm):
    """An MLP whose ends have no names of their own; rows are outputs."""
    shapes = {"a/kernel": (4, 6), "b/kernel": (6, 6), "c/kernel": (6, 3)}
    params = jax.tree.map(jnp.asarray, arrays(shapes, 0))
    tx = om.scion(
        1.0,
        first="^a/",
        first_norm=norm,
        first_radius=2.0,
        last="^c/",
        last_norm=norm,
        last_radius=3.0,
        norm=norm,
        radius=4.0,
        weight_decay=0.0,
    )
    updates, state = jax.jit(tx.update)(params, tx.init(params), params)
    assert [len(x) for x in state.manifest.values()] == [1]
    for name, radius, one_hot in (("a", 2, True), ("b", 4, False), ("c", 3, False)):
        block = om.transforms.lmo(norm, float(radius), one_hot=one_hot)
        w = params[f"{name}/kernel"].T
        want = jax.jit(block.update)(w, block.init(w))[0].T
        np.testing.assert_allclose(-updates[f"{name}/kernel"], want, rtol=1e-5)


@pytest.mark.broad
def test_dimension_numbers_tell_the_sides_of_the_ends():
    """A head ``(out, in)``, as PyTorch and Haliax have it."""
    rule = om.matrices.by_path(numbers={"weight": om.MatrixDimensionNumbers(1, 0)})
    params = {"up/weight": jnp.ones((8, D)), "last/weight": jnp.ones((VOCAB, D))}
    tx = om.scion(
        1.0, last="last", last_radius=1.0, dimension_numbers=rule, weight_decay=0.0
    )
    updates, _ = jax.jit(tx.update)(params, tx.init(params), params)
    np.testing.assert_allclose(-updates["last/weight"], 1 / D, rtol=1e-6)


def test_an_expression_without_a_leaf_is_a_warning():
    tx = om.scion(1.0, first="up", last="haed")
    shape = lambda *sides: jax.ShapeDtypeStruct(sides, "float32")
    params = {"up/kernel": shape(3, 4), "down/kernel": shape(4, 3)}
    with pytest.warns(om.matrices.UnmatchedPatternWarning, match="haed"):
        jax.eval_shape(tx.init, params)


@pytest.mark.broad
def test_a_convolution_is_its_matrix():
    rng = np.random.default_rng(0)
    params = {"conv/kernel": jnp.asarray(rng.standard_normal((3, 3, 4, 8)))}
    tx = om.scion(1.0, radius=2.0, polar=om.linalg.polar_svd, weight_decay=0.0)
    updates, _ = jax.jit(tx.update)(params, tx.init(params), params)
    got = np.asarray(-updates["conv/kernel"]).reshape(36, 8)
    sizes = np.linalg.svd(got, compute_uv=False)
    np.testing.assert_allclose(sizes, 2 * np.sqrt(8 / 36), rtol=1e-5)


def test_leaves_of_size_zero():
    params = {"a": {"kernel": ones(3, 0, 4)}, "b": {"kernel": ones(5, 4)}}
    tx = om.scion(1e-2)
    new, _ = first_update(tx, params, params)
    assert jax.tree.map(np.shape, new) == jax.tree.map(np.shape, params)


def test_mistakes():
    with pytest.raises(ValueError, match="`last_norm` must be one of 'row', 'column',"):
        om.scion(1.0, last_norm="spectral")
    with pytest.raises(ValueError, match="`first` must be a regular expression, got"):
        om.scion(1.0, first="(")
    with pytest.raises(ValueError, match="`first_radius` must be positive"):
        om.scion(1.0, first_radius=-1.0)
