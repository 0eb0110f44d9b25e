"""Moments in 32, 8 and 4 bits: bytes of state, and losses on books.

    python -m examples.few_bits --steps 400 --seeds 0 1 2

trains the tiny LLaMA of `examples.pretrain` by `muoneq`, which has one momentum, and by
`soap`, which has two, and AdamW for the other leaves, with the moments of all of them
in so many bits. It prints bytes of state for each weight, the validation loss of every
seed, and differences to 32 bits with the standard error of their mean. Seeds choose
weights and the order of the batches, and are the same in each row.
"""

import argparse
import functools
import statistics
from typing import Any

import optax

import optax_matrix as om
from examples.pretrain.cli import at_least
from examples.pretrain.config import SIZES
from examples.pretrain.data import Windows, open_data
from examples.pretrain.step import Trainer, evaluate, state_bytes

RATES = {"muoneq": 1.2e-2, "soap": 1.2e-2}  # Four times 3e-3, AdamW's.
OTHERS = 3e-3
BITS = 32, 8, 4
CONFIG = SIZES["tiny"]


def optimizer(name: str, bits: int, rate: Any) -> optax.GradientTransformation:
    """A recipe at a schedule, with all its moments in so many bits."""
    other = optax.adamw(lambda count: rate(count) * OTHERS / RATES[name], 0.9, 0.95)
    if bits == 32:
        return getattr(om, name)(rate, other=other)
    other = om.quantization.quantize_state(other, bits=bits)
    placement = om.quantized(bits=bits)
    return getattr(om, name)(rate, other=other, placement=placement)


def train(name: str, bits: int, seed: int, steps: int) -> tuple[float, float]:
    """The validation loss, and bytes of state for each weight."""
    data = open_data("books", Windows(CONFIG.context, batch=16, seed=seed))
    build = functools.partial(optimizer, name, bits)
    trainer = _trainer(build, name, bits, steps)
    state, batches = trainer.init(seed), iter(data.train)
    for _ in range(steps):
        state, _ = trainer.update(state, next(batches), RATES[name])
    share = state_bytes(state.opt_state) / state_bytes(state.params) * 4
    return evaluate(CONFIG, state.params, data.validation), share


_TRAINERS: dict[Any, Trainer] = {}


def _trainer(build: Any, *key: Any) -> Trainer:
    """One for all seeds, so that it compiles once."""
    if key not in _TRAINERS:
        _TRAINERS[key] = Trainer(CONFIG, build, key[-1], accumulate=1)
    return _TRAINERS[key]


def main(
    steps: int = 400, seeds: tuple[int, ...] = (0, 1, 2), names: Any = tuple(RATES)
) -> dict[tuple[str, int], list[float]]:
    """Prints, and returns, the losses of each method and number of bits."""
    found = {}
    print(f"{'method':8} {'bits':>4} {'bytes':>6}  losses; difference to 32 bits")
    for name in names:
        for bits in BITS:
            runs = [train(name, bits, seed, steps) for seed in seeds]
            losses = [loss for loss, _ in runs]
            pairs = zip(losses, found.get((name, 32), losses), strict=True)
            gaps = [x - y for x, y in pairs]
            error = statistics.stdev(gaps) / len(gaps) ** 0.5 if len(gaps) > 1 else 0
            found[name, bits] = losses
            shown = " ".join(f"{x:.4f}" for x in losses)
            change = f"{statistics.mean(gaps):+.4f} ± {error:.4f}"
            print(f"{name:8} {bits:4} {runs[0][1]:6.2f}  {shown}; {change}", flush=True)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        "examples.few_bits", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--steps", type=at_least(1), default=400)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+", choices=RATES, default=[*RATES])
    args = parser.parse_args()
    main(args.steps, tuple(args.seeds), args.methods)
