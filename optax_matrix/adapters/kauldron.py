"""Kauldron: a named chain in a configuration.

    with konfig.imports():
        from optax_matrix.adapters import kauldron as adapter
    cfg.schedules = {"learning_rate": optax.cosine_decay_schedule(3e-3, 1000)}
    cfg.optimizer = adapter.optimizer("muoneq", cfg.ref.schedules["learning_rate"])

Sweeps and the command line then reach `cfg.optimizer.name` and the other arguments.
"""

from typing import Any

import optax

import optax_matrix as om


def optimizer(
    name: str, learning_rate: Any, clip: float = 1.0, **options: Any
) -> optax.GradientTransformation:
    """A recipe behind a clip, its state a dictionary as `kd.optim.named_chain` has it.

    Args:
        name: Name of a recipe.
        learning_rate: A number or a schedule.
        clip: Bound of the norm of the whole gradient.
        **options: Arguments of the recipe.
    """
    return optax.named_chain(
        ("clip", optax.clip_by_global_norm(clip)),
        ("step", getattr(om, name)(learning_rate, **options)),
    )
