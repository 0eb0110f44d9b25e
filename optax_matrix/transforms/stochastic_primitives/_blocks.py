"""The blocks of `spo`: which sides of a matrix rotate, and the size of their blocks."""

import numbers
from collections.abc import Mapping
from typing import Any, Literal

Variant = Literal["block", "full"]
RotatedSides = Literal["both", "in", "out"]
Reset = Literal["moments", "none"]
Block = int | float | Mapping[str, int | float]

_ROTATED: dict[RotatedSides, tuple[str, ...]] = {
    "both": ("out", "in"),
    "in": ("in",),
    "out": ("out",),
}


def rotated_blocks(
    block: Block, sides: RotatedSides, variant: Variant
) -> dict[str, int | float]:
    """The block size of each side that rotates.

    Args:
        block: Size of the blocks, as in `spo`.
        sides: Sides that rotate, as in `spo`.
        variant: Arrangement of the blocks, as in `spo`.

    Returns:
        A dict from each side of the matrix that rotates to the size of its blocks.

    Raises:
        ValueError: If ``block`` is out of range, or names other sides.
    """
    rotated = _ROTATED[sides]
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


def relative_size(block: Any) -> float:
    """Side of the largest block, relative to the paper's largest (256 or 0.5).

    Args:
        block: Size of the blocks, as in `spo`.

    Returns:
        A number; 1 for what `spo` refuses.
    """
    sides = block.values() if isinstance(block, Mapping) else [block]
    numbers = [b for b in sides if isinstance(b, int | float)]
    sizes = [2 * b if isinstance(b, float) else b / 256 for b in numbers]
    return max(sizes, default=1.0)


def _check_block(block: Any, variant: str) -> None:
    is_int = isinstance(block, numbers.Integral) and not isinstance(block, bool)
    if is_int and int(block) >= 2:
        return
    if variant == "full" and isinstance(block, float) and 0 < block <= 1:
        return
    fraction = ", or a float in (0, 1] for a fraction of the side"
    raise ValueError(
        f"`block` must be an int of at least 2{fraction if variant == 'full' else ''}, "
        f"got {block!r}; a block of size 1 has nothing to train"
        + ("." if variant == "full" else ", fractions are for variant='full'.")
    )
