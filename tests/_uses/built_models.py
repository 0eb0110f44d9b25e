"""Models that the examples and other tests build, as `by_use` takes them."""

import importlib

import jax
from _uses.battery import A, T

BUILT = {}


def built(make):
    """Registers a function that returns what `by_use` takes, and the parameters."""
    BUILT[make.__name__] = make
    return make


def of_nnx(make, *inputs):
    from flax import nnx

    model = nnx.eval_shape(lambda: make(nnx.Rngs(0)))
    return (model, *inputs), nnx.state(model, nnx.Param)


def of_linen(model, *inputs):
    params = jax.eval_shape(model.init, jax.random.key(0), *inputs)
    return (model.apply, params, *inputs), params


def of_equinox(make, *inputs):
    import equinox as eqx

    model = eqx.filter_eval_shape(make, jax.random.key(0))
    params = eqx.filter(model, lambda x: hasattr(x, "shape"))
    return (lambda m, *xs: jax.vmap(m)(*xs), model, *inputs), params


def example(name):
    return importlib.import_module(f"examples.{name}")


@built
def llama():
    config = example("pretrain.config").SIZES["tiny"]
    make = lambda rngs: example("pretrain.model").Llama(config, rngs=rngs)
    return of_nnx(make, T(2, 8))


@built
def llama_unrolled_one_hot():
    import dataclasses

    config = example("pretrain.config").SIZES["tiny"]
    config = dataclasses.replace(config, scan=False, remat=True, one_hot=True)
    make = lambda rngs: example("pretrain.model").Llama(config, rngs=rngs)
    return of_nnx(make, T(2, 8))


def sizes(**more):
    return example("study.bench.gpt").Transformer(embed=24, heads=4, layers=2, **more)


@built
def gpt():
    make = lambda rngs: example("study.bench.gpt").GPT(sizes(), 50, 8, rngs)
    return of_nnx(make, T(2, 8))


@built
def vit():
    make = lambda rngs: example("study.bench.vit").ViT(sizes(is_causal=False), rngs)
    return of_nnx(make, A(2, 28, 28))


@built
def quickstart():
    return of_nnx(example("quickstart").autoencoder, A(4, 32))


@built
def quickstart_linen():
    return of_linen(example("quickstart_linen").Autoencoder(), A(4, 32))


@built
def experts():
    return of_nnx(example("experts").Mixture, A(8, 16))


@built
def coordinate_check():
    module = example("coordinate_check")
    params = jax.eval_shape(lambda: module.initial(jax.random.key(0), 48))
    return (module.activations, params, A(4, module.INPUTS)), params


@built
def frameworks_nnx():
    kinds = (jax.sharding.AxisType.Auto,) * 2
    with jax.set_mesh(jax.make_mesh((4, 2), ("fsdp", "tp"), axis_types=kinds)):
        return of_nnx(example("frameworks.nnx").Model, T(2, 8))


@built
def frameworks_linen():
    return of_linen(example("frameworks.linen").Model(), T(2, 8))


@built
def frameworks_equinox():
    return of_equinox(example("frameworks.equinox").Model, T(2, 8))


@built
def frameworks_haiku():
    model = example("frameworks.haiku").MODEL
    params = jax.eval_shape(model.init, jax.random.key(0), T(2, 8))
    return (model.apply, params, T(2, 8)), params


@built
def nanodo():
    return of_linen(importlib.import_module("sharding.test_shares").Model(), T(2, 8))


@built
def equinox_vit():
    make = importlib.import_module("clients.test_equinox_vit").ViT
    return of_equinox(make, A(2, 1, 8, 8))
