"""Arrays of another kind of number are refused; those in eight bits are converted."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _registry import RECIPES, tree
from _tiers import tiered
from jax.sharding import NamedSharding, PartitionSpec as P

import optax_matrix as om
from optax_matrix.checkpoint import (
    check_restored,
    from_portable,
    to_portable,
)
from optax_matrix.quantization.quantizer import SIGNED, UNSIGNED

# The states alone are used.
pytestmark = pytest.mark.usefixtures("unprobed")

PARAMS = tree(0, shapes={"up": {"kernel": (3, 6), "bias": (6,)}})
KINDS = {"b": bool, "i": np.int32, "f": np.float32, "c": np.complex64, "U": str}
PLACED = {"block_size": 8, "min_size": 1}


def kind(x):
    found = np.asarray(x).dtype
    if jnp.issubdtype(found, jnp.floating):
        return "f"
    return {"u": "i"}.get(found.kind, found.kind)


def field(key, params=PARAMS):
    """The field of an entry that belongs to a parameter; its place otherwise."""
    paths = [p for p in om._paths.named_leaves(params) if key.endswith(f"/{p}")]
    return key.removesuffix(f"/{max(paths, key=len)}") if paths else key


def is_unsigned(key):
    fields = {*UNSIGNED, *SIGNED}
    return (
        next(x for x in [*field(key).split("/")[::-1], ""] if x in fields | {""})
        in UNSIGNED
    )


def drawn(portable):
    """A portable form with numbers in its floating arrays."""
    rng = np.random.default_rng(0)

    def draw(key, x):
        if kind(x) != "f":
            return x
        numbers = rng.standard_normal(np.shape(x)).astype(np.float32)
        return abs(numbers) if is_unsigned(key) else numbers

    return {key: draw(key, x) for key, x in portable.items()}


@pytest.mark.broad
@pytest.mark.parametrize("name", tiered(RECIPES))
def test_another_kind_of_number_is_refused(name):
    state = RECIPES[name](1e-2).init(PARAMS)
    portable = to_portable(state, PARAMS)
    labels = ("method/", "manifest/", "sides/")
    keys = {field(k): k for k in portable if not k.startswith(labels)}
    assert len(keys) > 2
    for key in keys.values():
        own = np.asarray(portable[key])
        for other, dtype in KINDS.items():
            if other == kind(own):
                continue
            wrong = {**portable, key: np.ones(own.shape, dtype)}
            with pytest.raises(ValueError, match=r"`portable` must hold .*, got \w+"):
                from_portable(wrong, state, PARAMS)
    jax.tree.map(
        np.testing.assert_array_equal, from_portable(portable, state, PARAMS), state
    )


@pytest.mark.broad
@pytest.mark.parametrize("name", tiered(RECIPES))
def test_from_a_plain_state_to_one_in_eight_bits_and_back(name):
    """By the same call, whatever is packed: the numbers are those of `dequantize`."""
    eight = {"placement": om.quantized(**PLACED), "other": om.adamw_8bit(0.1, **PLACED)}
    plain = RECIPES[name](0.1, other=optax.adamw(0.1)).init(PARAMS)
    packed = RECIPES[name](0.1, **eight).init(PARAMS)
    given = drawn(to_portable(plain, PARAMS))
    stored = from_portable(given, packed, PARAMS)
    codes = to_portable(stored, PARAMS)
    again = from_portable(codes, packed, PARAMS)
    jax.tree.map(np.testing.assert_array_equal, again, stored)
    got = to_portable(from_portable(codes, plain, PARAMS), PARAMS)
    assert got.keys() == given.keys()
    converted = 0
    for key, x in given.items():
        want = x
        if np.asarray(codes[key]).dtype == np.uint8:
            converted += 1
            axes = int(not key.startswith("other/"))
            options = {"signed": not is_unsigned(key), "batch_axes": axes}
            both = om.quantization.quantize(jnp.asarray(x), 8, **options)
            want = om.quantization.dequantize(*both, 8, **options)
        np.testing.assert_array_equal(got[key], want, err_msg=key)
    assert converted


@pytest.mark.broad
@pytest.mark.parametrize("name", tiered(RECIPES))
def test_a_check_of_a_state_sees_arrays_that_cannot_be(name):
    """From the types of the nodes and the names of their fields alone."""
    state = RECIPES[name](1e-2, other=optax.adamw(1e-2)).init(PARAMS)
    check_restored(state)
    portable = to_portable(state, PARAMS)
    leaves, structure = jax.tree_util.tree_flatten_with_path(state)
    for i, (keys, leaf) in enumerate(leaves):
        names = [k.name for k in keys if isinstance(k, jax.tree_util.GetAttrKey)]
        if names[0] in ("method", "manifest", "sides"):
            continue
        other = np.float32 if kind(leaf) == "i" else np.int32
        bad = [leaf.astype(other), leaf.astype(bool), leaf.astype(np.complex64)]
        bad = bad[:2] if names[0] == "other" else bad
        if names[-1] in UNSIGNED:
            bad.append(leaf - 1)
        for x in bad:
            values = [x if i == j else y for j, (_, y) in enumerate(leaves)]
            with pytest.raises(ValueError, match=r"`state` must hold (no neg|\w+)"):
                check_restored(jax.tree.unflatten(structure, values))
    for key, x in portable.items():
        if field(key).rpartition("/")[2] == "nu":
            with pytest.raises(ValueError, match="must hold no negative numbers in"):
                from_portable({**portable, key: x - 1}, state, PARAMS)


@pytest.mark.broad
@pytest.mark.parametrize("name", tiered(RECIPES))
def test_second_moments_of_training_pass(name):
    tx = RECIPES[name](1e-2)
    update, state = jax.jit(tx.update), tx.init(PARAMS)
    for seed in (1, 2, 3):
        grads = tree(seed, shapes={"up": {"kernel": (3, 6), "bias": (6,)}})
        _, state = update(grads, state, PARAMS)
    check_restored(state)
    from_portable(to_portable(state, PARAMS), state, PARAMS)


def test_replicas_are_read_once(cpus, monkeypatch):
    """Of an array on eight devices only the parts that differ."""
    mesh, read = jax.make_mesh((4, 2), ("a", "b"), devices=cpus), []
    signs = "optax_matrix.checkpoint._check_restored.check_signs"
    monkeypatch.setattr(signs, lambda x, *_: read.append(x.shape))
    state = om.on_matrices(optax.scale_by_rms()).init(PARAMS)
    for spec, part in ((P(), (1, 6, 3)), (P(None, "b"), (1, 3, 3))):
        sharding = NamedSharding(mesh, spec)
        moments = jax.device_put(state.inner_state, sharding)
        check_restored(state._replace(inner_state=moments))
        assert read == [part] * (6 // part[1])
        read.clear()
