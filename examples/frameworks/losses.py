"""What the methods reach in frameworks' own trainers, on the same text.

    python -m examples.frameworks.losses maxtext
    python -m examples.frameworks.losses levanter --steps 50

AdamW, `muoneq` and `aro` train on the bytes of the King James Version that
`examples/data` has. Each method's rate is the best of five, a factor of two apart, on
one seed; three other seeds are reported. A seed is that of the weights and of the text,
so that the methods see the same batches. A loss is the mean over the last tenth of the
steps; no window comes twice, so it is one of text that the model has not seen.

It runs in an environment that has the framework (`python -m examples.frameworks NAME
--keep FOLDER` leaves one) and on one device. The module of the framework has::

    def losses(method: str, rate: float, seed: int, steps: int) -> list[float]:

which trains `WIDTH`, `LAYERS` and `HEADS` on `text` with the framework's trainer and
returns the loss of each step. Each has a warm-up over the first tenth of the steps, a
cosine down to a tenth, and a decay of 0.1.
"""

import argparse
import functools
import gzip
import importlib
import math
import pathlib
import statistics
from collections.abc import Callable

import numpy as np

TEXT = pathlib.Path(__file__).parents[1] / "data" / "king_james.txt.gz"
VOCABULARY, BATCH, LENGTH = 256, 16, 64
WIDTH, LAYERS, HEADS = 64, 3, 4
STEPS, SEED, SEEDS = 200, 0, (1, 2, 3)
# The middle of the five rates.
METHODS = {"adamw": 1e-2, "muoneq": 1e-2, "aro": 1e-2}

Train = Callable[[str, float, int, int], list[float]]


@functools.cache
def _windows() -> np.ndarray:
    """The text, cut side by side: a byte more than a window predicts."""
    data = np.frombuffer(gzip.decompress(TEXT.read_bytes()), np.uint8)
    return data[: len(data) // (LENGTH + 1) * (LENGTH + 1)].reshape(-1, LENGTH + 1)


def text(seed: int, step: int) -> np.ndarray:
    """The batch of a step, ``(BATCH, LENGTH + 1)``: the inputs and what follows."""
    order = np.random.default_rng(seed).permutation(len(_windows()))
    return _windows()[order[step * BATCH : (step + 1) * BATCH]].astype(np.int32)


def compare(train: Train, steps: int = STEPS) -> dict[str, tuple[float, list[float]]]:
    """Each method's best rate, and its losses at that rate on the other seeds."""
    found = {}
    for method, middle in METHODS.items():
        rates = [middle * 2.0**i for i in range(-2, 3)]
        tried = {r: _final(train, method, r, SEED, steps) for r in rates}
        best = min(tried, key=lambda rate: tried[rate])
        if best in (rates[0], rates[-1]):
            print(f"{method}: the best rate is at the edge of the five")
        reached = [_final(train, method, best, seed, steps) for seed in SEEDS]
        found[method] = best, reached
    return found


def _final(train: Train, method: str, rate: float, seed: int, steps: int) -> float:
    """The loss at the end of a run; infinite where it is not a number."""
    last = train(method, rate, seed, steps)[-max(1, steps // 10) :]
    loss = statistics.fmean(last)
    loss = loss if math.isfinite(loss) else math.inf
    print(f"{method:8} rate {rate:.2e} seed {seed} loss {loss:.4f}", flush=True)
    return loss


def main() -> None:
    """Runs one framework, and prints all losses and the means."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("name", help="a module of this package with `losses`")
    parser.add_argument("--steps", type=int, default=STEPS)
    args = parser.parse_args()
    train = importlib.import_module(f"examples.frameworks.{args.name}").losses
    found = compare(train, args.steps)
    print(f"{args.name}, {args.steps} steps, seeds {SEEDS}")
    for method, (rate, reached) in found.items():
        each = "  ".join(f"{x:.4f}" for x in reached)
        mean = statistics.fmean(reached)
        print(f"{method:8} rate {rate:.2e}  {each}  mean {mean:.4f}")


if __name__ == "__main__":
    main()
