"""The command line: `train` and `compare`, and mistakes answered in one line."""

import argparse
import dataclasses
import json
import pathlib
import sys

from rich.console import Console

from examples.pretrain.config import SIZES
from examples.pretrain.errors import UserError


def main(arguments: list[str] | None = None) -> int:
    """Runs a command.

    Args:
        arguments: Those after the program's name; `sys.argv` if None.

    Returns:
        The exit code: 0, 2 for a mistake in the input, 130 when interrupted.
    """
    try:
        options = _parser().parse_args(arguments)
        _check(options)
        return options.command(options)
    except UserError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; `train` continues with --resume", file=sys.stderr)
        return 130


class _Parser(argparse.ArgumentParser):
    """Raises instead of printing the usage and exiting."""

    def error(self, message):
        raise UserError(f"{message} (--help lists what there is).")


def _parser():
    parser = _Parser(prog="python -m examples.pretrain", description=__doc__)
    commands = parser.add_subparsers(title="commands", required=True)
    train = commands.add_parser("train", help="one run", description=_train.__doc__)
    train.set_defaults(command=_train, batch=16, steps=400, eval_every=20)
    train.add_argument("--optimizer", default="adamw", metavar="NAME")
    train.add_argument("--learning-rate", type=float, default=5e-3, metavar="LR")
    train.add_argument("--seed", type=int, default=0)
    train.add_argument("--resume", action="store_true", help="continue the run in OUT")
    train.add_argument("--checkpoint-every", type=int, default=100, metavar="STEPS")
    train.add_argument("--log-every", type=int, default=10, metavar="STEPS")
    _add_shared(train, "runs/train")
    compare = commands.add_parser(
        "compare", help="several optimizers", description=_compare.__doc__
    )
    compare.set_defaults(command=_compare)
    compare.add_argument("--optimizers", metavar="A,B,C", help="default: all of them")
    compare.add_argument(
        "--learning-rates",
        default="2.5e-3,5e-3,1e-2",
        metavar="A,B,C",
        help="AdamW's (default: %(default)s)",
    )
    compare.add_argument(
        "--sweep",
        choices=("adamw", "all"),
        default="adamw",
        help="adamw: the others run at AdamW's best rate; all: at every rate",
    )
    compare.add_argument("--seeds", type=int, default=1, metavar="N")
    _add_shared(compare, "runs/compare")
    return parser


def _add_shared(parser, out):
    add = parser.add_argument
    add("--size", default="tiny", help=f"one of {', '.join(SIZES)}")
    add("--data", default="books", help="books, c4 (streamed) or a text file")
    add("--tokenizer", metavar="NAME", help="of Hugging Face; default: bytes")
    add("--out", type=pathlib.Path, default=pathlib.Path(out), metavar="DIR")
    add("--steps", type=int, default=400)
    add("--batch", type=int, default=16, help="windows in an update")
    add("--accumulate", type=int, default=1, help="micro-batches in an update")
    add("--context", type=int, help="tokens in a window; default: the size's")
    add("--dtype", choices=("float32", "bfloat16"), help="compute; default: the size's")
    add("--layers", choices=("scan", "unroll"), help="default: the size's")
    add("--eval-every", type=int, default=20, metavar="STEPS")
    add("--validation", type=int, default=64, help="windows of an evaluation")


def _check(options):
    """What argparse cannot say in its own words."""
    if options.size not in SIZES:
        raise UserError(
            f"There is no size {options.size!r}; choose from {', '.join(SIZES)}."
        )
    counts = ("steps", "batch", "accumulate", "context", "eval_every", "validation")
    for name in (*counts, "seeds", "checkpoint_every", "log_every"):
        value = getattr(options, name, None)
        if value is not None and value < 1:
            flag = "--" + name.replace("_", "-")
            raise UserError(f"{flag} must be 1 or more, got {value}; raise it.")


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
    """The size asked for, with the vocabulary of the data."""
    config = dataclasses.replace(SIZES[options.size], vocab=vocab)
    if options.context:
        config = dataclasses.replace(config, context=options.context)
    if options.dtype:
        config = dataclasses.replace(config, dtype=options.dtype)
    if options.layers:
        config = dataclasses.replace(config, scan=options.layers == "scan")
    return config


def _shared(options):
    names = ("steps", "batch", "accumulate", "data", "tokenizer", "eval_every")
    return {name: getattr(options, name) for name in names}


def _positive_rate(text):
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate < float("inf"):
        raise UserError(f"{text!r} is no learning rate; give a number such as 3e-3.")
    return rate


def _train(options):
    """Trains one model, with metrics and checkpoints in the output directory."""
    from examples.pretrain import train as training
    from examples.pretrain.optimizers import find

    find(options.optimizer)
    rate = _positive_rate(options.learning_rate)
    data = _open(options, options.seed)
    run = training.Run(
        model=_model(options, data.vocab),
        optimizer=options.optimizer,
        learning_rate=rate,
        seed=options.seed,
        **_shared(options),
    )
    books = training.Bookkeeping(
        options.out, options.resume, options.checkpoint_every, options.log_every
    )
    loss = training.train(run, data, books)
    print(f"validation loss {loss:.4f}; metrics in {options.out / 'metrics.jsonl'}")
    return 0


def _compare(options):
    """Trains under several optimizers; prints a table, writes a PNG and a JSON."""
    from examples.pretrain import compare, plot, protocol, report
    from examples.pretrain.optimizers import OPTIMIZERS, find

    names = options.optimizers.split(",") if options.optimizers else list(OPTIMIZERS)
    for name in names:
        find(name)
    rates = dict.fromkeys(map(_positive_rate, options.learning_rates.split(",")))
    first = _open(options, 0)
    plan = compare.Comparison(
        model=_model(options, first.vocab),
        optimizers=tuple(dict.fromkeys(("adamw", *names))),
        learning_rates=tuple(rates),
        sweep=options.sweep,
        seeds=options.seeds,
        **_shared(options),
    )
    _claim_comparison(options.out, plan)
    curves = compare.compare(plan, lambda seed: _open(options, seed))
    rows = protocol.summarize(curves)
    console = Console()
    report.show(plan, rows, console)
    plot.draw(curves, rows, options.out / "curves.png")
    compare.write_results(options.out / "results.json", plan, curves, rows)
    print(f"curves in {options.out / 'curves.png'}, numbers in results.json beside it")
    return 0


def _claim_comparison(out, plan):
    """The same comparison may be repeated in place; another one may not."""
    from examples.pretrain.train import claim

    record = out / "run.json"
    same = json.loads(json.dumps(dataclasses.asdict(plan)))
    repeated = record.exists() and json.loads(record.read_text()) == same
    hint = "it holds something else than this comparison; choose another --out"
    claim(out, same, resume=repeated, hint=hint)
