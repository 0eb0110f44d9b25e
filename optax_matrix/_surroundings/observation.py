"""Intermediate values of a chain, reported by blocks and kept on request.

A block calls `report`. Without a request that does nothing, and the compiled program
is the same. `diagnostics.monitor` requests measures; then `on_matrices` keeps their
values in its state, one for each matrix and on the device of the matrix, also under
`owners`.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from optax_matrix._surroundings import Stacks, here, within


@dataclasses.dataclass(frozen=True)
class Measure:
    """What is computed of each stack at every step.

    Attributes:
        of: Function from the values of one stack to one of shape ``(batch, ...)``.
        needs: Names of these values: ``"direction"``, the result of the chain, or those
            that blocks report.
        steps: Steps whose values are kept, the first step being 0; None for the last.
        every: Without ``steps``, it is computed at steps 0, every, 2 every, ...
    """

    of: Callable[..., jax.Array]
    needs: tuple[str, ...]
    steps: tuple[int, ...] | None = None
    every: int = 1


class ObservedState(NamedTuple):
    """State of a chain whose values are measured.

    Attributes:
        count: Number of updates, int32 ``()``.
        values: For each measure and stack its value ``(batch, ...)``, or for a measure
            with steps ``(batch, steps, ...)``; zero before it is measured.
        inner_state: State of the chain.
    """

    count: jax.Array
    values: dict[str, dict[str, jax.Array]]
    inner_state: optax.OptState


def report(name: str, stacks: Stacks) -> None:
    """Stores a value of each stack for the measures that need it.

    Args:
        name: Name of the value.
        stacks: ``{group: (batch, ...)}``, traced outside of any nested transformation.
    """
    found = here().found
    if found is not None:
        found[name] = stacks


@contextlib.contextmanager
def in_another_frame() -> Iterator[None]:
    """A context in which blocks get rotated or projected matrices.

    Momenta that they report are ignored, since measures expect those of the weights.
    Other values, such as shares of bounded entries, are kept.
    """
    outer, inner = here().found, {}
    with within(found=None if outer is None else inner):
        yield
    if outer is not None:
        outer |= {name: x for name, x in inner.items() if name != "momentum"}


def is_observed() -> bool:
    """Whether values are collected; if not, a block need not compute them."""
    return here().found is not None


def observed(tx: optax.GradientTransformation) -> optax.GradientTransformation:
    """The chain of `on_matrices`, with `ObservedState` if there is a request."""
    measures = here().measures
    if not measures:
        return tx
    inner = optax.with_extra_args_support(tx)

    def measured(updates: Any, state: Any, params: Any, **extra_args: Any):
        new: Any
        found: dict[str, Stacks] = {}
        with within(found=found):
            new, state = inner.update(updates, state, params, **extra_args)
        found["direction"] = new
        # Values of matrices that are cut into blocks are trees, and are left out.
        return new, state, {n: x for n, x in found.items() if _is_of(x, new)}

    def values_of(found: dict[str, Stacks], name: str) -> dict[str, jax.Array]:
        measure = measures[name]
        groups = found["direction"]
        return {g: measure.of(*(found[n][g] for n in measure.needs)) for g in groups}

    def init_fn(params):
        state = inner.init(params)

        def first(params, state):
            extra = stand_ins() if (stand_ins := here().stand_ins) else {}
            extra = jax.tree.map(jnp.asarray, extra)
            found = measured(params, state, params, **extra)[2]
            can = [n for n, m in measures.items() if found.keys() >= {*m.needs}]
            return {name: values_of(found, name) for name in can}

        shapes = jax.eval_shape(first, params, state)

        def start(name, x):
            steps = measures[name].steps
            kept = () if steps is None else (len(steps),)
            return jnp.zeros((x.shape[0], *kept, *x.shape[1:]), x.dtype)

        values = {
            name: {group: start(name, x) for group, x in of_groups.items()}
            for name, of_groups in shapes.items()
        }
        return ObservedState(jnp.zeros((), jnp.int32), values, state)

    def update_fn(updates, state, params=None, **extra_args):
        new, inner_state, found = measured(
            updates, state.inner_state, params, **extra_args
        )

        def kept(name: str, old: dict[str, jax.Array]) -> dict[str, jax.Array]:
            measure = measures[name]
            cast = lambda: optax.tree.cast_like(values_of(found, name), old)
            if measure.steps is None:
                return at_every(measure.every, state.count, cast, old)
            now = jnp.asarray(measure.steps) == state.count
            put = lambda x, old: jnp.where(_beside(now, x), x[:, None], old)
            return jax.tree.map(put, cast(), old)

        values = {name: kept(name, old) for name, old in state.values.items()}
        return new, ObservedState(state.count + 1, values, inner_state)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def at_every(
    interval: int, count: jax.Array, value: Callable[[], Any], old: Any
) -> Any:
    """A new value at steps 0, interval, 2 interval, ...; in between the old one."""
    if interval == 1:
        return value()
    return jax.lax.cond(count % interval == 0, value, lambda: old)


def _beside(steps: jax.Array, x: jax.Array) -> jax.Array:
    """One entry for each step in the shape of ``x[:, None]``."""
    return steps.reshape(1, -1, *[1] * (x.ndim - 1))


def _is_of(values: Any, stacks: Stacks) -> bool:
    """Whether there is an array for each stack."""
    return all(hasattr(values.get(group), "shape") for group in stacks)
