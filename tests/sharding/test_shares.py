"""The share of the optimizer's state on each device, by the specs of the parameters."""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding

import optax_matrix as om

D, HEADS, F, V, L = 16, 2, 64, 32, 8


class Block(nn.Module):
    """The kernels of nanodo (`nanodo/model.py`) with the specs of `nanodo/fsdp.py`."""

    @nn.compact
    def __call__(self, x):
        init = lambda *axes: nn.with_partitioning(
            nn.initializers.xavier_uniform(), axes
        )
        norm = functools.partial(nn.LayerNorm, use_bias=False)
        project = functools.partial(
            nn.DenseGeneral,
            features=(HEADS, D // HEADS),
            kernel_init=init("data", None, None),
            use_bias=False,
        )
        z = norm()(x)
        z = project(name="query")(z) * project(name="key")(z) + project(name="value")(z)
        x += nn.DenseGeneral(
            D,
            axis=(-2, -1),
            name="attn_out_proj",
            kernel_init=init(None, None, "data"),
            use_bias=False,
        )(z)
        dense = functools.partial(
            nn.Dense, kernel_init=init("data", None), use_bias=False
        )
        return x + dense(D)(nn.gelu(dense(F)(norm()(x))))


class Model(nn.Module):
    @nn.compact
    def __call__(self, tokens):
        init = nn.with_partitioning(nn.initializers.normal(), (None, "data"))
        embed = nn.Embed(V, D, embedding_init=init, name="embed")
        place = nn.Embed(L, D, embedding_init=init, name="pos_embed")
        x = embed(tokens) + place(jnp.arange(L))[None]
        for _ in range(2):
            x = Block()(x)
        return embed.attend(nn.LayerNorm(use_bias=False)(x))


@pytest.fixture(params=[AxisType.Auto, AxisType.Explicit], ids=["auto", "explicit"])
def mesh(request, cpus):
    return jax.make_mesh((4,), ("data",), (request.param,), devices=cpus[:4])


def _abstract():
    tokens = jnp.zeros((1, L), jnp.int32)
    return jax.eval_shape(lambda: Model().init(jax.random.key(0), tokens))


def _share(state, specs, mesh):
    """The part of the state's bytes that one device holds."""
    held = total = 0
    for x, spec in zip(jax.tree.leaves(state), jax.tree.leaves(specs), strict=True):
        size = math.prod(x.shape) * x.dtype.itemsize
        total += size
        part = NamedSharding(mesh, spec).shard_shape(x.shape)
        held += math.prod(part) * x.dtype.itemsize
    return held / total


def _read(boxed):
    """What the framework reads for each array."""
    is_box = lambda x: isinstance(x, nn.Partitioned)
    held = jax.tree.leaves(boxed, is_leaf=is_box)
    # A box may hold nothing: optax masks what is in it.
    return [nn.get_partition_spec(x) for x in held if jax.tree.leaves(x)]


METHODS = {
    "adamw": optax.adamw,
    "muoneq": om.muoneq,
    "soap": om.soap,
    "normuon": om.normuon,
    "shampoo": om.shampoo,
}


@pytest.mark.parametrize("name", METHODS)
def test_share_of_a_device_is_that_of_adamw(cpus, name):
    mesh = jax.make_mesh((4,), ("data",), (AxisType.Auto,), devices=cpus[:4])
    params, tx = _abstract(), METHODS[name](1e-3)
    specs = nn.get_partition_spec(params)
    with jax.set_mesh(mesh):
        boxed = jax.eval_shape(tx.init, params)
        shares = [
            _share(boxed, om.state_specs(tx, params, specs), mesh),
            _share(boxed, om.state_specs(tx, params), mesh),
            _share(boxed, _read(boxed), mesh),
        ]
    # One quarter, but for counts, manifests, and norm scales, which are replicated.
    assert max(shares) <= 0.28


@pytest.mark.slow
@pytest.mark.parametrize("name", ["muoneq", "soap"])
def test_state_is_made_with_that_share_and_keeps_it(mesh, name):
    shapes, tx = nn.unbox(_abstract()), METHODS[name](1e-3)
    specs = nn.get_partition_spec(_abstract())
    ones = lambda x, spec: jax.device_put(
        np.ones(x.shape, x.dtype), NamedSharding(mesh, spec)
    )
    params = jax.tree.map(ones, shapes, specs)
    state = jax.jit(
        tx.init,
        out_shardings=jax.tree.map(
            lambda spec: NamedSharding(mesh, spec), om.state_specs(tx, params)
        ),
    )(params)
    of = lambda tree: jax.tree.map(lambda x: x.sharding.spec, tree)
    assert _share(state, of(state), mesh) <= 0.28
    _, state = jax.jit(tx.update, out_shardings=None)(params, state, params)
    assert _share(state, of(state), mesh) <= 0.28
