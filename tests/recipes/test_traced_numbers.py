"""Every number of every recipe may be traced, on one device and on meshes."""

import contextlib
import inspect
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _registry import TABLE, small
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import optax_matrix as om
from optax_matrix._arguments import is_number

RATE = 0.01
SHAPES = {"kernel": (8, 12), "square": (8, 8), "bias": (8,)}
# The axes of the mesh, their type, which of them are owners, the specs of matrices.
SCENES = {
    "one device": None,
    "explicit": (("a",), AxisType.Explicit, None, P("a")),
    "explicit, owners": (("a",), AxisType.Explicit, "a", P("a")),
    "explicit, inside": (("a", "t"), AxisType.Explicit, "a", P("a", "t")),
    "auto, owners": (("a",), AxisType.Auto, "a", P("a")),
    "auto, inside": (("a", "t"), AxisType.Auto, "a", P("a", "t")),
}


# The first gradient leaves the basis of a null space to rounding; the second sees it.
WELL_POSED = {"soap": {"side": "short"}}
# Injected numbers are float32, and round the arithmetic of float64 in another way.
IN_FLOAT64 = WELL_POSED | {
    "splus": {"max_dim": 8},  # Of the short sides.
    "kl_shampoo": {"side": "short"},
}


def numbers(name):
    """The numbers that a recipe takes, with their defaults."""
    parameters = inspect.signature(TABLE[name]).parameters.values()
    takes = [p for p in parameters if is_number(p.annotation)]
    found = {p.name: p.default for p in takes if type(p.default) is float}
    return {**found, "learning_rate": RATE}


def tree(seed, dtype=np.float32):
    rng = np.random.default_rng(seed)
    return {n: rng.standard_normal(s).astype(dtype) for n, s in SHAPES.items()}


@contextlib.contextmanager
def placed(scene, devices):
    """Parameters and two gradients on the mesh of a scene, and its placement.

    Of the same gradient twice, most of what `soap` sees in its basis is rounding. On
    meshes they are float64: the Gram matrices of two gradients amplify rounding.
    """
    if SCENES[scene] is None:
        yield tree(0), (tree(1), tree(2)), None
        return
    axes, kind, owner, spec = SCENES[scene]
    count = 2 if len(axes) == 2 else 4
    mesh = jax.make_mesh(
        (count,) * len(axes), axes, (kind,) * len(axes), devices=devices
    )
    specs = {n: spec if len(s) == 2 else P() for n, s in SHAPES.items()}
    shardings = {n: NamedSharding(mesh, s) for n, s in specs.items()}
    put = lambda seed: jax.device_put(tree(seed, np.float64), shardings)
    placement = owner and om.owners(owner, param_specs=shardings)
    with jax.enable_x64(True), jax.set_mesh(mesh):
        yield put(0), (put(1), put(2)), placement


QUICK = {("muoneq", "one device"), ("muoneq", "explicit, inside")}
CASES = [
    pytest.param(*case, marks=pytest.mark.broad if case in QUICK else pytest.mark.slow)
    for case in itertools.product(TABLE, SCENES)
]


@pytest.mark.daily("one device")
@pytest.mark.parametrize(("name", "scene"), CASES)
def test_traced_numbers_are_plain_numbers(name, scene, cpus):
    """Under `jit`, under `vmap`, and in the state of `inject_hyperparams`."""
    options = WELL_POSED if SCENES[scene] is None else IN_FLOAT64
    known, recipe = numbers(name), small(name, **options.get(name, {}))
    with placed(scene, cpus[:4]) as (params, grads, placement):

        def second_update(make, values):
            tx = make(placement=placement, **values)
            _, state = tx.update(grads[0], tx.init(params), params)
            return tx.update(grads[1], state, params)[0]

        plain = lambda values: second_update(recipe, values)
        injected = lambda: second_update(om.inject_hyperparams(recipe), known)
        want = jax.jit(lambda: plain(known))()
        traced = jax.jit(plain)
        other = jax.tree.map(lambda x: 0.75 * x, known)
        both = jax.tree.map(lambda *x: jnp.stack([*x]), known, other)
        together = jax.jit(jax.vmap(plain))(both)
        assert_same(traced(known), want)
        assert_same(jax.jit(injected)(), want)
        assert_same(jax.tree.map(lambda x: x[0], together), want)
        assert_same(jax.tree.map(lambda x: x[1], together), traced(other))
    assert not np.allclose(together["kernel"][0], together["kernel"][1])


def test_the_chain_gets_traced_numbers_on_a_mesh(cpus):
    """Under Explicit axes JAX refuses a step that reads arrays from a closure."""
    with placed("explicit, owners", cpus[:4]) as (params, grads, placement):
        everywhere = NamedSharding(params["kernel"].sharding.mesh, P())
        number = lambda x: jax.device_put(np.float32(x), everywhere)

        def update(values):
            tx = om.muoneq(placement=placement, **values)
            return tx.update(grads[0], tx.init(params), params)[0]

        values = jax.tree.map(number, numbers("muoneq"))
        shapes = jax.eval_shape(update, values)
    assert {name: x.shape for name, x in shapes.items()} == SHAPES


def assert_same(got, want):
    """XLA folds what it does with a plain number, which rounds once less or more."""
    for name, x in want.items():
        atol = np.abs(x).max() * (2e-4 if x.dtype == np.float32 else 1e-6)
        np.testing.assert_allclose(got[name], x, rtol=0, atol=atol, err_msg=name)
