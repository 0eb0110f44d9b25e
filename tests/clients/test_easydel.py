"""EasyDeL: the registry of eformer, and the rules that place the state.

Nothing stands in for EasyDeL; `make test-frameworks` trains with its trainer.
"""

import re

import jax
import jax.numpy as jnp
import pytest
from clients._training import assert_close, train

import optax_matrix as om

pytest.importorskip("easydel")
from easydel.infra.base_module import EasyDeLBaseModule
from eformer.optimizers import OptimizerFactory, SchedulerConfig

from examples.adapters import easydel as adapter

PARAMS = {"up": {"kernel": jnp.ones((8, 16))}, "norm": {"kernel": jnp.ones(16)}}


@pytest.fixture(scope="module", autouse=True)
def _registered():
    adapter.register("alice", mesh_axes=("fsdp", "tp"))


def loss(params):
    return jnp.sum(jnp.sin(params["up"]["kernel"] * params["norm"]["kernel"]))


def created(**options):
    rate = SchedulerConfig(learning_rate=0.01)
    return OptimizerFactory.create("alice", rate, clip_grad=None, **options)[0]


def test_the_factory_gives_the_recipe():
    tx = created(rank=4, side="in", weight_decay=0.1)
    got, _ = train(tx, PARAMS, loss)
    want, _ = train(om.alice(0.01, rank=4, side="in", weight_decay=0.1), PARAMS, loss)
    # EasyDeL's decay reaches all leaves, the recipe's matrices only.
    assert_close(got["up"], want["up"])


def test_stacks_match_the_first_rule_and_other_leaves_do_not():
    rules = EasyDeLBaseModule._get_partition_rules(None, ((".*", None),))
    state = jax.eval_shape(created(rank=4).init, PARAMS)
    paths = [
        jax.tree_util.keystr(keys, simple=True, separator="/")
        for keys, _ in jax.tree.leaves_with_path(state)
    ]
    found = {path for path in paths if re.search(rules[0][0], path)}
    assert found == {path for path in paths if "@" in path} != set()
