"""The command line: `train` and `compare`, with one-line error messages."""

import argparse
import dataclasses
import json
import pathlib
import re
import sys

from rich.console import Console

from examples.pretrain.config import SIZES
from examples.pretrain.errors import UserError
from examples.pretrain.interrupt import Interrupted, raised

BOUND = 2**31  # Of counts and seeds: JAX has int32.
LARGEST = 3e38  # Learning rate: float32.
DTYPES = ("float32", "bfloat16")
LAYERS = ("scan", "unroll")
SEPARATOR = re.compile(r",(?![^({]*[)}])")  # Not inside of brackets.


def main(arguments: list[str] | None = None) -> int:
    """Runs a command.

    Args:
        arguments: Arguments after the program's name; None for those of `sys.argv`.

    Returns:
        The exit code: 0 for success, 2 for a mistake in the input or a bad disk, 128
        and the signal's number (130 for Ctrl-C) if interrupted.
    """
    try:
        with raised():
            options = _parser().parse_args(arguments)
            _check(options)
            return options.command(options)
    except (UserError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except Interrupted as signal:
        remedy = "`train` continues with --resume, `compare` starts over"
        print(f"interrupted{signal.where}; {remedy}", file=sys.stderr)
        return 128 + signal.number


class _Parser(argparse.ArgumentParser):
    """A parser that raises `UserError` instead of printing its usage and exiting."""

    def error(self, message):
        raise UserError(f"{message} (--help lists the options).")


def _parser():
    parser = _Parser(
        prog="python -m examples.pretrain",
        description="Trains a LLaMA on real text under matrix optimizers.",
    )
    commands = parser.add_subparsers(title="commands", required=True)
    train = commands.add_parser("train", help="one run", description=_train.__doc__)
    train.set_defaults(command=_train)
    add = _adder(train)
    add(
        "--optimizer",
        "NAME",
        "adamw",
        "with options as in muoneq:mode=col; `help` lists all",
    )
    add("--learning-rate", "LR", 5e-3, "peak of the schedule", type=float)
    add("--seed", "N", 0, "seed of the weights and of the data order", type=int)
    add("--checkpoint-every", "STEPS", 100, type=int)
    add("--log-every", "STEPS", 10, type=int)
    train.add_argument("--resume", action="store_true", help="continue the run in OUT")
    train.add_argument(
        "--monitor",
        action="store_true",
        help="record updates and spectra of each layer in OUT/monitor.jsonl",
    )
    _add_shared(add, "runs/train")
    compare = commands.add_parser(
        "compare", help="several optimizers", description=_compare.__doc__
    )
    compare.set_defaults(command=_compare)
    add = _adder(compare)
    add(
        "--optimizers",
        "A,B,C",
        None,
        "as in --optimizer; muon@8e-3 has a learning rate of its own; default: all",
    )
    add("--learning-rates", "A,B,C", "2.5e-3,5e-3,1e-2", "of AdamW; see --sweep")
    compare.add_argument(
        "--sweep",
        choices=("adamw", "all"),
        default="adamw",
        help="adamw: the others run at AdamW's best rate; all: at every rate",
    )
    add("--seeds", "N", 1, "runs at each learning rate", type=int)
    _add_shared(add, "runs/compare")
    return parser


def _adder(parser):
    """Adds an option whose help ends with its default."""

    def add(flag, metavar, default, text="", **options):
        if default is not None:
            text = f"{text} (default: %(default)s)".strip()
        parser.add_argument(
            flag, metavar=metavar, default=default, help=text, **options
        )

    return add


def _add_shared(add, out):
    add("--size", "SIZE", "tiny", f"one of {', '.join(SIZES)}")
    add("--data", "DATA", "books", "books, c4 (streamed) or a text file")
    add("--tokenizer", "NAME", None, "a Hugging Face tokenizer; default: bytes")
    add("--out", "DIR", pathlib.Path(out), type=pathlib.Path)
    add("--steps", "N", 400, "number of updates", type=int)
    add("--batch", "N", 16, "windows per update", type=int)
    add("--accumulate", "N", 1, "micro-batches per update", type=int)
    add("--context", "N", None, "tokens in a window; default: the size's", type=int)
    add("--eval-every", "STEPS", 20, type=int)
    add("--validation", "N", 128, "windows of an evaluation", type=int)
    add(
        "--dtype", None, None, "of matrix products; default: the size's", choices=DTYPES
    )
    add("--layers", None, None, "default: the size's", choices=LAYERS)


def _check(options):
    """Checks with clearer messages than those of argparse."""
    if options.size not in SIZES:
        raise UserError(
            f"There is no size {options.size!r}; choose from {', '.join(SIZES)}."
        )
    counts = ("steps", "batch", "accumulate", "context", "eval_every", "validation")
    for name in (*counts, "seeds", "checkpoint_every", "log_every"):
        value, flag = getattr(options, name, None), "--" + name.replace("_", "-")
        if value is not None and value < 1:
            raise UserError(f"{flag} must be 1 or more, got {value}; raise it.")
        if value is not None and value >= BOUND:
            raise UserError(f"{flag} must be below {BOUND}, got {value}; lower it.")
    seed = getattr(options, "seed", 0)
    if not 0 <= seed < BOUND:
        raise UserError(
            f"--seed must be from 0 to {BOUND - 1}, got {seed}; choose another."
        )


def _windows(options, seed):
    from examples.pretrain.windows import Windows

    return Windows(
        context=options.context or SIZES[options.size].context,
        batch=options.batch,
        accumulate=options.accumulate,
        validation=options.validation,
        seed=seed,
    )


def _open(options, seed):
    from examples.pretrain.data import open_data

    return open_data(options.data, _windows(options, seed), options.tokenizer)


def _model(options, vocab):
    """The model of `--size`, with the vocabulary of the data."""
    config = dataclasses.replace(SIZES[options.size], vocab=vocab)
    if options.context:
        config = dataclasses.replace(config, context=options.context)
    if options.dtype:
        config = dataclasses.replace(config, dtype=options.dtype)
    if options.layers:
        config = dataclasses.replace(config, scan=options.layers == "scan")
    return config


def _shared(options, checksum):
    names = ("steps", "batch", "accumulate", "data", "tokenizer", "eval_every")
    names += ("validation",)
    return {name: getattr(options, name) for name in names} | {"checksum": checksum}


def _positive_rate(text):
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate <= LARGEST:
        raise UserError(f"{text!r} is not a learning rate; give a number such as 3e-3.")
    return rate


def _train(options):
    """Trains one model, with metrics and checkpoints in the output directory.

    Ctrl-C and SIGTERM end it after a checkpoint; --resume continues it.
    """
    from examples.pretrain import train as training
    from examples.pretrain.optimizers import OPTIMIZERS, find
    from examples.pretrain.options import listing

    if options.optimizer == "help":
        print(listing(OPTIMIZERS))
        return 0
    find(options.optimizer)
    rate = _positive_rate(options.learning_rate)
    data = _open(options, options.seed)
    run = training.Run(
        model=_model(options, data.vocab),
        optimizer=options.optimizer,
        learning_rate=rate,
        seed=options.seed,
        **_shared(options, data.checksum),
    )
    books = training.Bookkeeping(
        options.out,
        options.resume,
        options.checkpoint_every,
        options.log_every,
        options.monitor,
    )
    loss = training.train(run, data, books)
    print(f"validation loss {loss:.4f}; metrics in {options.out / 'metrics.jsonl'}")
    return 0


def _compare(options):
    """Trains under several optimizers; prints a table, writes a page, PNG and JSON."""
    from examples.pretrain import compare, plot, protocol, report
    from examples.pretrain.optimizers import OPTIMIZERS, find
    from examples.pretrain.options import listing
    from examples.study.report import comparisons, page

    if options.optimizers == "help":
        print(listing(OPTIMIZERS))
        return 0
    given = SEPARATOR.split(options.optimizers or ",".join(OPTIMIZERS))
    names, own_rates = ["adamw"], {}
    for one in given:
        name, at, rate = one.partition("@")
        find(name)
        names.append(name)
        if at:
            own_rates[name] = _positive_rate(rate)
    rates = dict.fromkeys(map(_positive_rate, options.learning_rates.split(",")))
    first = _open(options, 0)
    plan = compare.Comparison(
        model=_model(options, first.vocab),
        optimizers=tuple(dict.fromkeys(names)),
        own_rates=own_rates,
        learning_rates=tuple(rates),
        sweep=options.sweep,
        seeds=options.seeds,
        **_shared(options, first.checksum),
    )
    with _claimed(options.out, plan):
        curves = compare.compare(plan, lambda seed: _open(options, seed))
        rows = protocol.summarize(curves)
        console = Console()
        report.show(plan, rows, console)
        plot.draw(curves, rows, options.out / "curves.png")
        compare.write_results(options.out / "results.json", plan, curves, rows)
        page.write([comparisons.section(options.out)], options.out / "report.html")
    print(f"report in {options.out / 'report.html'}")
    return 0


def _claimed(out, plan):
    """Refuses a directory that holds another comparison or run."""
    from examples.pretrain.directory import claimed, recorded

    same = json.loads(json.dumps(dataclasses.asdict(plan)))
    hint = "it holds another comparison or run; delete it or choose another --out"
    return claimed(out, same, resume=recorded(out) == same, hint=hint)
