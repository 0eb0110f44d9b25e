"""A model and its loss, or its training step, as functions of trees of arrays.

A *carry* is what a run hands from step to step: parameters, the model's other arrays
(an NNX model's statistics and counters), and the state of the optimizer. Inside of a
program the model is made from it, so that a step may change its model in place.
"""

import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import optax

from optax_matrix._arguments import check_optimizer
from optax_matrix.matrices.use.models import is_nnx, split

Carry = tuple[Any, Any, Any]


class Training(NamedTuple):
    """How one model is trained.

    Attributes:
        start: The carry of a rate before its first step, from both parts of a model.
        advance: The carry after a step at a rate, and the loss before it.
        model: The model of a carry.
    """

    start: Callable[[Any, Any, Any], Carry]
    advance: Callable[[Any, Carry, Any], tuple[Carry, Any]]
    model: Callable[[Carry], Any]


def training(make: Any, loss: Any, step: Any, model: Any) -> Training:
    """The functions of a model, from its loss or from a step of the user's."""
    _, _, joined = split(model)

    def optimizer(rate: Any) -> Any:
        tx = make(rate)
        check_optimizer("make(rate)", tx)
        return tx

    if is_nnx(model) and step is not None:
        start, advance = _of_nnx(optimizer, step, joined)
    else:

        def start(rate: Any, learned: Any, rest: Any) -> Carry:
            is_linen = isinstance(learned, Mapping) and {"params"} < {*learned}
            own = learned["params"] if is_linen and step is not None else learned
            return learned, rest, optimizer(rate).init(own)

        of = _of_loss if step is None else _of_step
        advance = of(optimizer, loss if step is None else step, joined)
    return Training(start, advance, lambda carry: joined(*carry[:2]))


def _of_loss(optimizer: Any, loss: Any, joined: Any) -> Any:
    def advance(rate: Any, carry: Carry, batch: Any) -> tuple[Carry, Any]:
        learned, rest, state = carry

        def value_of(learned: Any) -> tuple[Any, Any]:
            # Copied, because NNX lets no one change variables of an outer trace.
            model = joined(learned, jax.tree.map(lambda x: x, rest))
            value = loss(model, batch)
            return value, split(model)[1] if is_nnx(model) else rest

        (value, rest), grads = jax.value_and_grad(value_of, has_aux=True)(learned)
        updates, state = optimizer(rate).update(grads, state, learned)
        return (optax.apply_updates(learned, updates), rest, state), value

    return advance


def _of_step(optimizer: Any, step: Any, joined: Any) -> Any:
    def advance(rate: Any, carry: Carry, batch: Any) -> tuple[Carry, Any]:
        *parts, state = carry
        out = step(optimizer(rate), joined(*parts), state, batch)
        if not isinstance(out, tuple) or len(out) != 3:
            raise ValueError(
                "`step(tx, params, state, batch)` must return (params, state, loss), "
                f"got {type(out).__name__}; return the new parameters. Only a step "
                "of an NNX model may change its model in place."
            )
        model, state, value = out
        return (*split(model)[:2], state), value

    return advance


def _of_nnx(optimizer: Any, step: Any, joined: Any) -> Any:
    nnx = sys.modules["flax.nnx"]

    def made(rate: Any, parts: Any) -> tuple[Any, Any]:
        model = joined(*parts)
        return model, nnx.Optimizer(model, optimizer(rate), wrt=nnx.Param)

    def start(rate: Any, learned: Any, rest: Any) -> Carry:
        return learned, rest, nnx.state(made(rate, (learned, rest))[1])

    def advance(rate: Any, carry: Carry, batch: Any) -> tuple[Carry, Any]:
        *parts, state = carry
        model, inner = made(rate, parts)
        nnx.update(inner, state)
        value = step(model, inner, batch)
        return (*split(model)[:2], nnx.state(inner)), value

    return start, advance
