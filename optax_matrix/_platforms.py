"""Forms of a kernel for single platforms, and loops over the matrices of a stack.

A file opens with the mathematics, as it runs by default. The forms for other platforms
stand at its end, each with the measurement that it is there for, and `by_platform`
selects among them when a program is compiled.

Accelerators take a whole stack at once. On a CPU large matrices are faster one at a
time, since they stay in cache, and need less memory: `in_turn`. On a TPU a loop with a
small body replaces decompositions and large products, which the compiler unrolls:
`can_loop` says where such a loop may stand.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType

from optax_matrix._mesh import vary_like
from optax_matrix._thresholds import Thresholds

Form = Callable[..., Any]


def by_platform(
    default: Form,
    *xs: Any,
    cpu: Form | None = None,
    cuda: Form | None = None,
    tpu: Form | None = None,
) -> Any:
    """Apply a function to arrays in the form for the platform that compiles it.

    Platforms without a form of their own take the default, and so do arrays without
    entries, as far as the first argument shows it.
    """
    named = {"cpu": cpu, "cuda": cuda, "tpu": tpu}
    forms = {name: form for name, form in named.items() if form is not None}
    is_empty = not all(x.size for x in jax.tree.leaves(xs[:1]))
    if not forms or is_empty:
        return default(*xs)
    return jax.lax.platform_dependent(*xs, **forms, default=default)


def in_turn(kernel: Form, *, in_place: int = 0, at_a_time: int | None = None) -> Form:
    """A kernel's form that takes the matrices of stacks one after another, for a CPU.

    Each matrix then takes only the iterations that it needs and stays in cache, and
    temporaries exist for one matrix at a time. The kernel treats every matrix
    independently, and its results get the leading axes of the first stack. With
    ``at_a_time`` it gets stacks of so many matrices.

    The memory of the first ``in_place`` stacks is reused for as many results of the
    same shapes and dtypes; the kernel returns a tuple then. Such a stack should be read
    only to compute the result that replaces it, or all of it is copied for every
    matrix.
    """

    def run(*stacks: Any) -> Any:
        batch = stacks[0].shape[:-2]
        few = () if at_a_time is None else (at_a_time,)
        rounds = math.prod(batch) // math.prod(few)
        flat = lambda x: x.reshape(rounds, *few, *x.shape[len(batch) :])
        whole = lambda x: x.reshape(*batch, *x.shape[1 + len(few) :])
        stacks = jax.tree.map(flat, stacks)
        if not in_place:
            return jax.tree.map(whole, jax.lax.map(lambda xs: kernel(*xs), stacks))
        return jax.tree.map(whole, _loop(kernel, stacks[:in_place], stacks[in_place:]))

    return run


def _loop(kernel: Form, places: tuple, others: tuple) -> tuple:
    """A function of one part of each array after the other.

    Its first results replace the parts of ``places`` that they are computed from.
    """

    def one(places: tuple, part: tuple) -> tuple:
        i, *rest = part
        results = kernel(*(x[i] for x in places), *rest)
        put = lambda x, y: jax.lax.dynamic_update_index_in_dim(x, y, i, 0)
        return tuple(map(put, places, results)), results[len(places) :]

    parts = (jnp.arange(len(places[0])), *others)
    places, rest = jax.lax.scan(one, vary_like(places, others), parts)
    return (*places, *rest)


def is_large_stack(*stacks: Any, side: int | None = None) -> bool:
    """Whether stacks hold several matrices so large that `in_turn` is faster.

    The rows and columns are those of the first stack. JAX cannot loop over arrays that
    are sharded over an Explicit mesh.
    """
    *batch, m, n = stacks[0].shape
    specs = [jax.typeof(x).sharding.spec for x in jax.tree.leaves(stacks)]
    is_whole = all(axis is None for spec in specs for axis in spec)
    least = Thresholds.in_turn_side if side is None else side
    return math.prod(batch) > 1 and min(m, n) >= least and is_whole


def can_loop(*xs: jax.Array) -> bool:
    """Whether arrays have entries, and each device has all of them.

    That is so without a mesh, and inside a ``shard_map`` over all of its axes. Under
    Auto axes types do not show it; under Explicit ones slices of a replicated array
    have another type than zeros that a loop starts from.
    """
    kinds = [k for x in xs for k in jax.typeof(x).sharding.mesh.axis_types]
    return all(x.size for x in xs) and all(kind == AxisType.Manual for kind in kinds)
