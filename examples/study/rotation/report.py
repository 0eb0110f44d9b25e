"""The tables and the figure of the study."""

import pathlib
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from examples.study.rotation.training import Curve

Runs = dict[str, dict[str, Curve]]


def summary(curve: Curve) -> dict[str, float]:
    """Numbers of one run; those of the alignment are over all steps.

    `jitter` is its variance about a running mean over a twentieth of the steps. The
    plain variance of a whole run mostly measures the descent from first to last step.
    """
    scores = curve.alignment
    late = curve.losses[-max(len(scores) // 20, 1) :]
    return {
        "loss": float(np.median(late)),
        "mean": float(scores.mean()),
        "variance": float(scores.var()),
        "jitter": float((scores - running_mean(scores)).var()),
        "negative": float((scores < 0).mean()),
    }


def running_mean(values: np.ndarray) -> np.ndarray:
    """The mean over a window of a twentieth of the steps, centred at each step."""
    half = len(values) // 40
    padded = np.pad(values, half, mode="edge")
    return np.convolve(padded, np.ones(2 * half + 1) / (2 * half + 1), mode="valid")


def table_of_runs(runs: Runs) -> str:
    """Loss and alignment under each policy, on all images and on mini-batches."""
    lines = [
        f"{'gradient':<11} {'policy':<9} {'last loss':>10} {'S_A mean':>9} "
        f"{'variance':>9} {'jitter':>9} {'S_A < 0':>8}"
    ]
    for gradient, curves in runs.items():
        for policy, curve in curves.items():
            s = summary(curve)
            lines.append(
                f"{gradient:<11} {policy:<9} {s['loss']:>10.2e} {s['mean']:>9.4f} "
                f"{s['variance']:>9.2e} {s['jitter']:>9.2e} {s['negative']:>8.1%}"
            )
    return "\n".join(lines)


def table_of_objectives(rows: dict[tuple[str, str], dict[str, float]]) -> str:
    """J of ARO and the others against J of the eigenvectors."""
    others = [name for name in next(iter(rows.values())) if name != "share"]
    head = "".join(f" {name:>9}" for name in others)
    lines = [f"{'momenta':<9} {'base':<9} {'aro > eigen':>11}{head}"]
    for (momenta, base), row in rows.items():
        gains = "".join(f" {row[name]:>+9.1%}" for name in others)
        lines.append(f"{momenta:<9} {base:<9} {row['share']:>11.1%}{gains}")
    return "\n".join(lines)


def draw(runs: Runs, title: str, path: pathlib.Path) -> None:
    """Loss above, alignment below with its running mean; one column per gradient."""
    figure = Figure(figsize=(12, 8), layout="constrained")
    grid: Any = figure.subplots(2, len(runs), sharex=True, sharey="row", squeeze=False)
    for (above, below), (gradient, curves) in zip(grid.T, runs.items(), strict=True):
        for index, (policy, curve) in enumerate(curves.items()):
            style = {"color": f"C{index}", "label": policy}
            above.semilogy(curve.losses, linewidth=1.2, **style)
            below.plot(curve.alignment, linewidth=0.4, alpha=0.4, color=f"C{index}")
            below.plot(running_mean(curve.alignment), linewidth=1.4, **style)
        below.axhline(0, color="black", linewidth=0.8)
        above.set_title(gradient)
        below.set_xlabel("step")
    grid[0, 0].set_ylabel("loss on all images")
    grid[1, 0].set_ylabel("alignment score")
    grid[0, 0].legend()
    figure.suptitle(title)
    figure.savefig(path, dpi=130)
