"""Keras on JAX: the recipe behind `compile`, `fit`, `save` and callbacks."""

import json
import os
import re

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import numpy as np
import optax
import pytest
from clients._training import RECIPES, assert_close

import optax_matrix as om

keras = pytest.importorskip("keras")
if keras.backend.backend() != "jax":
    pytest.skip("Keras runs on another backend", allow_module_level=True)

from optax_matrix.adapters.keras_optimizer import RULE, Matrix, by_use

# Keras 3.15 meets a deprecation of NumPy 2 in its own code.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation")
RNG = np.random.default_rng(0)
X, Y = (RNG.standard_normal(shape).astype(np.float32) for shape in ((8, 6), (8, 4)))
FIT = {"batch_size": 8, "shuffle": False, "verbose": 0}


def model(optimizer):
    keras.utils.set_random_seed(0)
    layers = keras.layers
    net = keras.Sequential([layers.Dense(16, "relu", name="up"), layers.Dense(4)])
    net.build((None, 6))
    net.compile(optimizer, loss="mse")
    return net


def bare(net, tx, steps):
    """The same training in optax alone, from the weights of ``net``."""
    params = {v.path: v.value for v in net.trainable_variables}
    names = list(params)

    def loss(params):
        values = [params[n] for n in names]
        return ((net.stateless_call(values, [], X)[0] - Y) ** 2).mean()

    state, update = tx.init(params), jax.jit(tx.update)
    for _ in range(steps):
        updates, state = update(jax.grad(loss)(params), state, params)
        params = optax.apply_updates(params, updates)
    return params


@pytest.mark.broad
@pytest.mark.parametrize(("name", "options"), RECIPES.items(), ids=RECIPES)
def test_fit_takes_the_steps_of_the_bare_recipe(name, options):
    net = model(Matrix(name, 1e-2, options))
    want = bare(net, getattr(om, name)(1e-2, **options), 4)
    net.fit(X, Y, epochs=4, **FIT)
    assert_close({v.path: v.value for v in net.trainable_variables}, want)


@pytest.mark.broad
def test_a_saved_model_goes_on_where_it_was(tmp_path):
    net = model(Matrix("aro", 1e-2))
    net.fit(X, Y, epochs=2, **FIT)
    net.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    pairs = zip(net.optimizer.variables, again.optimizer.variables, strict=True)
    for a, b in pairs:
        np.testing.assert_array_equal(a.value, b.value)
    for one in (net, again):
        one.fit(X, Y, epochs=2, **FIT)
    for a, b in zip(net.weights, again.weights, strict=True):
        np.testing.assert_array_equal(a.value, b.value)


@pytest.mark.broad
def test_the_learning_rate_of_keras_counts():
    net = model(Matrix("muoneq", keras.optimizers.schedules.CosineDecay(1e-2, 4)))
    want = bare(net, om.muoneq(optax.cosine_decay_schedule(1e-2, 4)), 3)
    net.fit(X, Y, epochs=3, **FIT)
    assert_close({v.path: v.value for v in net.trainable_variables}, want)
    net = model(Matrix("muoneq", 1e-2))
    before = [np.asarray(v.value) for v in net.weights]
    stop = keras.callbacks.LearningRateScheduler(lambda _: 0.0)
    net.fit(X, Y, epochs=1, callbacks=[stop], **FIT)
    for a, b in zip(before, net.weights, strict=True):
        np.testing.assert_array_equal(a, b.value)


def test_attention_kernels_are_one_matrix_each():
    layer = keras.layers.MultiHeadAttention(2, 4)
    layer.build((None, 5, 8), (None, 5, 8))
    params = {v.path: v.value for v in layer.trainable_variables}
    views = om.stacks.make_layout(params, RULE).views
    shapes = {p.split("/")[-2]: (v.batch, v.rows, v.cols) for p, v in views.items()}
    names = ("query", "key", "value", "attention_output")
    assert shapes == dict.fromkeys(names, (1, 8, 8))


@pytest.fixture
def distribution():
    mesh = keras.distribution.DeviceMesh((2, 4), ("batch", "model"))
    layouts = keras.distribution.LayoutMap(mesh)
    layouts[".*up/kernel"] = (None, "model")
    layouts[".*down/kernel"] = ("model", None)
    with keras.distribution.ModelParallel(layout_map=layouts).scope():
        yield mesh


def named(optimizer, prefix=""):
    keras.utils.set_random_seed(0)
    names = f"{prefix}up", f"{prefix}down", "head"
    widths = (16, 6, 4)
    net = keras.Sequential(
        [keras.layers.Dense(w, name=n) for w, n in zip(widths, names, strict=True)]
    )
    net.build((None, 6))
    net.compile(optimizer, loss="mse")
    return net


def bytes_per_device(optimizer):
    return sum(v.value.addressable_shards[0].data.nbytes for v in optimizer.variables)


@pytest.mark.broad
@pytest.mark.usefixtures("distribution")
@pytest.mark.parametrize("owners", [None, "model"])
def test_state_is_sharded_as_the_weights_are(owners):
    adam, net = named(keras.optimizers.AdamW(1e-2)), named(Matrix("aro", owners=owners))
    for one in (adam, net):
        one.fit(X, Y, epochs=2, **FIT)
    matrices = [v for v in net.optimizer.variables if "16x6" in v.path]
    assert matrices
    assert any("model" in str(v.value.sharding.spec) for v in matrices)
    if owners is None:
        # Two rotations of 6 x 6 on top of the momentum.
        one, many = bytes_per_device(net.optimizer), bytes_per_device(adam.optimizer)
        assert one < 1.5 * many


@pytest.mark.broad
@pytest.mark.usefixtures("distribution")
def test_a_layout_changes_no_step():
    net = named(Matrix("muoneq", 1e-2, owners="model"))
    net.fit(X, Y, epochs=3, **FIT)
    got = [np.asarray(v.value) for v in net.weights]
    keras.distribution.set_distribution(None)
    net = named(Matrix("muoneq", 1e-2))
    net.fit(X, Y, epochs=3, **FIT)
    assert_close(got, [np.asarray(v.value) for v in net.weights])


@pytest.mark.broad
def test_weights_and_state_load_by_their_order(tmp_path, distribution):
    """As Keras has it: other names of layers, another mesh."""
    del distribution
    net, path = named(Matrix("aro", 1e-2, owners="model")), tmp_path / "a.weights.h5"
    net.fit(X, Y, epochs=2, **FIT)
    net.save_weights(path)
    keras.distribution.set_distribution(None)
    again = named(Matrix("aro", 1e-2), prefix="z_")
    again.optimizer.build(again.trainable_variables)
    again.load_weights(path)
    assert int(again.optimizer.iterations) == 2
    bare = lambda key: re.sub(r"sequential(_\d+)?/(z_)?", "", key)
    states = []
    for one in (net.optimizer, again.optimizer):
        state = om.to_portable(one._tree(), one._params())
        states.append({bare(key): np.asarray(x) for key, x in state.items()})
    jax.tree.map(np.testing.assert_array_equal, *states)


@pytest.mark.broad
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_a_weight_without_a_gradient_is_left_alone():
    net = model(Matrix("muoneq", 1e-2))
    variables = net.trainable_variables
    before = [np.asarray(v.value) for v in variables]
    ones = [np.ones(v.shape, np.float32) for v in variables]
    net.optimizer.apply([None, *ones[1:]], variables)
    same = [np.array_equal(b, v.value) for b, v in zip(before, variables, strict=True)]
    assert same == [True, False, False, False]


def test_the_model_tells_the_axes_of_its_weights():
    keras.utils.set_random_seed(0)
    layers = keras.layers
    x = start = keras.Input((6,), dtype="int32")
    x = layers.Embedding(11, 8, name="table")(x)
    x = x + layers.MultiHeadAttention(2, 4, name="attention")(x, x)
    x = layers.Conv1D(8, 3, padding="same", name="conv1d")(x)
    net = keras.Model(start, layers.Dense(11, name="out")(x))
    rule = by_use(net)
    sides = {
        path: (numbers.reduction_axis, numbers.output_axis)
        for path, numbers in rule.numbers
        if numbers
    }
    assert sides.pop("attention/attention_output/kernel") == ((0, 1), 2)
    assert sides.pop("conv1d/kernel") == ((0, 1), 2)
    names = ("query", "key", "value")
    assert sides == {f"attention/{name}/kernel": (0, (1, 2)) for name in names}
    made = Matrix("muoneq", 1e-2, table=json.loads(json.dumps(rule.table())))
    again = Matrix.from_config(made.get_config())
    made.build(net.trainable_variables)
    again.build(net.trainable_variables)
    assert made._structure == again._structure
    assert any("8x24" in v.path for v in again.variables)  # The convolution.


def test_open_sizes_of_inputs_are_asked_for():
    net = keras.Sequential([keras.Input((None, 3)), keras.layers.Dense(4)])
    with pytest.raises(ValueError, match="`inputs` must be given"):
        by_use(net)
    shape = jax.ShapeDtypeStruct((2, 5, 3), "float32")
    assert by_use(net, shape, numbers={"kernel": None}).numbers
