"""Forms for single platforms: which one is compiled, and loops over matrices."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P

import optax_matrix
from optax_matrix._platforms import by_platform, can_loop, in_turn, is_large_stack

PACKAGE = Path(optax_matrix.__file__).parent
SUMMANDS = {"default": 2.0, "cpu": 3.0, "cuda": 5.0, "tpu": 7.0}
FORMS = {name: lambda x, by=by: x + by for name, by in SUMMANDS.items()}


def compiled_in(platform, shape=(3,), **forms):
    """The summands in the program of some of the forms, lowered for a platform."""
    run = jax.jit(lambda x: by_platform(FORMS["default"], x, **forms))
    lowered = run.trace(jax.ShapeDtypeStruct(shape, jnp.float32)).lower(
        lowering_platforms=(platform,)
    )
    return {float(x) for x in re.findall(r"dense<(\d\.0+e\+00)>", lowered.as_text())}


@pytest.mark.parametrize("platform", ["cpu", "cuda", "tpu"])
def test_a_platform_compiles_its_own_form_or_the_default(platform):
    own = {name: form for name, form in FORMS.items() if name != "default"}
    assert compiled_in(platform, **own) == {SUMMANDS[platform]}
    others = own | {platform: None}
    assert compiled_in(platform, **others) == {SUMMANDS["default"]}
    assert compiled_in(platform) == {SUMMANDS["default"]}
    assert compiled_in(platform, (0, 3), **own) <= {SUMMANDS["default"]}


def test_nothing_else_chooses_by_platform():
    files = {p for p in PACKAGE.rglob("*.py") if "platform_dependent" in p.read_text()}
    assert files == {PACKAGE / "_platforms.py"}, (
        "call `by_platform` of optax_matrix._platforms, so that there is one way to "
        "write a form for one platform"
    )


@pytest.mark.parametrize("at_a_time", [None, 1, 3])
def test_a_loop_over_matrices_is_the_kernel_of_the_stack(at_a_time):
    x = np.arange(6 * 2 * 3, dtype=np.float32).reshape(2, 3, 2, 3)
    tree = {"scale": np.arange(6, dtype=np.float32).reshape(2, 3), "other": x + 1}

    def kernel(x, tree):
        scaled = x * tree["scale"][..., None, None]
        return scaled, {"sum": scaled.sum((-2, -1)), "both": x + tree["other"]}

    want = kernel(x, tree)
    for in_place in (0, 1):
        run = in_turn(kernel, in_place=in_place, at_a_time=at_a_time)
        got = jax.jit(run)(x, tree)
        jax.tree.map(np.testing.assert_allclose, got, want)


def test_which_stacks_are_large():
    large = lambda *shape: is_large_stack(np.zeros(shape, np.float32))
    assert large(2, 64, 64)
    assert not large(1, 64, 64)
    assert not large(64, 64)
    assert not large(2, 64, 63)
    assert is_large_stack(np.zeros((2, 3, 4)), side=3)


@pytest.mark.parametrize("kind", list(AxisType))
def test_a_loop_on_tpus_needs_whole_arrays(kind):
    assert can_loop(jnp.ones((2, 2)))
    assert not can_loop(jnp.ones((0, 2)))
    mesh = AbstractMesh((4,), ("x",), axis_types=(kind,))
    found = []
    see = lambda x: (found.append(can_loop(x)), x)[1]
    shape = jax.ShapeDtypeStruct((8, 2), jnp.float32)
    if kind == AxisType.Manual:
        free = AbstractMesh((4,), ("x",), axis_types=(AxisType.Auto,))
        run = jax.shard_map(see, mesh=free, in_specs=P("x"), out_specs=P("x"))
        jax.eval_shape(run, shape)
    else:
        sharding = NamedSharding(mesh, P())
        jax.jit(see).trace(jax.ShapeDtypeStruct((8, 2), "float32", sharding=sharding))
    assert found == [kind == AxisType.Manual]
