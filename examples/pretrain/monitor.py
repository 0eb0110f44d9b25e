"""What `train --monitor` records: statistics of updates, and spectra of the weights.

Each line of `monitor.jsonl` has a ``step``, ``measures`` (path to measure to value)
and, in every tenth line from the first on and in the last one, ``spectra`` (path to
singular values). Layers stacked in one leaf have a list with one entry per layer.

Checkpoints are the same with and without a monitor, so that any run can be resumed with
it or without it. The first update after that has no earlier one to be compared with:
its ``update_cosine`` is null.
"""

import math
import pathlib
from typing import Any

import jax
import numpy as np

import optax_matrix as om
from examples.pretrain.directory import Metrics
from optax_matrix._paths import named_leaves
from optax_matrix.diagnostics import MonitorState

FILE = "monitor.jsonl"
MEASURES = ("update_rms", "update_to_weight", "update_cosine")
OF_TWO_UPDATES = "update_cosine"
QUANTILES = 64
SPECTRA_EVERY = 10  # Lines.
DIGITS = 6


class Monitor:
    """Appends to `monitor.jsonl`.

    Args:
        directory: Directory of the run.
        after: Step of the checkpoint that the run continues from; lines of later steps
            are dropped.
        every: Number of updates between two lines.
        last: The last step of the run.
    """

    def __init__(self, directory: pathlib.Path, after: int, every: int, last: int):
        self._file = Metrics(directory / FILE, after)
        self._first, self._every, self._last = after + 1, every, last

    def write(self, step: int, state: Any) -> None:
        """Adds the line of a step, if one is due.

        Args:
            step: Number of updates done.
            state: Weights, and a state with `MonitorState` inside.
        """
        if step % self._every and step != self._last:
            return
        measures = {
            path: {name: _plain(value) for name, value in values.items()}
            for path, values in om.diagnostics.read_monitor(state.opt_state).items()
        }
        if step == self._first:
            for values in measures.values():
                values[OF_TWO_UPDATES] = None
        row = {"step": step, "measures": measures}
        if step // self._every % SPECTRA_EVERY == 1 or step == self._last:
            row["spectra"] = spectra(state.params)
        self._file.write(**row)

    def close(self) -> None:
        self._file.close()


def spectra(params: Any) -> dict[str, Any]:
    """Singular values of the matrices of the layers, largest first.

    They are square roots of eigenvalues of the smaller Gram matrix, computed on the
    host in float64, and at most 64 quantiles of them.

    Args:
        params: A tree of weights; matrices are the leaves to which the default rule
            gives this label, of shape ``(in, out)`` or ``(layers, in, out)``.

    Returns:
        ``{path: values}``, or a list of values for each layer.
    """
    labels = named_leaves(om.matrices.label_params()(params))
    leaves = named_leaves(params)
    matrices = {p: leaf for p, leaf in leaves.items() if labels[p] == "matrix"}
    return {path: _plain(_spectrum(np.asarray(w))) for path, w in matrices.items()}


def _spectrum(w):
    w = w.astype(np.float64)
    w = w if w.shape[-2] <= w.shape[-1] else w.mT
    count = min(w.shape[-2], QUANTILES)
    if not np.isfinite(w).all():  # Eigenvalues would raise.
        return np.full((*w.shape[:-2], count), np.nan)
    values = np.sqrt(np.maximum(np.linalg.eigvalsh(w @ w.mT), 0.0))
    return np.moveaxis(np.quantile(values, np.linspace(1, 0, count), axis=-1), 0, -1)


def _plain(value: Any) -> Any:
    """Numbers as JSON has them; those that are not finite as null."""
    if np.ndim(value):
        return [_plain(one) for one in value]
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None


def without_monitor(state: Any) -> Any:
    """A state without what a monitor added, as checkpoints have it."""
    is_one = lambda node: isinstance(node, MonitorState)
    inner = lambda node: node.inner_state if is_one(node) else node
    return jax.tree.map(inner, state, is_leaf=is_one)


def with_monitor(fresh: Any, restored: Any) -> Any:
    """A state with the fresh monitor of another one.

    Args:
        fresh: The state of a run that begins, with or without a monitor.
        restored: The same without a monitor.
    """
    is_one = lambda node: isinstance(node, MonitorState)

    def joined(node, inner):
        return node._replace(inner_state=inner) if is_one(node) else inner

    return jax.tree.map(joined, fresh, restored, is_leaf=is_one)
