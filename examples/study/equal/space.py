"""The settings that are tried: the same points for every method.

The points are the first 32 of a Sobol sequence in five dimensions, scrambled (SciPy's
`qmc.Sobol(5, seed=123)`, in percent), written down so that no version of SciPy changes
them. AdamW for the other leaves is tuned on all of them, methods on the first 16.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import NamedTuple

from examples.study.bench.tasks import TASKS
from examples.study.equal.config import Config

POINTS = (
    (60, 66, 46, 54, 46),
    (10, 50, 62, 17, 75),
    (39, 82, 17, 91, 65),
    (89, 3, 78, 28, 7),
    (76, 100, 63, 41, 19),
    (26, 16, 29, 78, 53),
    (23, 53, 98, 2, 89),
    (72, 31, 6, 64, 34),
    (66, 80, 89, 87, 86),
    (16, 11, 3, 49, 43),
    (32, 71, 72, 69, 3),
    (83, 38, 32, 7, 75),
    (95, 60, 21, 25, 61),
    (45, 30, 87, 62, 17),
    (4, 89, 43, 32, 31),
    (53, 21, 52, 95, 97),
    (51, 91, 2, 4, 11),
    (1, 24, 93, 67, 67),
    (47, 56, 37, 41, 81),
    (97, 28, 71, 78, 47),
    (84, 75, 82, 91, 36),
    (35, 41, 22, 28, 93),
    (13, 78, 53, 52, 54),
    (64, 7, 39, 14, 24),
    (70, 55, 56, 36, 69),
    (20, 35, 48, 99, 3),
    (29, 95, 79, 20, 39),
    (78, 14, 13, 57, 83),
    (91, 86, 28, 74, 96),
    (41, 5, 67, 12, 25),
    (7, 64, 12, 82, 14),
    (58, 46, 96, 45, 58),
)
METHOD_POINTS = POINTS[:16]
# Ends of each setting's range; between them it is spread by its logarithm, and b1 and
# b2 by that of 1 - b.
RATE = 1 / 4, 4.0  # Of the middle.
B1 = 0.7, 0.98
B2 = 0.9, 0.999
WARM_UP = 0.02, 0.4
DECAY = 1 / 8, 8.0  # Of that which makes rate times decay in the middle `PRODUCT`.
ADAMW = 0.004  # The middle of AdamW's rate.
OTHER = 0.016  # The middle of the rate of the other leaves.
OTHER_DECAY = 0.1
PRODUCT = ADAMW * 0.1


@dataclasses.dataclass(frozen=True)
class Space:
    """What a method searches.

    Attributes:
        rates: The middle of its learning rates by task: the best of the first study,
            where the method had its paper's size of updates if it was run there so.
        axes: Its settings besides rate and warm-up, of b1, b2 and decay.
    """

    rates: Mapping[str, float]
    axes: tuple[str, ...] = ("b1", "b2", "decay")


class Search(NamedTuple):
    """The middle of a method's learning rates on a task, and its other settings."""

    middle: float
    axes: tuple[str, ...]


def _rates(books, digits=None, shakespeare=None):
    rates = {"books": books, "digits": digits, "shakespeare": shakespeare}
    return {task: rate for task, rate in rates.items() if rate}


METHODS = {
    "adamw": Space(_rates(ADAMW, ADAMW, ADAMW)),
    "muon": Space(_rates(0.04, 0.04, 0.04), ("b1", "decay")),
    "muoneq": Space(_rates(0.008, 0.032, 0.016), ("b1", "decay")),
    "soap": Space(_rates(0.006, 0.012, 0.012)),
    "aro": Space(_rates(0.008, 0.032, 0.008), ("b1", "decay")),
    "alice": Space(_rates(0.04, 0.08)),
    "racs": Space(_rates(0.04, 0.04), ("b1", "decay")),
    "sumo": Space(_rates(0.016, 0.032), ("b1", "decay")),
    "poet": Space(_rates(0.004, 0.008), ("b1", "b2")),
    "fira": Space(_rates(0.02, 0.02)),
    "galore": Space(_rates(0.02, 0.02)),
    "mousse": Space(_rates(0.016, 0.016)),
}

# Methods that only the papers' orders or the search have, on *books*.
RANKED = {
    "muon_plus": Space(_rates(0.02), ("b1", "decay")),
    "adamuon": Space(_rates(0.008)),
    "mars_adamw": Space(_rates(0.002)),
    "apollo_mini": Space(_rates(0.0025)),
    "alice_0": Space(_rates(0.04)),
    "aurora": Space(_rates(0.025, 0.05), ("b1", "decay")),
}


def is_users(method: str) -> bool:
    """Whether a method is a function of a user, as `own.name_of` names it."""
    return " " in method


def base_of(method: str) -> str:
    """A method without the options and additions of its name; a user's is its own."""
    return method if is_users(method) else re.split("[:+]", method)[0]


def methods(task: str) -> list[str]:
    """The methods of a task, AdamW first."""
    return [name for name, space in METHODS.items() if task in space.rates]


def others(task: str) -> list[Config]:
    """AdamW for all leaves, with a rate of its own for matrices; 32 settings.

    The last axis is the rate of the other leaves; betas and warm-up are shared.
    """
    return [
        Config(
            task=task,
            method="adamw",
            steps=TASKS[task].steps,
            rate=_between(point[0], RATE, ADAMW),
            **(shared := _shared(point)),
            decay=OTHER_DECAY,
            other_rate=_between(point[4], RATE, OTHER),
            **{f"other_{name}": value for name, value in shared.items()},
        )
        for point in POINTS
    ]


def candidates(
    method: str, other: Config, search: Search | None = None
) -> list[Config]:
    """Settings of a method's matrices, 16 of them, beside tuned other leaves.

    Args:
        method: The method.
        other: The settings of the other leaves.
        search: What is searched; None for a method of the comparison.
    """
    if search is None:
        space = (METHODS | RANKED)[method]
        search = Search(space.rates[other.task], space.axes)
    middle = search.middle

    def one(point):
        found = _shared(point) | {
            "decay": _between(point[4], DECAY, PRODUCT / middle),
        }
        given = {
            k: v if k in (*search.axes, "warm_up") else None for k, v in found.items()
        }
        rate = _between(point[0], RATE, middle)
        return dataclasses.replace(other, method=method, rate=rate, **given)

    return [one(point) for point in METHOD_POINTS]


def _shared(point):
    return {
        "b1": _beta(point[1], B1),
        "b2": _beta(point[2], B2),
        "warm_up": _between(point[3], WARM_UP),
    }


def _between(percent, ends, unit=1.0):
    low, high = ends
    return _rounded(unit * low * (high / low) ** (percent / 100))


def _beta(percent, ends):
    low, high = (1 - end for end in ends)
    return _rounded(1 - low * (high / low) ** (percent / 100), 4)


def _rounded(value, digits=3):
    return float(f"{value:.{digits}g}")
