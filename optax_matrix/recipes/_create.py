"""Recipes by name, for configuration files."""

import difflib
from typing import Any

import optax

from optax_matrix._arguments import Rate


def create(
    name: str, learning_rate: Rate, **options: Any
) -> optax.GradientTransformationExtraArgs:
    """The recipe of a name, for configuration files.

    ``om.create("muoneq", 3e-3, b1=0.9)`` is ``om.muoneq(3e-3, b1=0.9)``. Names are
    those of ``om.recipes.METHODS``, a dict from the groups of the gallery to their
    recipes. All options may be what JSON, YAML and TOML hold: numbers, flags, lists in
    place of tuples, and words for kernels (``polar="polar_svd"``) and dtypes
    (``mu_dtype="bfloat16"``). Objects, such as schedules and placements, are passed
    beside them. For `inject_hyperparams`, which reads the signature of a recipe, take
    ``getattr(om, name)``.

    Args:
        name: Name of a recipe.
        learning_rate: Learning rate, a number or a schedule. (YAML reads ``1e-3`` as a
            string, and ``1.0e-3`` as a number.)
        **options: The other arguments of the recipe.

    Returns:
        An optimizer of the whole tree.

    Raises:
        ValueError: If no recipe has this name; as the recipe does.
        TypeError: As the recipe does, for an argument that it does not have.

    Examples:
        >>> import json, optax_matrix as om
        >>> text = '{"name": "muoneq", "learning_rate": 0.003, "mu_dtype": "bfloat16"}'
        >>> tx = om.create(**json.loads(text))
        >>> [recipe.__name__ for recipe in om.recipes.METHODS["Low rank"]][:3]
        ['galore', 'alice', 'alice_0']
    """
    from optax_matrix.recipes import METHODS  # It imports this module.

    every = {recipe.__name__: recipe for group in METHODS.values() for recipe in group}
    if name not in every:
        near = difflib.get_close_matches(str(name).lower(), every, n=3)
        listed = near or sorted(every)
        raise ValueError(
            f"`name` must be the name of a recipe, got {name!r}; "
            f"{'did you mean' if near else 'take one of'} {_listed(listed)}"
            f"{'?' if near else '.'}"
        )
    return every[name](learning_rate, **options)


def _listed(names: list[str]) -> str:
    *first, last = map(repr, names)
    return f"{', '.join(first)} or {last}" if first else last
