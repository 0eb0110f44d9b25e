"""What a step costs a device: its share of the work, and no more bytes than its own."""

import jax
import numpy as np
import optax
import pytest
from _meshes import KINDS, collectives, make_mesh
from _owned import cubic, given, normal, on_mesh
from jax.sharding import PartitionSpec as P

import optax_matrix as om

# Eight matrices of every sharding, so that eight owners have one of each.
SHAPES = {f"cut/{i}": (64, 128) for i in range(8)}
SHAPES |= {f"rows/{i}": (32, 64) for i in range(8)}
SHAPES |= {f"whole/{i}": (24, 32) for i in range(8)}
SHAPES |= {"layers": (8, 64, 32), "experts": (8, 48, 64)}
SPECS = dict.fromkeys(SHAPES, P("fsdp", "tp"))
SPECS |= {f"rows/{i}": P(None, ("fsdp", "tp")) for i in range(8)}
SPECS |= {f"whole/{i}": P() for i in range(8)}
SPECS |= {"layers": P(("fsdp", "tp"), None, None), "experts": P("fsdp", "tp", None)}


def _matmuls(_):
    def six(x, _):
        for _ in range(3):
            x = x @ x.mT @ x
        return x

    return optax.stateless_with_tree_map(six)


def _flops(tx, tree):
    compiled = jax.jit(tx.update).lower(tree, tx.init(tree), tree).compile()
    return compiled.cost_analysis()["flops"], collectives(compiled)


@pytest.mark.broad
@pytest.mark.parametrize("kind", KINDS)
def test_each_device_does_an_eighth_of_the_work(kind, cpus):
    mesh = make_mesh("fsdp4-tp2", kind, cpus)
    grads = normal(SHAPES, 0)
    placement = om.owners(("fsdp", "tp"), param_specs=given(mesh, SPECS))
    # Products dominate, which are counted alike with and without optimizations.
    total, none = _flops(om.on_matrices(_matmuls, probe=False), grads)
    tx = om.on_matrices(_matmuls, placement=placement, probe=False)
    each, found = _flops(tx, on_mesh(grads, SPECS, mesh))
    products = sum(_six_products(shape) for shape in SHAPES.values())
    assert products <= total < 1.05 * products
    assert each == pytest.approx(total / 8, rel=0.05)
    assert not none
    assert found == {"all-to-all": 6, "all-gather": 1}


@pytest.mark.daily("explicit")
@pytest.mark.broad
@pytest.mark.parametrize(
    ("shape", "spec", "want"),
    [
        ((8, 16), P("fsdp", "tp"), {"all-to-all": 2}),
        ((8, 16), P(None, ("tp", "fsdp")), {"all-to-all": 2}),
        ((8, 16), P("tp"), {"all-to-all": 2, "all-gather": 1}),
        ((8, 16), P(), {"all-gather": 1}),
        ((8, 4, 6), P(("tp", "fsdp")), {}),
        ((8, 4, 6), P("fsdp", "tp"), {"all-to-all": 2}),
        ((8, 4, 6), P("fsdp"), {"all-gather": 1}),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_collectives_of_a_group(kind, shape, spec, want, cpus):
    mesh = make_mesh("fsdp4-tp2", kind, cpus)
    shapes = {"0": shape, "1": shape}
    specs = dict.fromkeys(shapes, spec)
    placement = om.owners(("fsdp", "tp"), param_specs=given(mesh, specs))
    tx = om.on_matrices(cubic, placement=placement, probe=False)
    assert _flops(tx, on_mesh(normal(shapes, 0), specs, mesh))[1] == want


def _six_products(shape):
    *batch, cols, rows = shape  # Kernels are (in, out).
    return np.prod(batch, initial=1) * 3 * 4 * rows * rows * cols
