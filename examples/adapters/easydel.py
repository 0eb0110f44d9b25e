"""EasyDeL: recipes as `optimizer` of its `TrainingArguments`.

    register("muoneq", mesh_axes=("fsdp", "tp"))
    TrainingArguments(optimizer="muoneq", learning_rate=3e-3, ...)

Arguments of a recipe go into `extra_optimizer_kwargs`. `weight_decay` is that of the
training arguments, which EasyDeL applies after the optimizer to all parameters.

EasyDeL places state by rules over the paths of parameters, and replicates what no path
matches. `register` puts a rule for stacks of matrices in front of those of every model.
State of the other leaves has the paths of the parameters, so it matches as it is.
"""

import dataclasses
import inspect
from typing import Any

import optax
from easydel.infra.base_module import EasyDeLBaseModule
from eformer.optimizers import register_optimizer
from eformer.optimizers._base import OptimizerBuilder
from jax.sharding import PartitionSpec

import optax_matrix as om

_theirs = EasyDeLBaseModule._get_partition_rules


def register(*names: str, mesh_axes: str | tuple[str, ...] = "fsdp") -> None:
    """Adds recipes to EasyDeL's optimizers.

    Args:
        *names: Names of recipes, such as `"muoneq"`; `"muon"` is EasyDeL's own.
        mesh_axes: Mesh axes that share the rows of every stack of matrices. Arrays that
            they do not divide are replicated.
    """
    for name in names:
        recipe = getattr(om, name)
        config = dataclasses.make_dataclass(f"{name}_config", _fields(recipe))
        namespace = {"build": _build(recipe), "__annotations__": {"config": config}}
        builder = dataclasses.dataclass(type(name, (OptimizerBuilder,), namespace))
        register_optimizer(name)(builder)
    # Stacks have the checksum of their paths in their names.
    stacks = (r"/\d+x\d+[^/]*@[0-9a-f]{8}", PartitionSpec(None, mesh_axes))

    def rules(self: Any, partition_rules: Any) -> Any:
        return (stacks, *_theirs(self, partition_rules))

    EasyDeLBaseModule._get_partition_rules = rules


def _fields(recipe: Any) -> list[tuple[str, Any, Any]]:
    """The keyword arguments of a recipe, which its configuration consists of."""
    found = list(inspect.signature(recipe).parameters.values())[1:]
    default = lambda p: 0.0 if p.name == "weight_decay" else p.default
    return [(p.name, Any, dataclasses.field(default=default(p))) for p in found]


def _build(recipe: Any) -> Any:
    def build(self: Any, scheduler: optax.Schedule) -> optax.GradientTransformation:
        names = [field.name for field in dataclasses.fields(self.config)]
        return recipe(scheduler, **{n: getattr(self.config, n) for n in names})

    return build
