"""Runs at several rates and seeds, in one program or one after the other.

Three ways to train, tried in this order:

* *together*: rates and seeds are two axes of `jax.vmap` over the step;
* *one by one*: the compiled step takes the rate as an argument;
* *apart*: each rate has a compiled step, for factories that refuse a traced rate.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from optax_matrix.matrices.use.models import split
from optax_matrix.tuning._batches import stacked
from optax_matrix.tuning._trainings import Training

LOOKS = 20  # At the losses, in each run.
Show = Callable[[float, int, int, float], Any]
Found = dict[float, tuple[np.ndarray, np.ndarray]]


class Runs:
    """One model, to be trained at any rates; `sweep` explains the arguments."""

    def __init__(
        self, way: Training, models: Sequence[Any], batches: list, evaluate: Any
    ):
        self._way, self._batches, self._evaluate = way, batches, evaluate
        self._parts = [split(model)[:2] for model in models]
        self.steps, self.kind = len(batches[0]), ""
        self.last = max(1, self.steps // 10)
        value = lambda carry: evaluate(way.model(carry))
        of_seeds = jax.vmap(way.advance, (None, 0, 0 if len(batches) > 1 else None))
        steps = jax.vmap(of_seeds, (0, 0, None))
        of_list = lambda b: stacked(b) if len(b) > 1 else b[0]
        all_steps = lambda rates, carry, b: steps(rates, carry, of_list(b))
        values = jax.vmap(jax.vmap(value))
        # The first carry, a step, and the validation loss: of one run, of all.
        self._one = jax.jit(self._start), _donating(way.advance), jax.jit(value)
        self._all = jax.jit(self._start_all), _donating(all_steps), jax.jit(values)

    def train(self, rates: Sequence[float], memory: Any, show: Show) -> Found:
        """Losses ``(seeds, steps)``, and what is minimized ``(seeds,)``, by rate.

        Losses are NaN from the first on that is not finite; what is minimized is then
        infinite.
        """
        self.kind = self.kind or self._choose(rates, memory)
        total = self.steps * (1 if self.kind == "together" else len(self._parts))
        for rate in rates:
            show(rate, 0, total, math.inf)
        if self.kind != "together":
            return {rate: self._each_seed(rate, show) for rate in rates}
        start, step, value = self._all
        grid, carry = start(tuple(rates), self._parts)

        def look(done: int, losses: np.ndarray) -> bool:
            for rate, each in zip(rates, losses.swapaxes(0, 1), strict=True):
                show(rate, done, self.steps, float(each[-1].mean()))
            return bool(np.isnan(losses[-1]).any(-1).all())

        batch = lambda i: [of_seed[i] for of_seed in self._batches]
        carry, losses = self._loop(lambda *x: step(grid, *x), carry, batch, look)
        finals = self._finals(losses, value, carry)
        return {r: (losses[:, i].T, finals[i]) for i, r in enumerate(rates)}

    def _start(self, rate: Any, parts: Any) -> Any:
        """The carry, copied, because steps reuse its memory."""
        return jax.tree.map(jnp.copy, self._way.start(rate, *parts))

    def _start_all(self, rates: tuple, parts: list) -> tuple:
        """Rates as an array, which stays weakly typed, and a carry with both axes."""
        starts = jax.vmap(jax.vmap(self._start, (None, 0)), (0, None))
        grid = jnp.stack(rates)
        return grid, starts(grid, stacked(parts))

    def _choose(self, rates: Sequence[float], memory: Any) -> str:
        parts, batch = self._parts[0], self._batches[0][0]
        step = lambda rate: self._way.advance(rate, self._start(rate, parts), batch)
        try:
            carry, _ = jax.eval_shape(step, rates[0])
        except Exception as error:
            if type(error).__name__ == "TraceContextError":  # Of NNX.
                raise ValueError(
                    "The loss or the step changes a model in place that it was not "
                    "given; let it use the model among its arguments."
                ) from error
            jax.eval_shape(lambda: step(rates[0]))  # Raises if it is no fault of it.
            warnings.warn(
                "`make` does not take a traced rate, so there is a program for each "
                f"rate, and one runs after the other ({type(error).__name__}).",
                stacklevel=5,
            )
            return "apart"
        size = sum(
            math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(carry)
        )
        is_small = len(rates) * len(self._parts) * size <= memory
        return "together" if is_small else "one by one"

    def _each_seed(self, rate: float, show: Show) -> tuple[np.ndarray, np.ndarray]:
        start, step, value = self._one
        if self.kind == "apart":
            start = jax.jit(lambda _, parts: self._start(rate, parts))
            step = _donating(lambda _, *x: self._way.advance(rate, *x))
        losses = np.full((len(self._parts), self.steps), np.nan)
        finals = np.full(len(self._parts), np.inf)

        total = self.steps * len(self._parts)

        for seed, parts in enumerate(self._parts):
            before = seed * self.steps

            def look(done: int, losses: np.ndarray, before: int = before) -> bool:
                lost = bool(np.isnan(losses[-1]))
                show(rate, total if lost else before + done, total, float(losses[-1]))
                return lost

            own = self._batches[seed % len(self._batches)]
            carry = start(rate, parts)
            carry, losses[seed] = self._loop(
                lambda *x: step(rate, *x), carry, own.__getitem__, look
            )
            finals[seed] = self._finals(losses[seed], value, carry)
            if np.isinf(finals[seed]):
                break
        return losses, finals

    def _loop(self, step: Any, carry: Any, batch: Any, look: Any) -> tuple:
        """All steps, or as many as pass until a look says that all have diverged."""
        every, found = -(-self.steps // LOOKS), []
        for done in range(1, self.steps + 1):
            carry, loss = step(carry, batch(done - 1))
            found.append(loss)
            if done % every == 0 or done == self.steps:
                losses = np.array(jax.device_get(found), np.float64)
                lost = np.logical_or.accumulate(~np.isfinite(losses), axis=0)
                losses[lost] = np.nan
                if look(done, losses):
                    break
        missing = np.full((self.steps - len(losses), *losses.shape[1:]), np.nan)
        return carry, np.concatenate([losses, missing])

    def _finals(self, losses: np.ndarray, value: Any, carry: Any) -> np.ndarray:
        """The validation loss, or the mean of the last tenth of the losses."""
        final = losses[-self.last :].mean(0)
        if self._evaluate is not None:
            final = np.where(np.isnan(final), np.nan, jax.device_get(value(carry)))
        return np.where(np.isfinite(final), final, np.inf)


def _donating(step: Any) -> Any:
    return jax.jit(step, donate_argnums=1)
