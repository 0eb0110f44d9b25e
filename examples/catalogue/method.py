"""What an entry of the catalogue is, and how it is compared with its restatement."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax

import optax_matrix as om

Restatement = Callable[[np.ndarray, dict[str, Any], np.ndarray], np.ndarray]
SHAPES = {"wide": (2, 5, 8), "tall": (2, 9, 4), "square": (1, 6, 6)}
RATE = 0.01  # Of the weights' steps, between updates.


@dataclasses.dataclass
class Method:
    """A published method.

    Attributes:
        make: Function that returns the chain, by default that of the restatement; its
            docstring has formula and source.
        needs_params: Whether the chain uses the weights.
        finished: Whether its updates are steps, which no learning rate follows.
        shapes: Shapes of stacks of matrices ``(batch, out, in)`` to compare it on.
        skipped: The number of first steps that are not compared.
        restated: Function of a gradient, what it keeps, and the weights of one matrix.
    """

    make: Callable[..., optax.GradientTransformation]
    needs_params: bool = False
    finished: bool = False
    shapes: dict[str, tuple[int, ...]] = dataclasses.field(default_factory=SHAPES.copy)
    skipped: int = 0
    restated: Restatement | None = None

    def in_numpy(self, restated: Restatement) -> Restatement:
        """Decorates the restatement, for one matrix in float64."""
        self.restated = restated
        return restated

    def error(
        self, dtype: Any = np.float64, steps: int = 3, *, alone: bool = False
    ) -> float:
        """The largest error of an update's entry, relative to the largest entry.

        Matrices are kernels ``(layers, in, out)`` that `on_matrices` stacks, or, to the
        chain alone, stacks ``(batch, out, in)``.
        """
        rng = np.random.default_rng(0)
        draw = lambda: {n: rng.normal(size=shape) for n, shape in self.shapes.items()}
        weights, kept, worst = draw(), {}, 0.0
        tx, turned = optax.with_extra_args_support(self.make()), lambda x: x
        if not alone:
            tx = om.on_matrices(tx, needs_params=self.needs_params)
            turned = lambda x: x.mT
        kernels = lambda tree: {n: turned(x).astype(dtype) for n, x in tree.items()}
        state, update = jax.jit(tx.init)(kernels(weights)), jax.jit(tx.update)
        for step in range(steps):
            gradients = {n: x + 0.3 for n, x in draw().items()}
            got, state = update(kernels(gradients), state, kernels(weights))
            want = self._restated(gradients, kept, weights)
            for n, x in want.items():
                if step >= self.skipped:
                    error = np.abs(turned(np.asarray(got[n], np.float64)) - x).max()
                    worst = max(worst, float(error / np.abs(x).max()))
                weights[n] = weights[n] + (1 if self.finished else -RATE) * x
        return worst

    def _restated(self, gradients: Any, kept: Any, weights: Any) -> Any:
        restated = self.restated
        assert restated is not None
        of = lambda n, i: restated(
            gradients[n][i], kept.setdefault((n, i), {}), weights[n][i]
        )
        return {
            n: np.stack([of(n, i) for i in range(len(x))]) for n, x in gradients.items()
        }
