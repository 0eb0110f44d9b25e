"""The command line of the study of unseen tasks."""

import argparse
import os
import pathlib

from examples.pretrain.cli import run
from examples.pretrain.errors import UserError
from examples.study.bench import results
from examples.study.bench.workers import run_all
from examples.study.unseen import protocol, table
from examples.study.unseen.protocol import CHOOSING, CONFIRMING

PROGRAM = "python -m examples.study unseen"


def main(arguments: list[str] | None = None) -> int:
    """Runs a command; returns the exit code, as `pretrain.cli.run` has it."""
    remedy = "run the same command again to continue"
    return run(lambda options: options.command(options), _parser(), arguments, remedy)


def _parser():
    parser = argparse.ArgumentParser(prog=PROGRAM, description=__doc__)
    commands = parser.add_subparsers(title="commands", required=True)
    for name, command in {"run": _run, "table": _table}.items():
        one = commands.add_parser(
            name, help=command.__doc__, description=command.__doc__
        )
        one.set_defaults(command=command)
        one.add_argument("--results", type=pathlib.Path, default=table.PATH)
        if command is _run:
            count = os.cpu_count() or 1
            one.add_argument("--processes", type=int, default=count)
    return parser


def _run(options):
    """Does the missing runs."""
    if options.processes < 1:
        raise UserError(f"--processes must be positive, got {options.processes}.")
    results.prepare(options.results)
    read = lambda: table.read(options.results)
    tasks = [*CHOOSING, *CONFIRMING]
    if missing := [task for task in tasks if protocol.due(task, read())]:
        left = lambda: protocol.left(missing, read())
        arguments = options.results, options.processes, f"{PROGRAM} run", left
        run_all(missing, *arguments, "examples.study.unseen.runs")
    _table(options)


def _table(options):
    """Prints the tables."""
    found = table.read(options.results)
    print(f"{table.rules(found)}\n\n{table.tasks(found)}")
