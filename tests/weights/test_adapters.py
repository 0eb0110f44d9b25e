"""Adapters against NumPy's singular values, and there and back on every tree."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import optax_matrix as om
from optax_matrix._paths import named_leaves
from optax_matrix.weights import Adapter, apply_adapter, extract_adapter

SHAPES = {
    "up": {"kernel": (12, 20), "bias": (20,)},
    "layers": {"kernel": (3, 12, 8)},
    "attn": {"query": {"kernel": (12, 2, 5)}},
    "embed": {"embedding": (30, 12)},
}


of_rank = jax.jit(extract_adapter, static_argnums=2)


def draw(seed):
    rng = np.random.default_rng(seed)
    is_shape = lambda x: isinstance(x, tuple)
    make = lambda shape: np.float32(rng.standard_normal(shape))
    return jax.tree.map(make, SHAPES, is_leaf=is_shape)


def low_rank_change(tree, rank, seed=9):
    """The tree with changes of this rank to its matrices ``(..., in, out)``."""
    rng = np.random.default_rng(seed)

    def change(shape, merged=None):
        *batch, m, n = merged or shape
        a, b = rng.standard_normal((*batch, m, rank)), rng.standard_normal((rank, n))
        return np.float32((a @ b).reshape(shape))

    return tree | {
        "up": tree["up"] | {"kernel": tree["up"]["kernel"] + change((12, 20))},
        "layers": {"kernel": tree["layers"]["kernel"] + change((3, 12, 8))},
        "attn": {
            "query": {
                "kernel": tree["attn"]["query"]["kernel"]
                + change((12, 2, 5), merged=(12, 10))
            }
        },
    }


BEFORE = draw(0)


@pytest.mark.broad
@pytest.mark.parametrize("given", [2, None])
def test_exact_where_the_difference_has_that_rank(given):
    after = low_rank_change(BEFORE, 2)
    adapters = extract_adapter(BEFORE, after, given)
    shapes = {path: (x.a.shape, x.b.shape) for path, x in adapters.items()}
    assert shapes == {
        "up/kernel": ((12, 2), (2, 20)),
        "layers/kernel": ((3, 12, 2), (3, 2, 8)),
        "attn/query/kernel": ((12, 2), (2, 10)),
    }
    got = apply_adapter(BEFORE, adapters)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5), got, after
    )
    back = apply_adapter(after, adapters, scale=-1.0)["up"]["kernel"]
    np.testing.assert_allclose(back, BEFORE["up"]["kernel"], atol=1e-5)


@pytest.mark.broad
def test_best_of_its_rank():
    """Eckart and Young: what is left are the other singular values."""
    after = draw(1)
    for path, x in jax.device_get(of_rank(BEFORE, after, 3)).items():
        leaf = lambda tree, path=path: np.float64(named_leaves(tree)[path])
        change = (leaf(after) - leaf(BEFORE)).reshape(-1, x.a.shape[-2], x.b.shape[-1])
        kept = np.float64(x.a @ x.b).reshape(change.shape)
        s = np.linalg.svd(change, compute_uv=False)
        left = np.linalg.norm(change - kept, axis=(1, 2))
        np.testing.assert_allclose(left, np.linalg.norm(s[:, 3:], axis=1), rtol=1e-5)
        turned = lambda x: np.swapaxes(x, -1, -2)
        for side in (turned(x.a) @ x.a, x.b @ turned(x.b)):  # Both carry the root.
            diagonal = np.reshape(side, (-1, 3, 3))
            want = s[:, :3, None] * np.eye(3)
            np.testing.assert_allclose(diagonal, want, atol=1e-4)


@pytest.mark.broad
def test_no_change_is_zero_and_finite():
    for scale in (0.0, 1e-20, 1e20):
        times = functools.partial(np.multiply, np.float32(scale))
        before = jax.tree.map(times, BEFORE)
        after = jax.tree.map(times, low_rank_change(BEFORE, 1))
        found = jax.tree.leaves(of_rank(before, after, 2))
        assert all(np.isfinite(x).all() for x in found)
    same = jax.device_get(extract_adapter(BEFORE, BEFORE))
    assert {x.a.shape[-1] for x in same.values()} == {1}
    assert not any(np.any(x.a @ x.b) for x in same.values())


@pytest.mark.broad
def test_rank_is_above_the_rounding_of_bfloat16():
    cast = lambda tree, dtype: jax.tree.map(lambda x: x.astype(dtype), tree)
    before = cast(BEFORE, jnp.bfloat16)
    after = low_rank_change(cast(before, np.float32), 2)
    rounded = cast(after, jnp.bfloat16)
    adapters = extract_adapter(before, rounded)
    assert {x.a.shape[-1] for x in adapters.values()} == {2}
    got = apply_adapter(before, adapters)["up"]["kernel"]
    assert got.dtype == jnp.bfloat16
    np.testing.assert_allclose(
        np.float32(got), np.float32(rounded["up"]["kernel"]), atol=0.1
    )


class Model(nnx.Module):
    def __init__(self, rngs):
        self.up = nnx.Linear(6, 9, rngs=rngs)
        self.down = nnx.Linear(9, 6, use_bias=False, rngs=rngs)

    def __call__(self, x):
        return self.down(jnp.tanh(self.up(x)))


@pytest.mark.broad
def test_nnx_model_and_its_lora():
    """`nnx.LoRA` with the factors computes what the fine-tuned layer does."""
    old, new = (nnx.state(Model(nnx.Rngs(i)), nnx.Param) for i in (0, 1))
    adapters = extract_adapter(old, new)
    assert set(adapters) == {"up/kernel", "down/kernel"}
    got = apply_adapter(old, adapters)
    np.testing.assert_allclose(got.up.kernel, new.up.kernel, atol=1e-5)
    np.testing.assert_array_equal(got.up.bias, old.up.bias)

    model = Model(nnx.Rngs(0))
    a, b = adapters["down/kernel"]
    lora = nnx.LoRA(9, a.shape[-1], 6, base_module=model.down, rngs=nnx.Rngs(2))
    lora.lora_a[...], lora.lora_b[...] = a, b
    x = jnp.ones((2, 9))
    np.testing.assert_allclose(lora(x), x @ new.down.kernel[...], rtol=1e-4)


@pytest.mark.broad
def test_what_galore_like_training_changed_has_its_rank():
    """Within one basis every update lies in it: the adapter is the whole change."""
    noise = lambda seed: np.float32(np.random.default_rng(seed).normal(size=(16, 24)))
    block = om.project_low_rank(optax.scale_by_adam(), rank=3)
    chain = om.on_matrices(block, probe=False)  # Tests of blocks have the probe.
    tx = optax.chain(chain, optax.scale(-0.1))
    params = after = {"kernel": noise(0)}
    state, update = jax.jit(tx.init)(params), jax.jit(tx.update)
    for seed in range(1, 6):
        updates, state = update({"kernel": noise(seed)}, state, after)
        after = jax.tree.map(np.add, after, jax.device_get(updates))
    (adapter,) = extract_adapter(params, after).values()
    assert adapter.a.shape == (16, 3)


@pytest.mark.parametrize("kind", [AxisType.Explicit, AxisType.Auto])
def test_sharded(kind, cpus):
    mesh = jax.make_mesh((4, 2), ("fsdp", "tp"), (kind, kind), devices=cpus)
    spec = NamedSharding(mesh, P("fsdp", "tp"))
    before = {"kernel": BEFORE["up"]["kernel"]}
    after = {"kernel": low_rank_change(BEFORE, 2)["up"]["kernel"]}
    put = lambda tree: jax.tree.map(lambda x: jax.device_put(x, spec), tree)
    adapters = extract_adapter(put(before), put(after), 2)
    got = apply_adapter(put(before), adapters)["kernel"]
    np.testing.assert_allclose(got, after["kernel"], atol=1e-5)
    assert got.sharding.is_equivalent_to(spec, 2)


def test_mistakes_are_told():
    with pytest.raises(ValueError, match="`rank` must be a positive int"):
        extract_adapter(BEFORE, BEFORE, 0)
    with pytest.raises(ValueError, match="`rank` must be at most"):
        extract_adapter(BEFORE, BEFORE, 100)
    with pytest.raises(ValueError, match=r"`after` must have .* up/kernel"):
        extract_adapter(BEFORE, BEFORE | {"up": {"kernel": jnp.ones((3, 3))}}, 1)
    factors = Adapter(jnp.ones((12, 1)), jnp.ones((1, 19)))
    with pytest.raises(ValueError, match="`adapters` for 'up/kernel' must be"):
        apply_adapter(BEFORE, {"up/kernel": factors})
    with pytest.raises(ValueError, match="`adapters` must be for matrices"):
        apply_adapter(BEFORE, {"embed/embedding": factors})


def test_a_given_rank_works_on_what_is_traced():
    found = jax.eval_shape(lambda a, b: extract_adapter(a, b, 2), BEFORE, BEFORE)
    assert found["up/kernel"].a.shape[-1] == 2
