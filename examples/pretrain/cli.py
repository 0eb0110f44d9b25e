"""The command line, with one-line error messages.

`examples.study compare` has the same options for model, data and length.
"""

import argparse
import dataclasses
import pathlib
import sys
from collections.abc import Callable

from examples.pretrain.config import SIZES
from examples.pretrain.errors import Interrupted, UserError, raised

BOUND = 2**31  # Of counts and seeds: JAX has int32.
LARGEST = 3e38  # Learning rate: float32.
DTYPES = ("float32", "bfloat16")
LAYERS = ("scan", "unroll")


def main(arguments: list[str] | None = None) -> int:
    """Trains one model.

    Args:
        arguments: Arguments after the program's name; None for those of `sys.argv`.

    Returns:
        The exit code: 0 for success, 2 for a mistake in the input or a bad disk, 128
        and the signal's number (130 for Ctrl-C) if interrupted.
    """
    return run(_train, _parser(), arguments, "--resume continues the run")


def run(
    command: Callable[[argparse.Namespace], None],
    parser: argparse.ArgumentParser,
    arguments: list[str] | None,
    remedy: str,
) -> int:
    """Runs a command with its options; every error becomes one line.

    Args:
        command: Function of the options.
        parser: Reads them.
        arguments: Arguments after the program's name; None for those of `sys.argv`.
        remedy: What follows an interruption.

    Returns:
        The exit code, as `main` has it.
    """
    try:
        with raised():
            options = parser.parse_args(arguments)
            command(options)
    except (UserError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except Interrupted as signal:
        print(f"interrupted{signal.where}; {remedy}", file=sys.stderr)
        return 128 + signal.number
    return 0


class Parser(argparse.ArgumentParser):
    """A parser that raises `UserError` instead of printing its usage and exiting."""

    def error(self, message):
        raise UserError(f"{message} (--help lists the options).")


def _parser():
    parser = Parser(prog="python -m examples.pretrain", description=_train.__doc__)
    add = adder(parser)
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
    parser.add_argument("--resume", action="store_true", help="continue the run in OUT")
    parser.add_argument(
        "--monitor",
        action="store_true",
        help="record updates and spectra of each layer in OUT/monitor.jsonl",
    )
    add_shared(add, "runs/train")
    return parser


def adder(parser):
    """Adds an option whose help ends with its default."""

    def add(flag, metavar, default, text="", **options):
        if default is not None:
            text = f"{text} (default: %(default)s)".strip()
        parser.add_argument(
            flag, metavar=metavar, default=default, help=text, **options
        )

    return add


def add_shared(add, out):
    """Adds the options of model, data and length."""
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


def check(options):
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
    from examples.pretrain.data import Windows

    return Windows(
        context=options.context or SIZES[options.size].context,
        batch=options.batch,
        accumulate=options.accumulate,
        validation=options.validation,
        seed=seed,
    )


def opened(options, seed):
    """The data of `--data`, cut into windows, in the order of a seed."""
    from examples.pretrain.data import open_data

    return open_data(options.data, _windows(options, seed), options.tokenizer)


def model_of(options, vocab):
    """The model of `--size`, with the vocabulary of the data."""
    config = dataclasses.replace(SIZES[options.size], vocab=vocab)
    if options.context:
        config = dataclasses.replace(config, context=options.context)
    if options.dtype:
        config = dataclasses.replace(config, dtype=options.dtype)
    if options.layers:
        config = dataclasses.replace(config, scan=options.layers == "scan")
    return config


def shared(options, checksum):
    """Settings of length and data, for the record of a run."""
    names = ("steps", "batch", "accumulate", "data", "tokenizer", "eval_every")
    names += ("validation",)
    return {name: getattr(options, name) for name in names} | {"checksum": checksum}


def at_least(least):
    """The type of an option of argparse that counts."""

    def count(text):
        if (number := int(text)) < least:
            raise argparse.ArgumentTypeError(f"must be {least} or more, got {text}")
        return number

    return count


def positive_rate(text):
    """A learning rate from a word of the command line."""
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
    check(options)
    from examples.pretrain import train as training
    from examples.pretrain.optimizers import OPTIMIZERS, find, version
    from examples.pretrain.options import listing

    if options.optimizer == "help":
        print(listing(OPTIMIZERS))
        return
    find(options.optimizer)
    rate = positive_rate(options.learning_rate)
    data = opened(options, options.seed)
    run = training.Run(
        model=model_of(options, data.vocab),
        optimizer=options.optimizer,
        learning_rate=rate,
        seed=options.seed,
        version=version(options.optimizer),
        **shared(options, data.checksum),
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
