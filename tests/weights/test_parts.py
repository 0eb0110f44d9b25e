"""The parts as arrays: saved in the middle of a merge period, and sharded."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import optax_matrix as om
from optax_matrix.transforms import scale_by_adam_per_matrix

POET = om.reparameterize(block=4, merge_interval=3, merge_at=0.2)
ADAM = optax.chain(scale_by_adam_per_matrix(), optax.scale(-0.05))
TX = POET.optimizer(ADAM, optax.adam(0.05))
SPECS = {"up": P("fsdp", "tp"), "layers": P(None, None, "fsdp"), "bias": P("tp")}


def _params():
    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.standard_normal(shape), jnp.float32)
    return {"up": draw(8, 16), "layers": draw(2, 8, 12), "bias": draw(16)}


def _step(frozen, trainable, state):
    def loss(trainable):
        params = POET.materialize(frozen, trainable)
        return sum(jnp.sum(jnp.cos(x) + (x - 0.3) ** 2) for x in params.values())

    updates, state = TX.update(jax.grad(loss)(trainable), state, trainable)
    trainable = optax.apply_updates(trainable, updates)
    return POET.merge_if_due(frozen, trainable, state, TX)


def _start(params):
    frozen, trainable = POET.split(params)
    return frozen, trainable, TX.init(trainable)


@pytest.fixture(scope="module")
def alone():
    """Every state of seven steps on one device."""
    step, states = jax.jit(_step), [_start(_params())]
    for _ in range(7):
        states.append(step(*states[-1]))
    return step, states


@pytest.mark.slow
def test_a_checkpoint_in_the_middle_of_a_period_goes_on_bit_for_bit(alone, tmp_path):
    step, states = alone
    middle = states[4]
    assert int(middle[0].count) == 1
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "parts", middle)
        checkpointer.wait_until_finished()
        like = jax.eval_shape(lambda: _start(_params()))
        state = checkpointer.restore(tmp_path / "parts", like)
    for _ in range(3):
        state = step(*state)
    equal = jax.tree.map(np.array_equal, state, states[7])
    assert all(jax.tree.leaves(equal))
    merges = np.concatenate(jax.tree.leaves(state[0].merges))
    assert merges.min() >= 2 < merges.max()  # Some by themselves.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "rotations"),
    [
        pytest.param(AxisType.Auto, P(), marks=pytest.mark.slow),
        pytest.param(AxisType.Auto, P(None, "tp", None), marks=pytest.mark.broad),
        pytest.param(AxisType.Explicit, P(), marks=pytest.mark.slow),
        pytest.param(AxisType.Explicit, P(None, "tp", None), marks=pytest.mark.slow),
    ],
    ids=["auto-whole", "auto-cut", "explicit-whole", "explicit-cut"],
)
def test_it_trains_under_fsdp(kind, rotations, alone, cpus):
    mesh = jax.make_mesh((4, 2), ("fsdp", "tp"), axis_types=(kind,) * 2, devices=cpus)
    shardings = {name: NamedSharding(mesh, spec) for name, spec in SPECS.items()}
    with jax.set_mesh(mesh):
        frozen, trainable = POET.split(jax.device_put(_params(), shardings))
        for name in ("up", "layers"):
            lies = frozen.weights[name].sharding
            assert lies.is_equivalent_to(shardings[name], frozen.weights[name].ndim)
        if rotations:
            cut = NamedSharding(mesh, rotations)  # The blocks, two of which there are.
            where = lambda x: cut if x.shape[1] % 2 == 0 else x.sharding
            moved = jax.tree.map(where, trainable.rotations)
            trainable = trainable._replace(
                rotations=jax.device_put(trainable.rotations, moved)
            )
        parts = frozen, trainable, jax.jit(TX.init)(trainable)
        explicit = kind == AxisType.Explicit
        lie = jax.tree.map(lambda x: x.sharding, parts)
        # A function of its own: `jax.jit` of the same one shares its cache.
        own = lambda *parts: _step(*parts)
        step = jax.jit(own, out_shardings=None if explicit else lie)
        types = jax.tree.map(jax.typeof, parts)
        for want in alone[1][1:5]:
            parts = step(*parts)
            assert jax.tree.map(jax.typeof, parts) == types
            # Sums over devices come in another order.
            jax.tree.map(
                lambda a, b: np.testing.assert_allclose(a, b, atol=3e-5), parts, want
            )
        assert step._cache_size() == 1
        for name in ("up", "layers"):
            lies = parts[0].weights[name].sharding
            assert lies.is_equivalent_to(shardings[name], parts[0].weights[name].ndim)
    assert all((n >= 1).all() for n in jax.tree.leaves(parts[0].merges))


@pytest.mark.slow
def test_an_nnx_state_can_be_saved(tmp_path):
    model = nnx.Linear(4, 6, rngs=nnx.Rngs(0))
    parts = _start(nnx.state(model, nnx.Param))
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "parts", parts)
        checkpointer.wait_until_finished()
        back = checkpointer.restore(tmp_path / "parts", jax.eval_shape(lambda: parts))
    params = POET.materialize(*back[:2])
    np.testing.assert_array_equal(params["kernel"][...], model.kernel[...])
