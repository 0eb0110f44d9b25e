"""Experts and layers on any axis: each matrix is taken by itself.

MaxText's issue 4798: stacks of experts ``(experts, layers, in, out)`` whose module had
another name than ``MoeBlock_0`` were orthogonalized across the experts.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from optax.contrib import MuonDimensionNumbers

import optax_matrix as om

SIZES = {"expert": 2, "layers": 3, "embed": 4, "mlp": 5}
# Experts and layers move; the kernel itself stays (in, out).
ORDERS = [o for o in itertools.permutations(SIZES) if o.index("embed") < o.index("mlp")]


def polar(x):
    """Of every matrix ``(..., in, out)``, by NumPy."""
    u, _, v = np.linalg.svd(x, full_matrices=False)
    return u @ v


def axes_last(x, order):
    """The leaf as ``(expert, layers, embed, mlp)``."""
    return np.transpose(x, [order.index(name) for name in SIZES])


@pytest.mark.slow
@pytest.mark.parametrize("form", ["ours", "optax", "infer"])
@pytest.mark.parametrize("order", ORDERS, ids=lambda o: "-".join(o))
def test_every_expert_of_every_layer_is_a_matrix(order, form):
    rng = np.random.default_rng(0)
    kernel = rng.standard_normal([SIZES[name] for name in order]).astype(np.float32)
    params = {"moe": {"wi_0": jnp.asarray(kernel)}}
    reduction, output = order.index("embed"), order.index("mlp")
    if form == "infer":
        boxed = nn.LogicallyPartitioned(params["moe"]["wi_0"], order)
        numbers = om.matrices.infer({"moe": {"wi_0": boxed}})
    elif form == "optax":
        numbers = {"moe": MuonDimensionNumbers(reduction, output)}
    else:
        ours = om.MatrixDimensionNumbers(reduction, output)
        numbers = om.matrices.by_path(numbers={"wi_0": ours})
    (row,) = om.describe(params, numbers).rows
    assert row.view == "6x (5, 4)"
    block = om.orthogonalize(om.linalg.polar_svd)
    tx = om.on_matrices(block, dimension_numbers=numbers, probe=False)
    update = tx.update(params, tx.init(params))[0]["moe"]["wi_0"]
    np.testing.assert_allclose(
        axes_last(update, order), polar(axes_last(kernel, order)), atol=1e-5
    )


PATHS = ("MoeBlock_0", "routed_experts", "moe_block", "GptOssMlp")


@pytest.mark.parametrize("module", PATHS)
def test_the_default_rule_under_the_names_of_maxtext(module):
    shapes = {
        "wi_0": (8, 3, 4, 5),
        "wi": (8, 4, 10),  # Gate and up, fused.
        "wo": (8, 5, 4),
        "wi_0_bias": (8, 5),
        "wo_bias": (8, 4),
    }
    params = {
        "layers": {module: {n: np.ones(s, np.float32) for n, s in shapes.items()}}
    }
    rows = {row.leaf.split("/")[-1]: row for row in om.describe(params).rows}
    views = {name: row.view for name, row in rows.items()}
    assert views == {
        "wi_0": "24x (5, 4)",
        "wi": "8x (10, 4)",
        "wo": "8x (4, 5)",
        "wi_0_bias": "-",
        "wo_bias": "-",
    }


@pytest.mark.broad
def test_an_embedding_like_projection():
    """``(in, out)`` under a name of embeddings: Muon's by choice, in either sense."""
    params = {"patch_embed": {"kernel": jnp.ones((6, 4))}}
    assert om.describe(params).rows[0].optimizer == "other"
    (row,) = om.describe(params, om.matrices.by_path(include="patch_embed")).rows
    assert (row.optimizer, row.view) == ("matrix", "1x (4, 6)")
    lookup = om.MatrixDimensionNumbers(0, 1)  # One-hot rows times (vocab, d).
    rule = om.matrices.by_path(numbers={"patch_embed": lookup})
    tx = optax.chain(om.scale_by_muon(scaling="unclipped", dimension_numbers=rule))
    grads = {"patch_embed": {"kernel": jnp.eye(6, 4)}}
    updates, _ = jax.jit(tx.update)(grads, tx.init(params), params)
    update = updates["patch_embed"]["kernel"]
    # RMS to RMS: sqrt(4 / 6) times the polar factor, to Newton-Schulz's accuracy.
    sizes = jnp.linalg.svd(update, compute_uv=False)
    np.testing.assert_allclose(sizes, (4 / 6) ** 0.5, rtol=0.35)
