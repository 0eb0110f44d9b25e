"""The command line of the comparison on a GPU."""

import argparse
import dataclasses
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
            known = "a small model on the shipped books, as a trial"
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
    results.prepare(options.results)
    size = TINY if options.tiny else FULL
    if options.attention:
        model = dataclasses.replace(size.model, attention=options.attention)
        size = dataclasses.replace(size, model=model)
    if size.model.attention == "cudnn" and jax.default_backend() != "gpu":
        raise UserError(
            "The model's attention is cuDNN's, which needs a GPU; give "
            "--attention xla, or --tiny for a trial."
        )
    parts = _books() if options.tiny else corpus.read(options.folder)
    runner = Runner(list(protocol.one_of_each()), text(parts, size), size)
    origin = {"machine": jax.devices()[0].device_kind}
    if options.commit:
        origin["commit"] = options.commit
    pace: dict[str, float] = {}  # Seconds a step, of the methods that have run.
    while config := protocol.due(size.lengths, table.read(options.results)):
        guess = pace.get(config.method, max(pace.values(), default=0.0))
        if time.monotonic() + guess * config.steps > end:
            break
        found = runner.run(config)
        pace[config.method] = 1.1e-3 * found.milliseconds
        results.append(config, found, options.results, f"{PROGRAM} run", **origin)
        print(_line(config, found), flush=True)
    runner.close()


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
