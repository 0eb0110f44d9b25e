"""big_vision: `config.optax_name`, a name in optax, with rate and decay outside.

`big_vision.optax.make` looks a direction up by name and puts the learning rate, the
weight decay of kernels and the schedule behind it. After `register()`::

    config.optax_name = "optax_matrix.scale_by_muoneq"
    config.optax = dict(mode="rowcol")
"""

import types
from typing import Any

import optax

import optax_matrix as om


def scale_by(
    name: str, dimension_numbers: Any = None, **options: Any
) -> optax.GradientTransformation:
    """The direction of a method for matrices, and Adam's for all other leaves.

    Args:
        name: Name of a recipe that has a `scale_by_<name>`.
        dimension_numbers: Which leaves are matrices, as in every recipe.
        **options: Arguments of the recipe.
    """
    method = getattr(om, f"scale_by_{name}")
    parts = {
        "matrix": method(dimension_numbers=dimension_numbers, **options),
        "other": optax.scale_by_adam(b1=0.9, b2=0.95),
    }
    return optax.partition(parts, om.matrices.label_params(dimension_numbers))


def register() -> None:
    """Makes `optax.optax_matrix.scale_by_<name>` of every method."""
    names = [n for n in om.recipes.__all__ if n.startswith("scale_by_")]
    optax.optax_matrix = types.SimpleNamespace(
        **{n: _named(n.removeprefix("scale_by_")) for n in names}
    )


def _named(name: str):
    return lambda **options: scale_by(name, **options)
