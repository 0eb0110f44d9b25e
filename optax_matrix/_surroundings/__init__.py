"""What is known about the stacks of a block besides their values.

A block transforms ``{name: (batch, m, n)}`` and has no code for meshes or observers.
Its caller may know more, and declares it by `within` while the step is traced. All of
that is in `Surroundings`, and nothing else reaches a block in this way:

* `joining.jointly` computes stacks of one shape as one, where a `limit` is given;
* `kernels.on_real_matrices` leaves out matrices that are not `real`, and computes what
  is `shared` on several devices;
* `observation.report` stores a value for the measures in use, in `found`;
* `keeping.kept` lets matrices keep their state, those of `keeps`;
* `peaks.peak_of` tells the largest entries of gradients, of `peaks`;
* `worked_sides.note_sides` records which sides a block works on, in `sides`;
* `layouts.identities_of` tells which matrices they are, and `layouts.of_layout`
  evaluates an argument that is a function of the `layout`;
* `stand_ins` are extra arguments, where `observation.observed` tries a block;
* `kinds` says what the leaves of the tree are, to what updates other leaves.

Without surroundings, none of them changes the program.
"""

import contextlib
import contextvars
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

Stacks = Mapping[str, Any]
Limit = Callable[[int, int], int]
Shared = Callable[[Callable, jax.Array], jax.Array | None]


@dataclasses.dataclass(frozen=True)
class Surroundings:
    """What is known where a step runs; stacks by name.

    Attributes:
        limit: Function from rows and columns to the largest number of matrices in a
            stack, if all arrays are whole on this device; None if they may not be.
        alone: Whether this device has all matrices, without padding.
        real: Booleans ``(batch,)`` for each stack with padding.
        shared: ``f(kernel, stack)`` for each stack whose work devices share: the
            kernel's value, or None if the kernel cannot be shared.
        measures: An `observation.Measure` by name for each that was asked for.
        found: What blocks report, if it is collected.
        keeps: Booleans ``(batch,)`` for each stack, one mapping for each reason:
            matrices whose state does not change.
        kept: Pairs of new and old arrays that satisfy this already, if collected.
        peaks: Stacks of gradients, each with the largest entries ``(batch,)`` of its
            matrices.
        sides: The `worked_sides.WorkedSides` of the state, if it has them.
        layout: The `stacks.Layout` of the matrices that this device has.
        stand_ins: Function to extra arguments of `update` by name, with which `init`
            tries a block; None where there are none.
        kinds: The `decisions.Kinds` of a tree whose leaves are updated; None elsewhere.
    """

    limit: Limit | None = None
    alone: bool = False
    real: Mapping[str, jax.Array] = dataclasses.field(default_factory=dict)
    shared: Mapping[str, Shared] = dataclasses.field(default_factory=dict)
    measures: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    found: dict[str, Stacks] | None = None
    keeps: Sequence[Stacks] = ()
    kept: list[tuple[Any, Any]] | None = None
    peaks: Sequence[tuple[Any, Any]] = ()
    sides: Any = None
    layout: Any = None
    stand_ins: Callable[[], Mapping[str, Stacks]] | None = None
    kinds: Any = None


# A context variable, since blocks are optax transformations: a step calls them through
# other transformations, and can pass nothing but arrays through those.
_here = contextvars.ContextVar("surroundings", default=Surroundings())  # noqa: B039
here = _here.get


@contextlib.contextmanager
def within(**known: Any) -> Iterator[None]:
    """Changes some of the `Surroundings` of what runs inside."""
    token = _here.set(dataclasses.replace(here(), **known))
    try:
        yield
    finally:
        _here.reset(token)
