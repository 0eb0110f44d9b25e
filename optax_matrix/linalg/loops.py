"""Where TPUs run a loop with a small body in place of a decomposition or a product.

The TPU compiler unrolls decompositions and large products. A loop takes a fraction of
the time to compile and of the program's size.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import AxisType


def looped_on_tpu(
    loop: Callable[..., Any], whole: Callable[..., Any], *xs: jax.Array, large: bool
) -> Any:
    """Apply a function in one of two forms.

    Args:
        loop: The form for large arrays on a TPU.
        whole: The form for all else.
        *xs: The arguments.
        large: Whether they are large enough for the loop.

    Returns:
        The value of the function.
    """
    if not large or not all(map(_can_loop, xs)):
        return whole(*xs)
    return jax.lax.platform_dependent(*xs, tpu=loop, default=whole)


def _can_loop(x: jax.Array) -> bool:
    """Whether there is something to loop over, and each device has all of it.

    Under Auto axes it is not known, as types do not show them. Under Explicit axes a
    loop can only be on the mesh of the context.
    """
    sharding = jax.typeof(x).sharding
    mesh = sharding.mesh
    here = mesh.empty or mesh == jax.sharding.get_abstract_mesh()
    axes = zip(mesh.axis_names, mesh.axis_types, strict=True)
    unknown = any(kind == AxisType.Auto and mesh.shape[a] > 1 for a, kind in axes)
    whole = all(axis is None for axis in sharding.spec)
    return x.size > 0 and here and whole and not unknown
