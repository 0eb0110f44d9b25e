"""Runs at several rates and seeds, in one program or one after the other.

Three ways to train, tried in this order:

* *together*: rates and seeds are two axes of `jax.vmap` over the step;
* *one by one*: the compiled step takes the rate as an argument;
* *apart*: each rate has a compiled step, for functions that refuse a traced rate.
"""

import math
import warnings
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from optax_matrix.matrices.use.models import split
from optax_matrix.tuning._progress import Show
from optax_matrix.tuning._trainings import Training

LOOKS = 20  # At the losses, in each run.
Found = dict[float, tuple[np.ndarray, np.ndarray]]


class Runs:
    """One model, to be trained at any rates; `sweep` explains the arguments."""

    def __init__(
        self, way: Training, models: Sequence[Any], batches: list, evaluate: Any
    ):
        self._way, self._batches, self._evaluate = way, batches, evaluate
        self._parts = [split(model)[:2] for model in models]
        self.steps, self.kind = len(batches[0]), ""
        self._programs: Any = None
        self.last = max(1, self.steps // 10)

    def train(self, rates: Sequence[float], memory: Any, show: Show) -> Found:
        """Losses ``(seeds, steps)``, and what is minimized ``(seeds,)``, by rate.

        The first loss that is not finite and all after it are NaN; what is minimized is
        then infinite.
        """
        self.kind = self.kind or self._choose(rates, memory)
        self._programs = self._programs or self._compiled()
        together, seeds = self.kind == "together", [*range(len(self._parts))]
        for rate in rates:
            show(rate, 0, self.steps * (1 if together else len(seeds)), math.inf)
        found = {}
        for some in [rates] if together else [[rate] for rate in rates]:
            groups = [seeds] if together else [[seed] for seed in seeds]
            runs = [self._run(some, group, show) for group in groups]
            both = (np.concatenate(x, 1) for x in zip(*runs, strict=True))
            found |= zip(some, zip(*both, strict=True), strict=True)
        return found

    def _run(self, rates: Sequence[float], seeds: list[int], show: Show) -> tuple:
        """Losses ``(rates, seeds, steps)``, and what is minimized, of some runs.

        They end early if all rates have diverged at one of the `LOOKS`.
        """
        start, step, value = self._programs
        many, shape = len(self._batches), (len(rates), len(seeds))
        own = [self._batches[seed % many] for seed in seeds][:many]
        carry, found = start(tuple(rates), [self._parts[seed] for seed in seeds]), []
        losses = np.full((*shape, self.steps), np.nan)
        before = seeds[0] * self.steps
        total = self.steps * (len(self._parts) // len(seeds))
        for done in range(1, self.steps + 1):
            batch = [batches[done - 1] for batches in own]
            carry, loss = step(tuple(rates), carry, batch)
            found.append(loss)
            if done % -(-self.steps // LOOKS) == 0 or done == self.steps:
                found = jax.device_get(found)
                losses[..., :done] = np.stack(found, -1).reshape(*shape, done)
                losses[np.logical_or.accumulate(~np.isfinite(losses), -1)] = np.nan
                now = losses[..., done - 1]
                is_over = np.isnan(now).any(1).all()
                passed = before + (self.steps if is_over else done)
                for rate, each in zip(rates, now, strict=True):
                    show(rate, passed, total, float(each.mean()))
                if is_over:
                    break
        finals = losses[..., -self.last :].mean(-1)
        if self._evaluate is not None:
            values = np.reshape(jax.device_get(value(carry)), shape)
            finals = np.where(np.isnan(finals), np.nan, values)
        return losses, np.where(np.isfinite(finals), finals, np.inf)

    def _compiled(self) -> tuple:
        """The first carry, a step, and the validation loss: of one run, or of all."""
        start, advance = self._start, self._way.advance
        values = lambda carry: self._evaluate(self._way.model(carry))
        if self.kind == "together":
            axis = 0 if len(self._batches) > 1 else None
            every = jax.vmap(jax.vmap(start, (None, 0)), (0, None))
            step = jax.vmap(jax.vmap(advance, (None, 0, axis)), (0, 0, None))
            values = jax.vmap(jax.vmap(values))
            # Rates stay weakly typed in a stack.
            first = lambda rates, parts: every(jnp.stack(rates), _stacked(parts))
            steps = lambda rates, carry, batch: step(
                jnp.stack(rates), carry, batch[0] if axis is None else _stacked(batch)
            )
        else:
            first = lambda rates, parts: start(rates[0], parts[0])
            steps = lambda rates, carry, batch: advance(rates[0], carry, batch[0])
        static = (0,) if self.kind == "apart" else ()
        return (
            jax.jit(first, static_argnums=static),
            jax.jit(steps, static_argnums=static, donate_argnums=1),
            jax.jit(values),
        )

    def _start(self, rate: Any, parts: Any) -> Any:
        """The carry, copied, because steps reuse its memory."""
        return jax.tree.map(jnp.copy, self._way.start(rate, *parts))

    def _choose(self, rates: Sequence[float], memory: Any) -> str:
        """The way to train; raises if one step of one run cannot be traced."""
        kind, (carry, value) = self._traced(rates[0])
        _check_scalar("step", value)  # JAX itself refuses other losses.
        if self._evaluate is not None:
            of_carry = lambda carry: self._evaluate(self._way.model(carry))
            _check_scalar("evaluate", jax.eval_shape(of_carry, carry))
        size = sum(
            math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(carry)
        )
        is_small = len(rates) * len(self._parts) * size <= memory
        return kind or ("together" if is_small else "one by one")

    def _traced(self, rate: float) -> tuple[str, Any]:
        """The shapes after a step, after "apart" if the rate could not be traced."""
        parts, batch = self._parts[0], self._batches[0][0]
        step = lambda rate: self._way.advance(rate, self._start(rate, parts), batch)
        try:
            return "", jax.eval_shape(step, rate)
        except Exception as error:
            if type(error).__name__ == "TraceContextError":  # Of NNX.
                raise ValueError(
                    "The loss or the step changes a model in place that it was not "
                    "given; let it use the model among its arguments."
                ) from error
            found = jax.eval_shape(lambda: step(rate))  # Raises if it is another error.
            warnings.warn(
                "`make` does not take a traced rate, so there is a program for each "
                f"rate, and one runs after the other ({type(error).__name__}).",
                stacklevel=6,
            )
            return "apart", found


def _check_scalar(name: str, loss: Any) -> None:
    got = getattr(loss, "shape", type(loss).__name__)
    if got != ():
        raise ValueError(
            f"`{name}` must return a scalar loss, got {got}; take its mean by jnp.mean."
        )


def _stacked(trees: Sequence[Any]) -> Any:
    """One tree with an axis of seeds in front of every array."""
    return jax.tree.map(lambda *x: jnp.stack(x), *trees)
