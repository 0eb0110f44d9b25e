"""Tunix: names for `optimizer_config.opt_type` of its command line.

`PeftTrainer(model, tx, config)` takes our optimizers as they are. The command line
looks `opt_type` up in optax and wraps what it finds in `optax.inject_hyperparams`.
After `register("muoneq")` it finds ours::

    optimizer_config.opt_type=muoneq optimizer_config.learning_rate=3e-3
"""

import optax

import optax_matrix as om


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
