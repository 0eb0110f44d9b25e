"""The argument type that needs optax; all others are in `optax_matrix.arguments`."""

from typing import Annotated, Any

import optax
from typing_extensions import TypeAliasType


def check_transformation(name: str, value: Any) -> None:
    """Raises unless a value is a gradient transformation."""
    if not isinstance(value, optax.GradientTransformation):
        raise ValueError(
            f"`{name}` must be a gradient transformation, got {value!r}; pass the "
            "transformation itself, such as optax.adamw(1e-3)."
        )


Transformation = TypeAliasType(
    "Transformation",
    Annotated[
        optax.GradientTransformation, check_transformation, "a gradient transformation"
    ],
)
