"""The runs: a search at a quarter of the length, then the rows with three seeds."""

import dataclasses

from examples.study.bench.config import Result
from examples.study.bench.missing import MissingError, next_run, result
from examples.study.equal.config import Config
from examples.study.equal.protocol import BRACKET, best_inside, best_of

Results = dict[Config, Result]
TASK = "sources"
TUNING = 1000  # The seed whose runs are measured on the validation set.
SEEDS = 0, 1, 2  # Those of the rows, measured on the test set.
MOST = 5  # Rates that are tried around the middle of a method.

# AdamW as it is often run, and betas and warm-up of the tuned one on *books*.
USUAL = {"warm_up": 0.1, "b1": 0.9, "b2": 0.95}
TUNED = {"warm_up": 0.344, "b1": 0.83, "b2": 0.991}
ADAMW = 0.002  # The middle of its rates.
DECAY = 0.1
FACTORS = 4, 16  # Of the other leaves' rate to that of the matrices.
# The middle of the methods' rates, and whether they have a second decay rate.
METHODS = {
    "muon": (0.02, False),
    "muoneq": (0.004, False),
    "soap": (0.003, True),
    "aro": (0.004, False),
}
ONE_RATE = "adamw, one rate"
ROWS = ONE_RATE, "adamw", *METHODS


@dataclasses.dataclass(frozen=True)
class Lengths:
    """Steps of the search, and of the rows."""

    search: int
    whole: int


def one_of_each() -> dict[str, Config]:
    """A configuration of each method; its numbers mean nothing."""
    adamw = _usual(steps=0)
    return {"adamw": adamw} | {name: _from(adamw, name) for name in METHODS}


def due(lengths: Lengths, results: Results) -> Config | None:
    """The next run; None if all are finished."""
    return next_run(_every_row, lengths, results)


def _every_row(lengths, results):
    """Reads all runs, seed by seed."""
    best = [tuned(name, lengths, results) for name in ROWS]
    for seed in SEEDS:
        for one in best:
            result(_whole(one, lengths, seed), results)


def row(name: str, lengths: Lengths, results: Results) -> dict[Config, Result]:
    """The finished runs of a row, by seed; empty before its settings are known."""
    try:
        best = tuned(name, lengths, results)
    except MissingError:
        return {}
    configs = [_whole(best, lengths, seed) for seed in SEEDS]
    return {config: results[config] for config in configs if config in results}


def _whole(config, lengths, seed):
    return dataclasses.replace(config, steps=lengths.whole, seed=seed)


def tuned(name: str, lengths: Lengths, results: Results) -> Config:
    """The best settings of a row at the length of the search.

    Raises:
        MissingError: If a run is missing.
    """
    if name == ONE_RATE:
        return _one_rate(lengths, results)
    if name == "adamw":
        return _adamw(lengths, results)
    return _method(name, _adamw(lengths, results), results)


def _one_rate(lengths, results):
    """AdamW with the usual betas and the best rate for all leaves."""
    return _rate(_usual(lengths.search), ("rate", "other_rate"), results)


def _usual(steps):
    others = {f"other_{key}": value for key, value in USUAL.items()}
    rates = {"rate": ADAMW, "other_rate": ADAMW}
    settings = {**rates, **USUAL, "decay": DECAY, **others}
    return Config(TASK, "adamw", steps, **settings, seed=TUNING)


def _adamw(lengths, results):
    """From there, one setting after the other: other leaves, betas, rate, decay."""
    best = _one_rate(lengths, results)
    higher = [_times(best, ("other_rate",), factor) for factor in FACTORS]
    best = _best([best, *higher], results)
    others = {f"other_{key}": value for key, value in TUNED.items()}
    best = _best([best, dataclasses.replace(best, **TUNED, **others)], results)
    best = _best([_times(best, ("rate",), f) for f in BRACKET], results)
    return _best([best, _times(best, ("decay",), 4)], results)


def _method(name, adamw, results):
    """A method's best rate, beside the other leaves, betas and warm-up of AdamW."""
    return _rate(_from(adamw, name), ("rate",), results)


def _from(adamw, name):
    """The middle of a method's rates; there rate times decay is AdamW's."""
    rate, has_b2 = METHODS[name]
    decay = _rounded(adamw.decay * adamw.rate / rate)
    given = {"method": name, "rate": rate, "decay": decay}
    return dataclasses.replace(adamw, **given, b2=adamw.b2 if has_b2 else None)


def _rate(middle, names, results):
    """The best of half, once and twice these rates, or of `MOST` around them."""
    scaled = lambda config, factor: _times(config, names, factor)
    tried = [scaled(middle, factor) for factor in BRACKET]
    return best_inside(tried, scaled, (TUNING,), MOST, results)


def _times(config, names, factor):
    values = {name: _rounded(getattr(config, name) * factor) for name in names}
    return dataclasses.replace(config, **values)


def _rounded(value):
    return float(f"{value:.4g}")


def _best(tried, results):
    return best_of(tried, (TUNING,), results)
