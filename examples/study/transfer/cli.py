"""The command line of the comparison on a GPU."""

import argparse
import dataclasses
import os
import pathlib
import time

import jax
import numpy as np

from examples.pretrain.cli import run
from examples.pretrain.errors import UserError
from examples.study.bench import results
from examples.study.device.training import tokens
from examples.study.transfer import corpus, protocol, table
from examples.study.transfer.training import FULL, TINY, Runner, text

PROGRAM = "python -m examples.study transfer"
FOLDER = pathlib.Path("sources")


def main(arguments: list[str] | None = None) -> int:
    """Runs a command; returns the exit code, as `pretrain.cli.run` has it."""
    remedy = "run the same command again to continue"
    return run(lambda options: options.command(options), _parser(), arguments, remedy)


def _parser():
    parser = argparse.ArgumentParser(prog=PROGRAM, description=__doc__)
    commands = parser.add_subparsers(title="commands", required=True)
    for name, command in {"text": _text, "run": _run, "table": _table}.items():
        one = commands.add_parser(
            name, help=command.__doc__, description=command.__doc__
        )
        one.set_defaults(command=command)
        if command is not _text:
            one.add_argument("--results", type=pathlib.Path, default=table.PATH)
        if command is not _table:
            one.add_argument("--folder", type=pathlib.Path, default=FOLDER)
        if command is _run:
            known = "start no run that would end later"
            one.add_argument("--seconds", type=float, default=np.inf, help=known)
            known = "of the code, for the records of a copy without git"
            one.add_argument("--commit", help=known)
            known = "how attention is computed; cudnn needs a GPU"
            one.add_argument("--attention", choices=("cudnn", "xla"), help=known)
            known = "a small model on the shipped books, as a trial; needs --results"
            one.add_argument("--tiny", action="store_true", help=known)
    return parser


def _text(options):
    """Downloads the packages and writes the text."""
    options.folder.mkdir(parents=True, exist_ok=True)
    for part, digest in corpus.make(options.folder).items():
        print(f"{part} {digest}")


def _run(options):
    """Does the missing runs, on the device of this machine."""
    end = time.monotonic() + options.seconds
    if options.tiny and options.results == table.PATH:
        raise UserError("--tiny needs --results, a file of your own for its runs.")
    size = TINY if options.tiny else FULL
    if options.attention:
        model = dataclasses.replace(size.model, attention=options.attention)
        size = dataclasses.replace(size, model=model)
    if size.model.attention == "cudnn" and jax.default_backend() != "gpu":
        raise UserError(
            "The model's attention is cuDNN's, which needs a GPU; give "
            "--attention xla, or --tiny for a trial."
        )
    results.prepare(options.results)
    parts = _books() if options.tiny else corpus.read(options.folder)
    origin = {"machine": jax.devices()[0].device_kind}
    if options.commit:
        origin["commit"] = options.commit
    command = f"{PROGRAM} run" + _flags()
    with Runner(text(parts, size), size) as runner:
        while config := _next(size, options.results, end):
            found = runner.run(config)
            results.append(config, found, options.results, command, **origin)
            print(_line(config, found), flush=True)


def _flags():
    """What the compiler was told, for the records."""
    flags = os.environ.get("XLA_FLAGS")
    return f" with XLA_FLAGS={flags}" if flags else ""


def _next(size, path, end):
    """The next run, if it ends in time by the pace of the runs so far."""
    found = table.read(path)
    config = protocol.due(size.lengths, found)
    if config is None:
        return None
    pace = {c.method: 1.1e-3 * r.milliseconds for c, r in found.items()}
    guess = pace.get(config.method, max(pace.values(), default=0.0))
    return config if time.monotonic() + guess * config.steps <= end else None


def _books():
    train, rest = tokens()
    half = len(rest) // 2
    return {"train": train, "validation": rest[:half], "test": rest[half:]}


def _line(config, found):
    c, loss = config, "failed" if found.loss is None else f"{found.loss:.4f}"
    given = f"rate {c.rate:g}, others {c.other_rate:g}, b1 {c.b1:g}, decay {c.decay:g}"
    return (
        f"{c.method} {c.steps} steps, seed {c.seed}, {given}: {loss}, "
        f"{found.milliseconds:.2f} ms, {found.seconds:.1f} s"
    )


def _table(options):
    """Prints the tables."""
    found = table.read(options.results)
    for report in (table.settings, table.report):
        print(f"{report(found)}\n")
