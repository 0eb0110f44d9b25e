"""Batches: how a text is cut into windows, and the data set that results."""

import dataclasses

import grain
import numpy as np

from examples.pretrain.errors import UserError


@dataclasses.dataclass(frozen=True)
class Windows:
    """How the text is cut into batches.

    Attributes:
        context: Tokens that one window predicts.
        batch: Windows in one update of the weights.
        accumulate: Micro-batches that share one update.
        validation: Windows on which every run is evaluated.
        seed: Seed of the order of the windows.
    """

    context: int
    batch: int
    accumulate: int = 1
    validation: int = 128
    seed: int = 0

    def __post_init__(self):
        if self.batch % self.accumulate:
            raise UserError(
                f"--batch {self.batch} cannot be split into --accumulate "
                f"{self.accumulate} micro-batches; choose a multiple."
            )

    @property
    def micro_batch(self) -> int:
        return self.batch // self.accumulate


@dataclasses.dataclass(frozen=True)
class Data:
    """An endless stream of training batches, and a fixed validation set.

    Attributes:
        train: Dataset of batches `(accumulate, batch / accumulate, context + 1)`.
        validation: Tokens `(batches, micro_batch, context + 1)`.
        vocab: Number of tokens of the encoding.
        checksum: SHA-256 of the encoded text; of a stream, of the validation set.
    """

    train: grain.IterDataset
    validation: np.ndarray
    vocab: int
    checksum: str
