"""What decides a run."""

import dataclasses
import pathlib

PATH = pathlib.Path(__file__).parents[1] / "results" / "equal.jsonl"
TUNING = (1000, 1001)  # Seeds whose runs are measured on the validation set.
SEEDS = (0, 1, 2, 3, 4)  # Seeds of the rows, measured on the test set.
FRESH = tuple(range(5, 15))  # The same, for what the first study chose by its seeds.


@dataclasses.dataclass(frozen=True)
class Config:
    """Everything that decides the outcome of a run.

    Settings that a method does not have are None.

    Attributes:
        task: A name of `bench.tasks.TASKS`.
        method: A key of `space.METHODS`.
        steps: Updates of the weights.
        rate: Peak of the matrices' learning rate.
        warm_up: Share of the steps in which that rate rises.
        b1: The matrices' first decay rate.
        b2: The matrices' second decay rate.
        decay: The matrices' weight decay.
        other_rate: Peak of the learning rate of AdamW for all other leaves.
        other_warm_up: Its share of rising steps.
        other_b1: Its first decay rate.
        other_b2: Its second decay rate.
        seed: Seed of the weights and of the data's order; its kind, in `TUNING` or
            not, says which set the loss is measured on.
    """

    task: str
    method: str
    steps: int
    rate: float
    warm_up: float
    b1: float | None
    b2: float | None
    decay: float | None
    other_rate: float
    other_warm_up: float
    other_b1: float
    other_b2: float
    seed: int = 0
