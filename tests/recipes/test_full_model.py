"""ARO for every parameter: embeddings and head rotate, vectors go by the base."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _matrices import ones
from flax import nnx

import optax_matrix as om
from examples.pretrain.config import SIZES
from examples.pretrain.model import Llama
from optax_matrix.matrices.wider import with_embeddings


@pytest.mark.broad
@pytest.mark.parametrize("base", ["sinkhorn", "adam"])
def test_full_model_leaves_nothing_to_adamw(base):
    params = {"embedding": jnp.eye(4, 3), "kernel": jnp.eye(3), "bias": jnp.ones(3)}
    tx = om.aro(0.5, base=base, b2=0.75, full_model=True, weight_decay=0.1)
    grads = {**params, "bias": jnp.array([2.0, -3.0, 0.0])}
    updates, _ = jax.jit(tx.update)(grads, tx.init(params), params)
    # The first direction of both bases is a multiple of the signs.
    signs = jnp.sign(grads["bias"]) * (3 / 2) ** 0.5
    vector = -0.5 * 0.2 * signs  # Without decay.
    np.testing.assert_allclose(updates["bias"], vector, rtol=1e-6)
    for name in updates:
        decay = 0.0 if name == "bias" else 0.1
        direction = updates[name] / -0.5 - decay * params[name]
        rms = jnp.sqrt(jnp.mean(direction**2))
        np.testing.assert_allclose(rms, 0.2, rtol=1e-5)


def test_full_model_has_embedding_and_head_on_top_of_an_inferred_layout():
    config = dataclasses.replace(SIZES["tiny"], embed=16, mlp=24, heads=2, layers=1)
    model = nnx.eval_shape(lambda: Llama(config, rngs=nnx.Rngs(0)))
    params = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    inferred = om.matrices.infer(model)
    inside = "layers/0/mlp/up/kernel"
    narrower = om.matrices.by_path(exclude=inside, otherwise=inferred)
    for rule in (inferred, narrower, lambda _: inferred):
        tx = om.aro(1e-2, full_model=True, dimension_numbers=rule)
        state = jax.eval_shape(tx.init, params)
        rotations = state.inner_state[1].rotation
        # All that touch the residual stream rotate its 16 channels.
        assert {r.rows.shape[1:] for r in rotations.values()} == {(16, 16)}
        numbers = with_embeddings(narrower if rule is narrower else inferred)(params)
        assert numbers["embed"]["embedding"].residual == "out"
        assert numbers["lm_head"]["kernel"].residual == "in"
        count = sum(r.rows.shape[0] for r in rotations.values())
        assert count == 9 - (rule is narrower)
        assert len(jax.tree.leaves(numbers)) == count


def test_full_model_widens_the_default_rule_and_leaves_trees_alone():
    params = {"embedding": ones(7, 4), "lm_head": {"kernel": ones(4, 7)}}
    params["norm"] = {"scale": ones(2, 4)}
    rule = with_embeddings(om.matrices.by_path(exclude="norm/"))
    numbers = rule(params)
    assert numbers["norm"]["scale"] is None
    assert None not in (numbers["embedding"], numbers["lm_head"]["kernel"])
    given = {"embedding": om.MatrixDimensionNumbers(), "lm_head": None, "norm": None}
    assert with_embeddings(given) is given
