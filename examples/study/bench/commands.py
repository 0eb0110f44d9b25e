"""The command line of a study that has the commands `run` and `table`."""

import argparse
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from examples.pretrain.cli import run as run_command
from examples.pretrain.errors import UserError
from examples.study.bench import results
from examples.study.bench.workers import run_all


def main(
    program: str,
    description: str | None,
    run: Callable[[Any], None],
    table: Callable[[Any], None],
    path: pathlib.Path,
    arguments: list[str] | None,
) -> int:
    """Runs a command; returns the exit code, as `pretrain.cli.run` has it.

    Args:
        program: What is called.
        description: Of the study.
        run: Does the missing runs; its options have ``results`` and ``processes``.
        table: Prints the tables; its options have ``results``.
        path: The file of results that is the default.
        arguments: Arguments after the program's name; None for those of `sys.argv`.
    """
    parser = argparse.ArgumentParser(prog=program, description=description)
    commands = parser.add_subparsers(title="commands", required=True)
    for name, command in {"run": run, "table": table}.items():
        said = command.__doc__
        one = commands.add_parser(name, help=said, description=said)
        one.set_defaults(command=command)
        one.add_argument("--results", type=pathlib.Path, default=path)
        if command is run:
            count = os.cpu_count() or 1
            one.add_argument("--processes", type=int, default=count)
    remedy = "run the same command again to continue"
    return run_command(lambda o: o.command(o), parser, arguments, remedy)


def prepare(options: Any) -> None:
    """Checks the options of `run` and makes the folder of the results.

    Raises:
        UserError: If there are no processes.
    """
    if options.processes < 1:
        raise UserError(f"--processes must be positive, got {options.processes}.")
    results.prepare(options.results)


def run_missing(
    rows: Sequence[Any],
    protocol: Any,
    read: Callable[[], Any],
    options: Any,
    command: str,
) -> None:
    """Does the runs that rows still lack.

    Args:
        rows: Rows of a study.
        protocol: Its module, with ``due`` and ``left``; ``runs`` is in its package.
        read: Reads the results.
        options: Those of `run`.
        command: Stands in the results.
    """
    if missing := [row for row in rows if protocol.due(row, read())]:
        left = lambda: protocol.left(missing, read())
        runs = f"{protocol.__package__}.runs"
        run_all(missing, options.results, options.processes, command, left, runs)
