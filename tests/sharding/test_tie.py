"""`tie`: the same numbers under every transformation, and one barrier a layer."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _barriers import assert_equal, barriers
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

from optax_matrix.matrices import by_use
from optax_matrix.sharding import tie

RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.standard_normal((4, 6)), jnp.float32)
LAYERS = [
    {
        "w": jnp.asarray(RNG.standard_normal((6, 6)) / 2, jnp.float32),
        "b": jnp.asarray(RNG.standard_normal(6), jnp.bfloat16),
        "order": jnp.asarray(RNG.permutation(6)),
    }
    for _ in range(3)
]


def layer(params, x):
    y = x @ params["w"] + params["b"].astype(x.dtype)
    return x + jnp.tanh(y)[:, params["order"]]


def tied(params, x):
    x, params = tie(x, params)
    return layer(params, x)


def remat_inside(params, x):
    x, params = tie(x, params)
    return jax.checkpoint(layer)(params, x)


def unrolled(apply, layers, x):
    for params in layers:
        x = apply(params, x)
    return jnp.sum(x**2)


def scanned(apply, layers, x):
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)
    last, _ = jax.lax.scan(lambda x, params: (apply(params, x), None), x, stacked)
    return jnp.sum(last**2)


gradients = functools.partial(jax.value_and_grad, argnums=(0, 1), allow_int=True)
WAYS = {
    "reverse": (gradients, unrolled),
    "jit-inside": (lambda f: gradients(jax.jit(f)), unrolled),
    "scan": (gradients, scanned),
    "remat": (lambda f: gradients(jax.checkpoint(f)), unrolled),
    "vmap": (
        lambda f: jax.vmap(gradients(f), (None, 0)),
        lambda apply, layers, x: unrolled(apply, layers, x[None]),
    ),
    "forward": (
        lambda f: lambda layers, x: jax.jvp(lambda x: f(layers, x), (x,), (x,)),
        unrolled,
    ),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("apply", [tied, jax.checkpoint(tied), remat_inside])
def test_values_and_gradients_are_the_same_bits(way, apply):
    transform, model = WAYS[way]
    one, other = (transform(functools.partial(model, f)) for f in (apply, layer))
    assert_equal(*jax.jit(lambda *args: (one(*args), other(*args)))(LAYERS, X))


@pytest.mark.broad
def test_without_compilation():
    one, other = (gradients(functools.partial(unrolled, f)) for f in (tied, layer))
    assert_equal(one(LAYERS, X), other(LAYERS, X))


@pytest.mark.parametrize("apply", [tied, remat_inside])
def test_second_derivatives(apply):
    """Equal up to the order of sums."""
    hessian = lambda f: jax.hessian(lambda x: unrolled(f, LAYERS, x))
    both = jax.jit(lambda x: (hessian(apply)(x), hessian(layer)(x)))(X)
    np.testing.assert_allclose(*both, rtol=1e-4, atol=1e-4)


def test_the_gradients_of_a_layer_meet_in_one_barrier():
    both = lambda apply: gradients(functools.partial(unrolled, apply))
    assert barriers(both(layer), LAYERS, X) == []
    found = barriers(both(tied), LAYERS, X)
    assert list(map(sorted, found)) == [[(4, 6), (6,), (6, 6)]] * len(LAYERS)


def test_the_gradient_goes_on_only_behind_the_barrier():
    """What the layer below gets, and what is returned, are the barrier's results."""
    both = gradients(functools.partial(unrolled, tied), argnums=(1,))
    jaxpr = jax.make_jaxpr(both)(LAYERS[:1], X).jaxpr
    (barrier,) = [e for e in jaxpr.eqns if e.primitive.name == "optimization_barrier"]
    assert jaxpr.outvars[-1] in barrier.outvars


def test_gradients_of_frozen_parameters_are_not_computed():
    of_input = lambda apply: jax.grad(lambda x: unrolled(apply, LAYERS, x))
    assert barriers(of_input(tied), X) == [[X.shape]] * len(LAYERS)
    products = lambda f: str(jax.make_jaxpr(of_input(f))(X)).count("dot_general")
    assert products(tied) == products(layer)


def test_what_has_no_gradient_is_returned_as_it_is():
    key, number, words = jax.random.key(0), jnp.arange(3), np.ones(2)
    given = {"key": key, "number": number, "array": words, "f": jnp.tanh, "none": None}
    x, got = tie(X, given)
    assert_equal(x, X)
    assert all(got[name] is given[name] for name in given)


def test_what_a_model_uses_is_still_read():
    table = lambda f: by_use(functools.partial(unrolled, f), LAYERS, X).table()
    assert table(tied) == table(layer)
    assert table(tied)["0/w"] is not None


@pytest.mark.programs(6, "two programs, and a slice of each tree of shardings")
@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_on_a_mesh(cpus, kind):
    types = {"auto": AxisType.Auto, "explicit": AxisType.Explicit}[kind]
    mesh = jax.make_mesh((4, 2), ("fsdp", "tp"), (types,) * 2, devices=cpus)
    place = lambda x, *spec: jax.device_put(x, NamedSharding(mesh, P(*spec)))
    specs = {"w": ("tp",), "b": ()}
    layers = [{k: place(each[k], *specs[k]) for k in specs} for each in LAYERS]
    x = place(X, "fsdp")
    run = lambda f: jax.jit(gradients(functools.partial(unrolled, f)))(layers, x)

    def plain(params, x):  # Without the permutation, which Explicit axes refuse.
        y = x @ jax.sharding.reshard(params["w"], P()) + params["b"].astype(x.dtype)
        return x + jnp.tanh(y)

    with jax.set_mesh(mesh):
        got, want = run(lambda params, x: plain(*tie(params, x))), run(plain)
        assert_equal(got, want)
    if kind == "explicit":  # Elsewhere the partitioner chooses.
        shardings = [jax.tree.map(lambda x: x.sharding, t[1][1]) for t in (got, want)]
        assert shardings[0] == shardings[1]


@pytest.mark.parametrize("check", [True, False])
def test_inside_shard_map(cpus, check):
    """Parameters are the same on all devices, and the batch is split."""
    mesh = jax.make_mesh((4,), ("data",), (AxisType.Auto,), devices=cpus[:4])

    def run(apply):
        def local(layers, x):
            value, grads = gradients(functools.partial(unrolled, apply))(layers, x)
            return jax.tree.map(lambda x: x[None], (value, grads[1], grads[0][0]["w"]))

        specs = {"in_specs": (P(), P("data")), "out_specs": P("data")}
        f = jax.shard_map(local, mesh=mesh, check_vma=check, **specs)
        return jax.jit(f)(LAYERS, X)

    assert_equal(run(tied), run(layer))


@pytest.mark.parametrize("trees", [(), (X,)])
def test_one_tree_is_refused(trees):
    with pytest.raises(ValueError, match=rf"`trees` must be two.*got {len(trees)}"):
        tie(*trees)
