"""PPO of Brax, which calls `optax.adam` and passes no parameters to `update`."""

import jax
import jax.numpy as jnp
import pytest

import optax_matrix as om
from optax_matrix.matrices.decisions import decide

ppo = pytest.importorskip("brax.training.agents.ppo.train")
envs = pytest.importorskip("brax.envs")

if jax.__version_info__ >= (0, 10):
    reason = "Brax 0.14.2 calls device_put_replicated, which JAX 0.10 does not have."
    pytest.skip(reason, allow_module_level=True)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

HEADS = om.matrices.by_path(exclude="policy/.*hidden_4/|value/.*hidden_5/")


def trained(monkeypatch, recipe, steps):
    monkeypatch.setattr(ppo.optax, "adam", recipe)
    found = []
    _, params, _ = ppo.train(
        envs.get_environment("fast"),
        num_timesteps=steps,
        num_envs=8,
        episode_length=16,
        unroll_length=4,
        batch_size=8,
        num_minibatches=2,
        num_evals=4,
        run_evals=False,
        learning_rate=1e-2,
        progress_fn=lambda _, metrics: found.append(metrics),
    )
    return [float(x["training/v_loss"]) for x in found if x], params


def test_ppo_trains_with_a_recipe_in_place_of_adam(monkeypatch):
    seen = []

    def recipe(learning_rate):
        tx = om.muoneq(learning_rate, weight_decay=0.0, dimension_numbers=HEADS)
        init = lambda params: seen.append(params) or tx.init(params)
        return tx._replace(init=init)

    losses, params = trained(monkeypatch, recipe, 2048)
    assert losses[-1] < losses[0]
    assert all(jnp.isfinite(x).all() for x in jax.tree.leaves(params[1:]))
    found = decide(seen[0], HEADS)
    others = {path for path, x in found.items() if x.view is None}
    heads = {"policy/params/hidden_4/kernel", "value/params/hidden_5/kernel"}
    assert {path for path in others if path.endswith("kernel")} == heads


def test_decay_needs_the_parameters_that_ppo_does_not_pass(monkeypatch):
    with pytest.raises(ValueError, match="weight_decay=0"):
        trained(monkeypatch, lambda learning_rate: om.muoneq(learning_rate), 64)
