"""EasyDeL: recipes as `optimizer` of its `TrainingArguments`.

    register("muoneq")
    TrainingArguments(optimizer="muoneq", learning_rate=3e-3, ...)

The model tells what its kernels are::

    with model.mesh:
        rule = om.matrices.by_use(model, input_ids)
    register("muoneq", dimension_numbers=rule)

Arguments of a recipe go into `extra_optimizer_kwargs`. `weight_decay` is that of the
training arguments, which EasyDeL applies after the optimizer to all parameters.

EasyDeL places state by rules over the paths of parameters, and replicates what no path
matches. `register` puts rules for stacks of matrices in front of those of every model.
State of the other leaves has the paths of the parameters, so it matches as it is.
"""

import dataclasses
import inspect
from typing import Any

import jax
import optax
from easydel.infra.base_module import EasyDeLBaseModule
from eformer.escale import get_corrected_named_sharding, match_partition_rules
from eformer.optimizers import register_optimizer
from eformer.optimizers._base import OptimizerBuilder
from flax import nnx

import optax_matrix as om

_theirs = EasyDeLBaseModule._get_partition_rules
_built: list[optax.GradientTransformation] = []  # The last one: EasyDeL trains with it.


def register(*names: str, dimension_numbers: Any = None) -> None:
    """Adds recipes to EasyDeL's optimizers.

    Args:
        *names: Names of recipes, such as `"muoneq"`; `"muon"` is EasyDeL's own.
        dimension_numbers: What `matrices.by_use` read from the model that they will
            train; None lets names and shapes decide.
    """
    for name in names:
        recipe = getattr(om, name)
        fields = _fields(recipe, dimension_numbers=dimension_numbers)
        config = dataclasses.make_dataclass(f"{name}_config", fields)
        namespace = {"build": _build(recipe), "__annotations__": {"config": config}}
        builder = dataclasses.dataclass(type(name, (OptimizerBuilder,), namespace))
        register_optimizer(name)(builder)
    EasyDeLBaseModule._get_partition_rules = _rules


def _rules(self: Any, partition_rules: Any) -> Any:
    """Rules of the stacks of the optimizer that was built last, then EasyDeL's."""
    theirs = _theirs(self, partition_rules)
    if not _built:
        return theirs
    params = nnx.state(self, nnx.Param)
    with self._get_mesh(None):
        fit = lambda x, spec: get_corrected_named_sharding(tuple(x.shape), spec)
        specs = jax.tree.map(fit, params, match_partition_rules(theirs, params))
    found = om.sharding.state_rules(_built[-1], params, specs)
    # Stacks have the checksum of their matrices in their names.
    return (*(rule for rule in found if "@" in rule[0]), *theirs)


def _fields(recipe: Any, **given: Any) -> list[tuple[str, Any, Any]]:
    """The keyword arguments of a recipe, which its configuration consists of."""
    found = list(inspect.signature(recipe).parameters.values())[1:]
    given = {"weight_decay": 0.0, **given}
    default = lambda p: given.get(p.name, p.default)
    return [(p.name, Any, dataclasses.field(default=default(p))) for p in found]


def _build(recipe: Any) -> Any:
    def build(self: Any, scheduler: optax.Schedule) -> optax.GradientTransformation:
        names = [field.name for field in dataclasses.fields(self.config)]
        tx = recipe(scheduler, **{n: getattr(self.config, n) for n in names})
        _built[:] = [tx]
        return tx

    return build
