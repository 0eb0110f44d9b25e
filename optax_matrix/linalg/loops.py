"""What TPUs and GPUs run in place of a decomposition or a large product.

The TPU compiler unrolls decompositions and large products. A loop with a small body
takes a fraction of the time to compile and of the program's size. On CUDA some
decompositions go through a batch from the host, one matrix after another; products, and
Cholesky factors, take the whole batch.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import AxisType


def looped_on_tpu(
    loop: Callable[..., Any],
    whole: Callable[..., Any],
    *xs: jax.Array,
    cuda: Callable[..., Any] | None = None,
) -> Any:
    """Apply ``loop`` to large arrays on a TPU, and on all else the same function.

    On CUDA that is ``cuda``, if given.
    """
    forms = {"tpu": loop} if all(map(can_loop, xs)) else {}
    if cuda is not None and all(x.size for x in xs):
        forms["cuda"] = cuda
    return (
        jax.lax.platform_dependent(*xs, **forms, default=whole) if forms else whole(*xs)
    )


def batched_on_cuda(
    batched: Callable[..., Any], whole: Callable[..., Any], x: jax.Array
) -> Any:
    """Apply ``batched`` on CUDA, and on all else the same function."""
    if not x.size:
        return whole(x)
    return jax.lax.platform_dependent(x, cuda=batched, default=whole)


def can_loop(x: jax.Array) -> bool:
    """Whether there is something to loop over, and each device has all of it.

    That is so without a mesh, and inside a ``shard_map`` over all of its axes. Under
    Auto axes types do not show it; under Explicit ones slices of a replicated array
    have another type than zeros that a loop starts from.
    """
    kinds = jax.typeof(x).sharding.mesh.axis_types
    return x.size > 0 and all(kind == AxisType.Manual for kind in kinds)
