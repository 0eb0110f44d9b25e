"""Checks of the arguments of `spo`."""

import numbers
from collections.abc import Mapping
from typing import Any

from optax_matrix.arguments import (
    check_callable,
    check_choice,
    check_not_negative_int,
    check_positive_int,
    check_transformation,
)

VARIANTS = ("block", "full")
ROTATED_SIDES = {"both": ("out", "in"), "in": ("in",), "out": ("out",)}
RESETS = ("moments", "none")
HOLDS = ("stored", "recovered")


def check_spo(
    inner: Any,
    *,
    variant: Any,
    block: Any,
    orthogonal: Any,
    merge_interval: Any,
    sides: Any,
    reset: Any,
    hold: Any,
    seed: Any,
) -> dict[str, Any]:
    """Checks the arguments and gives each rotated side its block.

    Args:
        inner: As in `spo`, and so are the others.
        variant: ...
        block: ...
        orthogonal: ...
        merge_interval: ...
        sides: ...
        reset: ...
        hold: ...
        seed: ...

    Returns:
        The side of the blocks by side of the matrix, those that rotate only.

    Raises:
        ValueError: If one is out of range.
    """
    check_transformation("inner", inner)
    check_choice("variant", variant, VARIANTS)
    check_choice("sides", sides, ROTATED_SIDES)
    check_choice("reset", reset, RESETS)
    check_choice("hold", hold, HOLDS)
    check_callable("orthogonal", orthogonal)
    if merge_interval is not None:
        check_positive_int("merge_interval", merge_interval)
    check_not_negative_int("seed", seed)
    rotated = ROTATED_SIDES[sides]
    if not isinstance(block, Mapping):
        block = dict.fromkeys(rotated, block)
    if set(block) != set(rotated):
        raise ValueError(
            f"`block` must name the sides that rotate, {', '.join(rotated)}, got "
            f"{sorted(block)}; pass one number for all of them, or change `sides`."
        )
    for value in block.values():
        _check_block(value, variant)
    return {side: block[side] for side in rotated}


def _check_block(block: Any, variant: str) -> None:
    is_int = isinstance(block, numbers.Integral) and not isinstance(block, bool)
    if is_int and int(block) >= 2:
        return
    if variant == "full" and isinstance(block, float) and 0 < block <= 1:
        return
    fraction = ", or a float in (0, 1] for a fraction of the side"
    raise ValueError(
        f"`block` must be an int of at least 2{fraction if variant == 'full' else ''}, "
        f"got {block!r}; a block of side 1 has nothing to train"
        + ("." if variant == "full" else ", fractions are for variant='full'.")
    )
