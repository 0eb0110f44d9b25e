"""Kernels applied leaf by leaf, on CPU matrix by matrix and in place."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax

from optax_matrix.linalg.platforms import in_turn_on_cpu

# Time of a step of `spo` in float32 on two CPU cores, medians, measured side by side:
# one matrix at a time against a whole stack 1.4 and 0.7 (48 x 128 x 128, blocks of 16
# and 64), 1.0 and 0.7 (24 x 256 x 256, blocks of 16 and 256), 0.8 (8 x 512 x 512, 256).
_MIN_SIDE = 256


def one_by_one_on_cpu(
    kernel: Callable[..., tuple], in_place: int, *trees: Any
) -> tuple[Any, ...]:
    """Applies a kernel of stacks to each leaf of a tree and what belongs to it.

    On CPU large matrices go one by one, so that what the kernel needs on the way exists
    for one matrix only, and results stand where arguments stood: there XLA schedules by
    what can run at once, and else the intermediates of all leaves live together.

    Args:
        kernel: A function of stacks and trees of arrays with the same leading axes,
            which acts on each matrix by itself and returns one result more than
            `in_place`.
        in_place: How many of the first arguments are stacks that may give their place
            in memory to as many first results, of their shapes and dtypes.
        *trees: The arguments, for every leaf of the first tree.

    Returns:
        The results, as trees like the first one.
    """
    structure = jax.tree.structure(trees[0])
    rows = zip(*map(structure.flatten_up_to, trees), strict=True)
    run = partial(in_turn_on_cpu, kernel, in_place=in_place, min_side=_MIN_SIDE)
    results = [run(*row) for row in rows]
    columns = range(in_place + 1)
    return tuple(structure.unflatten([row[i] for row in results]) for i in columns)
