"""EasyDeL: the registry of eformer, and the rules that place the state.

Nothing stands in for EasyDeL; `make test-frameworks` trains with its trainer.
"""

import jax
import jax.numpy as jnp
import pytest
from clients._training import assert_close, train
from flax import nnx
from jax.sharding import AxisType, PartitionSpec as P

import optax_matrix as om

pytest.importorskip("easydel")
from easydel.infra.base_module import EasyDeLBaseModule
from eformer.optimizers import OptimizerFactory, SchedulerConfig

from optax_matrix.adapters import easydel as adapter

# eformer meets deprecations of JAX in its own code.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
PARAMS = {"up": {"kernel": jnp.ones((8, 16))}, "norm": {"kernel": jnp.ones(16)}}


@pytest.fixture(scope="module", autouse=True)
def _registered():
    adapter.register("alice")


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


def test_the_rule_of_a_model_reaches_the_factory():
    rule = om.matrices.by_path(exclude="kernel")
    adapter.register("muoneq", dimension_numbers=rule)
    rate = SchedulerConfig(learning_rate=0.01)
    tx = OptimizerFactory.create("muoneq", rate, clip_grad=None)[0]
    shapes = [x.shape for x in jax.tree.leaves(jax.eval_shape(tx.init, PARAMS))]
    assert (1, 16, 8) not in shapes


class Net(nnx.Module):
    config = None

    def __init__(self):
        self.up = nnx.Linear(8, 16, rngs=nnx.Rngs(0))

    def _get_mesh(self, _):
        return jax.make_mesh((4, 2), ("fsdp", "tp"), axis_types=(AxisType.Auto,) * 2)


def test_stacks_have_rules_in_front():
    given = ((".*kernel", P("fsdp", "tp")), (".*", P()))
    created(rank=4)
    rules = EasyDeLBaseModule._get_partition_rules(Net(), given)
    assert rules[-2:] == EasyDeLBaseModule._get_partition_rules(Net(), given)[-2:]
    mine = dict(rules[:-2])
    assert all("@" in pattern for pattern in mine)
    assert any("fsdp" in spec for spec in mine.values())
