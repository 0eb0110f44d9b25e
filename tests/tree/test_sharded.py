"""`placement=None` on sharded parameters, in Auto and Explicit mode."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

from optax_matrix.linalg.lapack import qr
from optax_matrix.tree import on_matrices

SPECS = {
    "rows": ((8, 16), P("fsdp", None)),
    "columns": ((8, 16), P(None, "fsdp")),
    "both": ((8, 16), P("fsdp", "tp")),
    "layers": ((4, 8, 16), P("fsdp", None, "tp")),
    "experts": ((4, 8, 16), P(("fsdp",), "tp", None)),
    "odd": ((3, 8, 16), P(None, None, "tp")),
    "bias": ((16,), P("tp")),
}


def _orthogonalize(x, _):
    wide = x.shape[-1] > x.shape[-2]
    q, _ = qr(x.mT if wide else x)
    return q.mT if wide else q


def _tx():
    decomposition = optax.stateless_with_tree_map(_orthogonalize)
    gram = optax.stateless_with_tree_map(lambda x, _: x @ x.mT @ x)
    return on_matrices(optax.chain(optax.trace(0.9), gram, decomposition))


def _tree(mesh=None):
    tree = {}
    for i, (name, (shape, spec)) in enumerate(SPECS.items()):
        x = np.random.default_rng(i).standard_normal(shape).astype(np.float32)
        tree[name] = jax.device_put(x, NamedSharding(mesh, spec)) if mesh else x
    return tree


@pytest.fixture(params=[AxisType.Explicit, AxisType.Auto], ids=["explicit", "auto"])
def mesh(request, cpus):
    return jax.make_mesh(
        (4, 2), ("fsdp", "tp"), axis_types=(request.param,) * 2, devices=cpus
    )


@pytest.mark.slow
def test_sharded_equals_replicated_and_keeps_specs(mesh):
    grads, tx = _tree(), _tx()
    want, want_state = tx.update(grads, tx.init(grads), grads)
    sharded = _tree(mesh)
    state = tx.init(sharded)

    def step(params, grads, state):
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    # Explicit specs are part of the types; in Auto mode a training loop states them.
    explicit = AxisType.Explicit in mesh.axis_types
    shardings = jax.tree.map(lambda x: x.sharding, sharded)
    step = jax.jit(step, out_shardings=None if explicit else (shardings, None))
    new, state = step(sharded, sharded, state)
    for name, x in new.items():
        np.testing.assert_allclose(x - grads[name], want[name], atol=2e-5)
        assert x.sharding.is_equivalent_to(sharded[name].sharding, x.ndim), name
    size = lambda tree: sum(x.size for x in jax.tree.leaves(tree.inner_state))
    assert size(state) == size(want_state)


@pytest.mark.quick("auto")
def test_state_is_sharded_like_the_parameters(mesh):
    state = _tx().init({"columns": _tree(mesh)["columns"], "both": _tree(mesh)["both"]})
    arrays = jax.tree.leaves(state.inner_state)
    specs = [P(*x.sharding.spec, *[None] * x.ndim)[: x.ndim] for x in arrays]
    # Kernels (in, out) are seen as (out, in): the axes change places. In Auto mode the
    # stack holds both and lies as its first leaf does.
    both, columns = (None, "tp", "fsdp"), (None, "fsdp", None)
    want = [both, columns] if len(specs) == 2 else [both]
    assert sorted(specs, key=str) == sorted(want, key=str)


@pytest.mark.broad
def test_state_keeps_type_and_sharding_and_nothing_recompiles(mesh):
    tx, grads = _tx(), _tree(mesh)
    state = tx.init(grads)
    step = jax.jit(tx.update, donate_argnums=1)
    types = jax.tree.map(jax.typeof, state)
    for _ in range(3):
        _, state = step(grads, state, grads)
        assert jax.tree.map(jax.typeof, state) == types
    if AxisType.Explicit in mesh.axis_types:
        assert step._cache_size() == 1


@pytest.mark.broad
def test_jitted_and_abstract_init(mesh):
    tx, grads = _tx(), _tree(mesh)
    with jax.set_mesh(mesh):
        types = jax.tree.map(jax.typeof, jax.jit(tx.init)(grads))
    assert jax.tree.map(jax.typeof, tx.init(grads)) == types
    shapes = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), grads
    )
    abstract = jax.eval_shape(tx.init, shapes)
    assert jax.tree.map(jnp.shape, abstract) == jax.tree.map(jnp.shape, types)


@pytest.mark.slow
def test_optax_muon_raises_where_we_do_not(cpus):
    """What `placement=None` is measured against; drop it when optax can do it."""
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Explicit,), devices=cpus)
    x = {"w": jax.device_put(jnp.ones((8, 16)), NamedSharding(mesh, P("x", None)))}
    muon = optax.contrib.muon(1e-3)
    with pytest.raises(Exception, match="shard"):
        muon.update(x, muon.init(x), x)
    tx = _tx()
    tx.update(x, tx.init(x), x)
