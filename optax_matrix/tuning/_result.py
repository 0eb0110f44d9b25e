"""What a sweep found: the best rate, the losses, a table and a picture."""

import dataclasses
from typing import Any

import numpy as np

from optax_matrix._printed import Printed


@dataclasses.dataclass(frozen=True)
class Sweep(Printed):
    """The outcome of `sweep`; `print` shows it as a table.

    Attributes:
        losses: Training losses ``(seeds, steps)`` by rate, in order. The first that
            is not finite and all after it are NaN.
        finals: What is minimized, ``(seeds,)`` by rate: the validation loss, or the
            mean of the last tenth of the training losses; infinite if a run diverged.
        measure: What ``finals`` are, in words.
        together: Whether all runs were one program.
    """

    losses: dict[float, np.ndarray]
    finals: dict[float, np.ndarray]
    measure: str
    together: bool

    @property
    def rates(self) -> tuple[float, ...]:
        """All rates that were tried, in order."""
        return tuple(self.finals)

    @property
    def best(self) -> float:
        """The rate whose mean over seeds is the smallest."""
        return min(self.finals, key=lambda rate: self.finals[rate].mean())

    @property
    def at_end(self) -> bool:
        """Whether the best rate is the smallest or the largest that was tried."""
        return self.best in (self.rates[0], self.rates[-1])

    def __str__(self) -> str:
        shown = {rate: f"{rate:g}" for rate in self.rates}
        width = max(map(len, ("rate", *shown.values())))
        lines = [f"{'rate':<{width}}  loss"]
        for rate, name in shown.items():
            mark = "  <- best" if rate == self.best else ""
            lines.append(f"{name:<{width}}  {self._loss(rate)}{mark}")
        seeds, steps = self.losses[self.best].shape
        many = f", {seeds} seeds" if seeds > 1 else ""
        how = "in one program" if self.together else "one after the other"
        lines.append(f"loss: {self.measure}; {steps} steps{many}, {how}")
        if self.at_end:
            end = "smallest" if self.best == self.rates[0] else "largest"
            lines.append(
                f"The best rate is the {end} that was tried; try further ones."
            )
        return "\n".join(lines)

    def _loss(self, rate: float) -> str:
        finals = self.finals[rate]
        if np.isinf(finals).any():
            steps = np.isfinite(self.losses[rate]).sum(-1)
            step = steps[np.isinf(finals)].min()
            lost = step < self.losses[rate].shape[-1]
            return f"diverged at step {step + 1}" if lost else "not finite"
        spread = f" ± {finals.std(ddof=1):.2g}" if len(finals) > 1 else ""
        return f"{finals.mean():.4g}{spread}"

    def plot(self, axes: Any = None, **style: Any) -> Any:
        """Draws the loss against the rate, with a dot for each seed.

        Args:
            axes: Axes of matplotlib to draw on; None for those of a new figure.
            **style: Keywords of the line, such as ``label`` or ``color``.

        Returns:
            The axes.

        Raises:
            ModuleNotFoundError: If matplotlib is not installed.
        """
        if axes is None:
            try:
                from matplotlib import pyplot as plt
            except ModuleNotFoundError:
                raise ModuleNotFoundError(
                    "`plot` needs matplotlib: pip install matplotlib. `print` shows "
                    "the same as a table."
                ) from None
            axes = plt.subplots(figsize=(5.6, 2.8), layout="constrained")[1]
        fine = {r: x for r, x in self.finals.items() if np.isfinite(x).all()}
        means = [x.mean() for x in fine.values()]
        (line,) = axes.semilogx([*fine], means, **{"marker": "o", **style})
        for seed in (
            zip(*fine.values(), strict=True) if len(self.finals[self.best]) > 1 else ()
        ):
            axes.semilogx([*fine], seed, ".", color=line.get_color(), alpha=0.4)
        axes.set(xlabel="learning rate", ylabel=self.measure)
        axes.set_xticks(self.rates, [f"{rate:g}" for rate in self.rates])
        axes.minorticks_off()
        return axes
