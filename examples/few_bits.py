"""Moments in 32, 8 and 4 bits: bytes of state, and losses on books.

    python -m examples.few_bits                  # the missing runs; can be stopped
    python -m examples.few_bits --seeds 0        # those of one seed

The tiny LLaMA of `examples.pretrain` trains by `muoneq`, which has one momentum, and by
`soap`, which has two, and by AdamW for the other leaves, with the moments of all of
them in so many bits. Seeds choose weights and the order of the batches, and are the
same in each row. All runs of a seed come before those of the next one.

The protocol was written before the first run. There are 200 steps, seeds 0, 1 and 2,
and one learning rate, which is not searched. Losses are those of 128 windows of the
validation set. Four bits are within the interval of eight if the 95% interval of the
differences of their losses, seed by seed, contains zero.

Runs are added to ``examples/study/results/few_bits.jsonl``, and the table of the page
on memory is made of them.
"""

import argparse
import dataclasses
import functools
import math
import pathlib
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import optax

import optax_matrix as om
from examples.pretrain.cli import at_least
from examples.pretrain.config import SIZES
from examples.pretrain.data import Windows, open_data
from examples.pretrain.step import Trainer, evaluate, initial_weights, state_bytes
from examples.study.bench import results
from examples.study.bench.config import Result
from examples.study.bench.markdown import lines
from examples.study.bench.statistics import paired

RATES = {"muoneq": 1.2e-2, "soap": 1.2e-2}  # Four times 3e-3, AdamW's.
OTHERS = 3e-3
BITS = 32, 8, 4
MODEL = SIZES["tiny"]
STEPS, SEEDS = 200, (0, 1, 2)
PATH = results.PATH.with_name("few_bits.jsonl")
COMMAND = "python -m examples.few_bits"


@dataclasses.dataclass(frozen=True)
class Config:
    """Everything that decides a run."""

    method: str
    bits: int
    seed: int
    steps: int


def optimizer(name: str, bits: int, rate: Any) -> optax.GradientTransformation:
    """A recipe at a schedule, with all its moments in so many bits."""
    other = optax.adamw(lambda count: rate(count) * OTHERS / RATES[name], 0.9, 0.95)
    if bits == 32:
        return getattr(om, name)(rate, other=other)
    other = om.quantization.quantize_state(other, bits=bits)
    placement = om.quantized(bits=bits)
    return getattr(om, name)(rate, other=other, placement=placement)


@functools.cache
def _trainer(name: str, bits: int, steps: int) -> Trainer:
    """One for all seeds, so that it compiles once."""
    build = functools.partial(optimizer, name, bits)
    return Trainer(MODEL, build, steps, accumulate=1)


def train(config: Config) -> Result:
    """One run; the curve has the loss of every tenth of its batches."""
    begin = time.perf_counter()
    data = open_data("books", Windows(MODEL.context, batch=16, seed=config.seed))
    trainer = _trainer(config.method, config.bits, config.steps)
    state, batches = trainer.init(config.seed), iter(data.train)
    curve, times = [], []
    for step in range(config.steps):
        clock = time.process_time()
        state, loss = trainer.update(state, next(batches), RATES[config.method])
        jax.block_until_ready(state)
        times.append(time.process_time() - clock)
        if step % max(config.steps // 10, 1) == 0:
            curve.append([step, round(float(loss), 5)])
    final = evaluate(MODEL, state.params, data.validation)
    return Result(
        loss=round(final, 5) if math.isfinite(final) else None,
        curve=curve,
        milliseconds=round(1e3 * float(np.median(times)), 3),
        state_bytes=state_bytes(state.opt_state),
        seconds=round(time.perf_counter() - begin, 1),
    )


def table(
    path: pathlib.Path = PATH, steps: int = STEPS, seeds: tuple[int, ...] = SEEDS
) -> str:
    """A row for each method and number of bits, of the seeds that all of them have."""
    found, weights, cells = results.read(path, Config), _weights(), []
    missing = 0
    for name in RATES:
        runs = [
            [found.get(Config(name, bits, seed, steps)) for bits in BITS]
            for seed in seeds
        ]
        whole = [each for each in runs if all(each)]
        missing += sum(each.count(None) for each in runs)
        by_bits = dict(zip(BITS, zip(*whole, strict=True), strict=bool(whole)))
        losses = {bits: _losses(x) for bits, x in by_bits.items()}
        for bits, x in by_bits.items():
            size = f"{x[0].state_bytes / weights:.2f}"
            cells.append([f"`{name}`", str(bits), size, *_cells(losses, bits)])
    headings = "method", "bits", "bytes per weight", "seeds", "loss"
    text = lines((*headings, "against 32 bits", "against 8 bits"), cells)
    return text + f"\n\nRuns that are missing: {missing}." * bool(missing)


def _losses(runs: Sequence[Result]) -> np.ndarray:
    return np.array([math.inf if run.loss is None else run.loss for run in runs])


def _cells(losses: dict[int, np.ndarray], bits: int) -> list[str]:
    """Seeds, their mean and spread, and differences to more bits."""
    ours = losses[bits]
    spread = f" ± {ours.std(ddof=1):.4f}" if len(ours) > 1 else ""
    against = lambda b: _interval(ours - losses[b]) if bits < b else ""
    return [str(len(ours)), f"{ours.mean():.4f}{spread}", against(32), against(8)]


def _interval(gaps: np.ndarray) -> str:
    """The mean of differences, and half of its 95% interval."""
    if len(gaps) < 2:
        return f"{gaps.mean():+.4f}"
    mean, half = paired(gaps)
    return f"{mean:+.4f} ± {half:.4f}"


def _weights() -> int:
    """Numbers of the model."""
    return sum(
        x.size for x in jax.tree.leaves(jax.eval_shape(initial_weights, MODEL, 0))
    )


def main(
    steps: int = STEPS,
    seeds: tuple[int, ...] = SEEDS,
    methods: tuple[str, ...] = tuple(RATES),
    path: pathlib.Path = PATH,
) -> str:
    """Does the missing runs, and returns the table."""
    results.prepare(path)
    results.commit()  # Of the code as it is now.
    for seed in seeds:
        for name in methods:
            for bits in BITS:
                config = Config(name, bits, seed, steps)
                if config not in results.read(path, Config):
                    done = train(config)
                    results.append(config, done, path, COMMAND)
                    print(config, done.loss, flush=True)
    return table(path, steps, seeds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        "examples.few_bits", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--steps", type=at_least(1), default=STEPS)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--methods", nargs="+", choices=RATES, default=[*RATES])
    parser.add_argument("--results", type=pathlib.Path, default=PATH)
    args = parser.parse_args()
    print(main(args.steps, tuple(args.seeds), tuple(args.methods), args.results))
