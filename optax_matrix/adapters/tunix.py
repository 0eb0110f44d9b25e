"""Tunix: names for `optimizer_config.opt_type` of its command line.

`PeftTrainer(model, tx, config)` takes our optimizers as they are. The model tells which
axes are inputs and outputs, of LoRA's factors of attention, too; `x` is what the
trainer's `gen_model_input_fn` makes of a batch::

    rule = om.matrices.by_use(lambda model, x: model(**x, cache=None), model, x)
    tx = om.muoneq(3e-3, dimension_numbers=rule)

The command line
looks `opt_type` up in optax, and wraps what it finds in `optax.inject_hyperparams`. A
program that calls ``register("alice")`` before `tunix.cli.peft_main` finds ours::

    optimizer_config.opt_type=alice optimizer_config.learning_rate=3e-3
    optimizer_config.rank=128 optimizer_config.side=short

`optax.inject_hyperparams` makes every number an array. Ranks, intervals and block sizes
decide the shapes of the state, so for our recipes, and for nothing else, it becomes
`om.inject_hyperparams`, in which they stay numbers. It makes the optimizer without the
model: a program that has the rule calls ``register("alice", dimension_numbers=rule)``.
"""

import functools
from typing import Any

import optax

import optax_matrix as om

_theirs = optax.inject_hyperparams


def register(*names: str, dimension_numbers: Any = None) -> None:
    """Adds recipes to the names that the command line knows.

    Args:
        *names: Names of recipes. `"muon"` is free, too: optax has it in `contrib` only.
        dimension_numbers: What `matrices.by_use` read from the model that they will
            train; None lets names and shapes decide.

    Raises:
        ValueError: If optax has an optimizer of that name.
    """
    for name in names:
        if hasattr(optax, name) and getattr(optax, name) is not getattr(om, name, None):
            raise ValueError(f"`names` must be new to optax, got {name!r}.")
        setattr(optax, name, getattr(om, name))
    inject = functools.partial(_inject_hyperparams, dimension_numbers=dimension_numbers)
    optax.inject_hyperparams = inject


def _inject_hyperparams(
    inner_factory, static_args=(), hyperparam_dtype=None, *, dimension_numbers=None
):
    """`optax.inject_hyperparams`, with that of `optax_matrix` for its recipes."""
    name = getattr(inner_factory, "__name__", None)
    if name in om.recipes.__all__ and inner_factory is getattr(om, name):
        names = [static_args] if isinstance(static_args, str) else static_args
        made = om.inject_hyperparams(inner_factory, names)  # Its numbers are float32.
        if dimension_numbers is None:
            return made
        return functools.partial(made, dimension_numbers=dimension_numbers)
    return _theirs(inner_factory, static_args, hyperparam_dtype)
