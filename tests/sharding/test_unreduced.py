"""Gradients that are sums along mesh axes, of which no device has computed the sum."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _meshes import collectives
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import optax_matrix as om

PATHS = [f"{i}/kernel" for i in range(5)]
AXES = {"data": 4, "fsdp": 2}
REDUCED, UNREDUCED = "reduced", "unreduced"
BATCH = np.random.default_rng(0).standard_normal((2, 8, 32)).astype(np.float32)


def placed(cpus, spec, axes=AXES):
    kinds = (AxisType.Explicit,) * len(axes)
    sizes = tuple(axes.values())
    mesh = jax.make_mesh(sizes, tuple(axes), axis_types=kinds, devices=cpus)
    put = lambda x, spec: jax.device_put(x, NamedSharding(mesh, spec))
    w = np.ones((16, 32), np.float32)
    return mesh, {p: put(w, spec) for p in PATHS}, put


def gradients(x, y, spec, waiting):
    """Those of linear layers with inputs x, of which a data axis has a part each."""
    x = jax.sharding.reshard(x, P("data", *spec[:1]))
    out = P(*spec, unreduced={"data"})
    full = {p: (i + 1) * y for i, p in enumerate(PATHS)}
    make = lambda p: jnp.einsum(
        "bi,bo->io", x, full[p], out_sharding=out if p in waiting else P(*spec)
    )
    return {p: make(p) for p in PATHS}


def run(cpus, spec, placement, waiting, axes=AXES):
    """The updates of a step, and its program."""
    mesh, params, put = placed(cpus, spec, axes)
    with jax.set_mesh(mesh):
        x, y = (put(z, P("data", None)) for z in (BATCH[0, :, :16], BATCH[1]))
        tx = om.muoneq(0.1, placement=placement, weight_decay=0.0)

        def step(x, y, params):
            grads = gradients(x, y, spec, waiting)
            return tx.update(grads, tx.init(params), params)[0]

        program = jax.jit(step).lower(x, y, params).compile()
        return jax.tree.map(np.asarray, program(x, y, params)), program


CASES = {
    "copies": (P(None, None), {"data": 8}, ("data",)),
    "slices own, too": (P("fsdp", None), AXES, ("data", "fsdp")),
    "slices do not own": (P("fsdp", None), AXES, ("fsdp",)),
}


@pytest.mark.daily("copies")
@pytest.mark.broad
@pytest.mark.parametrize("case", CASES)
def test_they_are_added_on_the_way(case, cpus):
    spec, axes, names = CASES[case]
    want, before = run(cpus, spec, om.owners(names), (), axes)
    found, program = run(cpus, spec, om.owners(names), PATHS, axes)
    for path, x in want.items():
        np.testing.assert_allclose(found[path], x, rtol=2e-5, atol=2e-6)
    counts = collectives(program)
    if "data" in names:  # Each owner gets the sum of its own matrices alone.
        assert counts["reduce-scatter"] == 1
        assert counts["all-reduce"] < collectives(before)["all-reduce"]
    some, _ = run(cpus, spec, om.owners(names), PATHS[:2], axes)
    for path, x in want.items():
        np.testing.assert_allclose(some[path], x, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("placement", [None, om.owners("fsdp")])
def test_elsewhere_they_are_refused_with_what_to_do(placement, cpus):
    """Without owners, and where an axis stays inside the matrices."""
    axes = {"data": 2, "fsdp": 2, "tp": 2}
    message = r"'0/kernel' is `unreduced` along \('data',\).*reshard"
    with pytest.raises(ValueError, match=message):
        run(cpus, P("fsdp", "tp"), placement, PATHS, axes)
