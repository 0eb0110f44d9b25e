"""What decides a run, and what it measures."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Config:
    """Everything that decides the outcome of a run.

    Attributes:
        task: A name of `tasks.TASKS`.
        method: A method of `methods`, with options: ``muoneq:mode=col``.
        setting: `matched` to AdamW's update size, `own`, the paper's, or `tuned` for
            AdamW.
        rate: Peak of the learning rate.
        seed: Seed of the weights and of the data's order.
        steps: Updates of the weights.
        batch: Windows or images per update.
        weights: How weights are kept and updated, a key of `weights.FORMS`.
    """

    task: str
    method: str
    setting: str
    rate: float
    seed: int
    steps: int
    batch: int
    weights: str = "float32"


@dataclasses.dataclass(frozen=True)
class Result:
    """What a run measured.

    Attributes:
        loss: Loss on the whole validation set after the last step; None if it failed.
        curve: Steps, and losses on about a seventh of the validation set; a failed run
            ends early.
        milliseconds: Median processor time of an update in one thread, compilation
            excluded.
        state_bytes: Bytes of the optimizer's state.
        seconds: Time of the run with its share of compilation.
    """

    loss: float | None
    curve: list[list[float]]
    milliseconds: float
    state_bytes: int
    seconds: float
