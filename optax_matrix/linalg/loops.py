"""Where TPUs run a loop with a small body in place of a decomposition or a product.

The TPU compiler unrolls decompositions and large products. A loop takes a fraction of
the time to compile and of the program's size.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import AxisType


def looped_on_tpu(
    loop: Callable[..., Any], whole: Callable[..., Any], *xs: jax.Array
) -> Any:
    """Apply ``loop`` to large arrays on a TPU, and on all else the same function."""
    if not all(map(can_loop, xs)):
        return whole(*xs)
    return jax.lax.platform_dependent(*xs, tpu=loop, default=whole)


def can_loop(x: jax.Array) -> bool:
    """Whether there is something to loop over, and each device has all of it.

    That is so without a mesh, and inside a ``shard_map`` over all of its axes. Under
    Auto axes types do not show it; under Explicit ones slices of a replicated array
    have another type than zeros that a loop starts from.
    """
    kinds = jax.typeof(x).sharding.mesh.axis_types
    return x.size > 0 and all(kind == AxisType.Manual for kind in kinds)
