"""Checks of arguments, at the factory."""

from typing import Any

import jax.numpy as jnp


def check_axes(mesh_axes: Any) -> None:
    """Raises unless an argument is the name of a mesh axis or a tuple of such names.

    Args:
        mesh_axes: The argument.

    Raises:
        ValueError: If it is anything else.
    """
    names = (mesh_axes,) if isinstance(mesh_axes, str) else mesh_axes
    wanted = isinstance(names, (tuple, list)) and len(names) > 0
    if not wanted or not all(isinstance(name, str) for name in names):
        raise ValueError(
            "`mesh_axes` must be the name of a mesh axis or a tuple of names, got "
            f"{mesh_axes!r}; for example owners(('fsdp', 'tp'))."
        )
    if len(set(names)) < len(names):
        raise ValueError(f"`mesh_axes` must not repeat an axis, got {mesh_axes!r}.")


def check_wire_dtype(wire_dtype: Any) -> None:
    """Raises unless an argument is None or a floating dtype with the range of float32.

    Args:
        wire_dtype: The argument.

    Raises:
        ValueError: If it is anything else.
    """
    try:
        wide = wire_dtype is None or jnp.finfo(wire_dtype).maxexp >= 128
    except (TypeError, ValueError):
        wide = False
    if not wide:
        raise ValueError(
            "`wire_dtype` must be None, jnp.bfloat16 or a floating dtype with the "
            "range of float32, so that no gradient overflows or vanishes, got "
            f"{wire_dtype!r}."
        )
