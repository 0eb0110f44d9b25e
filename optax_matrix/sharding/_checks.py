"""Checks of the arguments of `owners`."""

import functools
from collections.abc import Sequence
from typing import Any, TypeVar

import jax.numpy as jnp

from optax_matrix._dtypes import is_tiny
from optax_matrix.sharding._balance import TEAMS

T = TypeVar("T")


def check_owners(
    mesh_axes: Any, wire_dtype: Any, pad_to: Any, teams: Any, pool_state: Any
) -> None:
    """Raises if an argument of `owners` is out of range."""
    _check_axes(mesh_axes)
    _check_wire_dtype(wire_dtype)
    _check_pad_to(pad_to)
    _check_teams(teams, pad_to)
    if not isinstance(pool_state, bool):
        raise ValueError(
            f"`pool_state` must be True or False, got {pool_state!r}; it says whether "
            "groups share slots of state."
        )


def _check_axes(mesh_axes: Any) -> None:
    """Raises unless an argument is the name of a mesh axis or a tuple of such names."""
    names = (mesh_axes,) if isinstance(mesh_axes, str) else mesh_axes
    wanted = isinstance(names, (tuple, list)) and len(names) > 0
    if not wanted or not all(isinstance(name, str) for name in names):
        raise ValueError(
            "`mesh_axes` must be the name of a mesh axis or a tuple of names, got "
            f"{mesh_axes!r}; for example owners(('fsdp', 'tp'))."
        )
    if len(set(names)) < len(names):
        raise ValueError(f"`mesh_axes` must not repeat an axis, got {mesh_axes!r}.")


def with_one_axis_argument(placement: type[T]) -> type[T]:
    """A class that raises, with the correct call, for axes that come one by one."""
    made = placement.__init__

    @functools.wraps(made)
    def init(self: T, *args: Any, **kwargs: Any) -> None:
        if len(args) > 1:
            names = tuple(name for name in args if isinstance(name, str))
            raise ValueError(
                "`mesh_axes` must be one name or one tuple of names, and all other "
                f"arguments keywords, got {', '.join(map(repr, args))}"
                + (f"; write owners({names!r})." if names == args else ".")
            )
        made(self, *args, **kwargs)

    placement.__init__ = init
    return placement


def _check_wire_dtype(wire_dtype: Any) -> None:
    """Raises unless an argument is None or a floating dtype with float32's range."""
    try:
        wide = wire_dtype is None or (
            jnp.finfo(wire_dtype).maxexp >= 128 and not is_tiny(wire_dtype)
        )
    except (TypeError, ValueError):
        wide = False
    if not wide:
        raise ValueError(
            "`wire_dtype` must be None, jnp.bfloat16 or a floating dtype with the "
            "range of float32, so that no gradient overflows or vanishes, got "
            f"{wire_dtype!r}."
        )


def _check_pad_to(pad_to: Any) -> None:
    """Raises unless an argument is None or a positive int."""
    if pad_to is not None and not _is_positive_int(pad_to):
        raise ValueError(
            f"`pad_to` must be a positive int or None, got {pad_to!r}; give a number "
            "that the owners of every mesh divide, such as those of the largest."
        )


def _check_teams(teams: Any, pad_to: int | None) -> None:
    """Raises unless an argument says how many owners share a matrix."""
    if not _is_positive_int(teams) or teams not in TEAMS:
        raise ValueError(
            "`teams` must be 1, 2, 4 or 8, the number of owners that share a matrix "
            f"that is left over, got {teams!r}; pass one of them, 1 for no teams."
        )
    if pad_to is not None and teams > 1:
        raise ValueError(
            f"`teams` must be 1 with `pad_to`, got {teams}: the order of matrices is "
            "then fixed and teams would have unequal shares; leave one of the two out."
        )


def _is_positive_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def check_no_teams(teams: int, inside: tuple[str, ...]) -> None:
    """Raises if teams are given although mesh axes stay inside matrices."""
    if inside and teams > 1:
        raise ValueError(
            f"`teams` must be 1 if mesh axes stay inside matrices, got {teams} and "
            f"{inside}; add {inside} to `mesh_axes`, or leave `teams` out."
        )


def check_padding(
    pad_to: int,
    paths: Sequence[str],
    view: Any,
    axes: tuple[str, ...],
    batch: tuple[str, ...],
    devices: int,
) -> None:
    """Raises unless stacks of these leaves, of one view, can be equal on every mesh."""
    if pad_to % devices:
        raise ValueError(
            f"`pad_to` must be a multiple of the {devices} owners along {axes}, so "
            f"that they have equal shares of every stack, got {pad_to}; give one that "
            "the owners of every mesh divide."
        )
    if batch and (view.batch % pad_to or len(view.batch_axes) > 1):
        raise ValueError(
            f"`pad_to` must divide the matrices of {paths[0]!r}, one axis of "
            f"{view.batch}, because {batch} shard them and padding would be in each "
            f"shard, got {pad_to}; leave that axis unsharded, or carry state over with "
            "optax_matrix.to_portable instead of `pad_to`."
        )
