"""Tunix: names for `optimizer_config.opt_type` of its command line.

`PeftTrainer(model, tx, config)` takes our optimizers as they are. The command line
looks `opt_type` up in optax, and wraps what it finds in `optax.inject_hyperparams`. A
program that calls ``register("alice")`` before `tunix.cli.peft_main` finds ours::

    optimizer_config.opt_type=alice optimizer_config.learning_rate=3e-3
    optimizer_config.rank=128 optimizer_config.side=short

`optax.inject_hyperparams` makes every number an array. Ranks, intervals and block sizes
decide the shapes of the state, so for our recipes, and for nothing else, it becomes
`om.inject_hyperparams`, in which they stay numbers.
"""

import optax

import optax_matrix as om

_theirs = optax.inject_hyperparams


def register(*names: str) -> None:
    """Adds recipes to the names that the command line knows.

    Args:
        *names: Names of recipes. `"muon"` is free, too: optax has it in `contrib` only.

    Raises:
        ValueError: If optax has an optimizer of that name.
    """
    for name in names:
        if hasattr(optax, name) and getattr(optax, name) is not getattr(om, name, None):
            raise ValueError(f"`names` must be new to optax, got {name!r}.")
        setattr(optax, name, getattr(om, name))
    optax.inject_hyperparams = _inject_hyperparams


def _inject_hyperparams(inner_factory, static_args=(), hyperparam_dtype=None):
    """`optax.inject_hyperparams`, with that of `optax_matrix` for its recipes."""
    name = getattr(inner_factory, "__name__", None)
    if name in om.recipes.__all__ and inner_factory is getattr(om, name):
        names = [static_args] if isinstance(static_args, str) else static_args
        return om.inject_hyperparams(inner_factory, names)  # Its numbers are float32.
    return _theirs(inner_factory, static_args, hyperparam_dtype)
