"""Argument types that need trees; all others are in `optax_matrix._arguments`."""

from typing import Annotated, Any

import jax
import jax.numpy as jnp
import optax
from typing_extensions import TypeAliasType

from optax_matrix._arguments import is_function
from optax_matrix._dtypes import is_tiny


def check_transformation(name: str, value: Any) -> None:
    """Raises unless a value is a gradient transformation."""
    if not isinstance(value, optax.GradientTransformation):
        raise ValueError(
            f"`{name}` must be a gradient transformation, got {value!r}; pass the "
            "transformation itself, such as optax.adamw(1e-3)."
        )


def zeros_of_state(params: Any, dtype: Any = None) -> Any:
    """Zeros like parameters in a dtype, or in theirs if that has 16 bits or more."""

    def zeros(leaf: Any) -> jax.Array:
        made = jnp.zeros_like(leaf, dtype)
        if is_tiny(made.dtype):
            raise ValueError(
                f"`params` must have 16 bits or more, got {made.dtype}, where moments "
                "round to zero; train in bfloat16 or float32, or give the dtype of "
                "the moments."
            )
        return made

    return jax.tree.map(zeros, params)


def check_mask(name: str, value: Any) -> None:
    """Raises unless a value is a function, or a tree of True and False."""
    if is_function(value):
        return
    wrong = [leaf for leaf in jax.tree.leaves(value) if not _is_flag(leaf)]
    if wrong:
        raise ValueError(
            f"`{name}` must be a tree of True and False like the parameters, or a "
            f"function that makes one of them, got {wrong[0]!r} in it; for all but "
            "vectors pass om.matrices.all_but_vectors."
        )


def check_fits(name: str, mask: Any, params: Any) -> None:
    """Raises unless a mask has the structure of the parameters, or a prefix of it."""
    try:
        jax.tree.map(lambda *_: None, mask, params)
    except ValueError:
        paths = [
            {jax.tree_util.keystr(keys) for keys, _ in jax.tree.leaves_with_path(tree)}
            for tree in (mask, params)
        ]
        raise ValueError(
            f"`{name}` must be a tree of True and False like the parameters, which are "
            f"{_listed(paths[1])}, got one of {_listed(paths[0])}; pass a function, "
            "such as om.matrices.all_but_vectors."
        ) from None


def _listed(paths: set[str]) -> str:
    more = f" and {len(paths) - 5} more" if len(paths) > 5 else ""
    return ", ".join(sorted(paths)[:5]) + more


def _is_flag(leaf: Any) -> bool:
    is_scalar = getattr(leaf, "shape", None) == () and leaf.dtype == jnp.bool_
    return isinstance(leaf, bool) or is_scalar


Mask = TypeAliasType("Mask", Annotated[Any, check_mask, "a mask"])
Transformation = TypeAliasType(
    "Transformation",
    Annotated[
        optax.GradientTransformation, check_transformation, "a gradient transformation"
    ],
)
