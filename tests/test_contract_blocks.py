"""Every block on two owners, in eight bits, through a file and past a NaN.

One program of each kind serves all of it: three steps, whose state goes through the
portable form in between, and a last one with a gradient that is not finite.
"""

import functools

import jax
import numpy as np
import pytest
from _registry import BLOCKS, PAIRED, on_block
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import optax_matrix as om

SHAPES = {"layers": (3, 4, 8), "odd": (8, 4)}
SPECS = {"layers": P(None, "d"), "odd": P("d")}
# Partners of both, for blocks of pairs.
PARTNERS = (
    {"others": (3, 8, 4), "even": (4, 8)},
    {"others": P(None, "d"), "even": P("d")},
)
PAIRS = {"layers/kernel": "others/kernel", "odd/kernel": "even/kernel"}
DAILY = "add", "with_state", "on_pairs"
# A block that keeps a basis or frame of its own may turn it where rounding differs.
TURNED = ("rotate", "in_eigenbasis", "project_", "scale_by_tracked")


def form(name):
    """Shapes and shardings of the leaves for a block."""
    both = SHAPES, SPECS
    if name in PAIRED:
        both = tuple(a | b for a, b in zip(both, PARTNERS, strict=True))
    return both


def trees(name, count, put=lambda x: x):
    rng, (shapes, _) = np.random.default_rng(0), form(name)
    draw = lambda: {k: np.float32(rng.standard_normal(s)) for k, s in shapes.items()}
    return [put({k: {"kernel": x} for k, x in draw().items()}) for _ in range(count)]


def run(name, placement, put=lambda x: x):
    """The updates of three steps and of one with a NaN, and the last two states."""
    in_few_bits = om.quantized(placement, block_size=8, min_size=1)
    tx = on_block(name, PAIRS, placement=in_few_bits, nonfinite="skip")
    params, *stream = trees(name, 5, put)
    bad = stream.pop()
    bad["odd"]["kernel"] = bad["odd"]["kernel"] * np.float32(np.nan)
    state, update, found = jax.jit(tx.init)(params), jax.jit(tx.update), []
    for grads in stream:
        fresh = jax.jit(tx.init)(params)
        state = om.from_portable(om.to_portable(state, params), fresh, params)
        new, state = update(grads, state)
        found.append(jax.device_get(new))
    new, after = update(bad, state)
    return [*found, jax.device_get(new)], *(
        om.to_portable(s, params) for s in (state, after)
    )


@pytest.mark.broad
@pytest.mark.daily(*DAILY)
@pytest.mark.parametrize("name", [*BLOCKS, *PAIRED])
def test_owners_eight_bits_files_and_gradients_that_are_not_finite(name, cpus):
    mesh = jax.make_mesh((2,), ("d",), (AxisType.Explicit,), devices=cpus[:2])
    of = {k: {"kernel": NamedSharding(mesh, spec)} for k, spec in form(name)[1].items()}
    put = functools.partial(jax.tree.map, jax.device_put)
    want, *_ = run(name, None)
    got, before, after = run(name, om.owners("d"), lambda tree: put(tree, of))
    for steps in zip(got, want, strict=True):
        if name.startswith(TURNED):
            break
        close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)
        jax.tree.map(close, *steps)
    assert not np.any(got[-1]["odd"]["kernel"])
    assert np.any(got[-1]["layers"]["kernel"])
    held = [path for path in before if "odd" in path]
    for path in held:
        np.testing.assert_array_equal(before[path], after[path], err_msg=path)
