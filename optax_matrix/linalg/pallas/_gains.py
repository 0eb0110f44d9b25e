"""What the kernels gain over XLA by measurement, and the rule drawn from it."""

from optax_matrix.linalg.pallas._hopper import DEPTH, TILE

# On TPUs nothing has been measured, so `kernel="auto"` takes no kernel there.
# Five steps of Newton-Schulz in bfloat16 on an NVIDIA H200 with JAX 0.11.2: median
# milliseconds by XLA and with the kernels, by (matrices, short side, long side). But
# for the last one, both wrote ``a X + Z X`` as a kernel of its own then.
MEASURED = {
    (48, 768, 768): (2.16, 1.46),
    (36, 768, 3072): (3.82, 3.13),
    (64, 1024, 1024): (5.52, 3.58),
    (48, 1024, 4096): (10.30, 8.15),
    (4, 4096, 4096): (13.10, 9.08),
}


def lower_tiles(count: int, side: int) -> int:
    """Tiles on and below the diagonals, which the processors share."""
    tiles = -(-side // TILE)
    return count * tiles * (tiles + 1) // 2


_LEAST_SIDE = min(side for _, side, _ in MEASURED)
_LEAST_TILES = min(lower_tiles(count, side) for count, side, _ in MEASURED)


def gains(count: int, short: int, long: int) -> bool:
    """Whether a stack is in the range of what was measured.

    That is: no smaller matrices, no less work, and whole tiles, so that nothing is
    padded.
    """
    whole = short % TILE == 0 and long % DEPTH == 0
    enough = lower_tiles(count, short) >= _LEAST_TILES
    return whole and enough and short >= _LEAST_SIDE
