"""Levanter, Marin: a registered `OptimizerConfig` for each recipe.

    optimizer:
      type: alice
      learning_rate: 1e-2
      rank: 128

A program imports `register` (or copies it: fifteen lines) and names its recipes:

    register(om.alice)

The fields are the recipe's keywords beside Levanter's own, with the recipe's defaults,
weight decay included. Schedules and the decay mask are Levanter's. The axes of named
arrays have names, and each linear layer says which of them it reduces:
`matrices.infer` reads that. A program that has its model at hand may read the rest by
its use, behind these names, and look at the table of all leaves::

    loss = lambda model, example: model.compute_next_token_loss(example, key=None)
    rule = om.matrices.by_use(loss, model, example)
    register(om.alice, dimension_numbers=rule)

Levanter has a ``muon`` and a ``soap`` of its own, so ours
need other names: ``register(om.soap, "om_soap")``.
"""

import dataclasses
import inspect
from typing import Any

import numpy as np
import optax
from levanter.optim.config import OptimizerConfig

import optax_matrix as om


def register(
    recipe: Any,
    name: str | None = None,
    dimension_numbers: Any = om.matrices.infer,
) -> type[OptimizerConfig]:
    """Makes a configuration of a recipe, which ``optimizer.type`` names."""
    own = dict(inspect.signature(recipe).parameters)
    for given in ("learning_rate", "weight_decay_mask", "dimension_numbers"):
        own.pop(given)

    def build(self: Any, num_train_steps: int) -> optax.GradientTransformation:
        options = {field: getattr(self, field) for field in own}
        mask = self.build_weight_decay_mask()
        options["weight_decay_mask"] = True if mask is None else mask
        options["dimension_numbers"] = dimension_numbers
        tx = lambda learning_rate: recipe(learning_rate, **options)
        # Levanter logs the learning rate of this state.
        return optax.inject_hyperparams(tx)(self.lr_scheduler(num_train_steps))

    # Draccus writes no NumPy scalars, which the defaults of signatures are.
    plain = lambda x: x.item() if isinstance(x, np.generic) else x
    fields = [(x.name, Any, plain(x.default)) for x in own.values()]
    parts: Any = {"bases": (OptimizerConfig,), "namespace": {"build": build}}
    made = dataclasses.make_dataclass(recipe.__name__, fields, frozen=True, **parts)
    return OptimizerConfig.register_subclass(name or recipe.__name__, made)
