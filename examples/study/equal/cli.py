"""The command line of the comparison with equal budgets."""

import argparse
import os
import pathlib

from examples.pretrain.cli import run
from examples.pretrain.errors import UserError
from examples.study.bench import results
from examples.study.bench.workers import run_all
from examples.study.equal import orders
from examples.study.equal.config import Config
from examples.study.equal.protocol import LENGTHS, Entry, due, entries, left
from examples.study.equal.table import PATH, table

PROGRAM = "python -m examples.study equal"


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
        one.add_argument("tasks", nargs="+", choices=LENGTHS, metavar="TASK")
        known = "factors of the task's steps; default: all of the task"
        one.add_argument("--lengths", nargs="+", type=int, metavar="FACTOR", help=known)
        one.add_argument("--results", type=pathlib.Path, default=PATH)
        if command is _run:
            known = "only these methods; default: all of the task"
            one.add_argument("--methods", nargs="+", help=known)
            known = "the papers' orders, on books, in place of the comparison"
            one.add_argument("--orders", action="store_true", help=known)
            one.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    return parser


def _run(options):
    """Does the missing runs of tasks."""
    if options.processes < 1:
        raise UserError(f"--processes must be positive, got {options.processes}.")
    rows = [row for task in options.tasks for row in _rows(task, options)]
    results.prepare(options.results)
    _do([Entry(task) for task in options.tasks], options)
    _do(rows, options)
    if options.orders:
        print(orders.report(results.read(options.results, Config)))
    else:
        _table(options)


def _rows(task, options):
    """The rows of a task that are asked for."""
    if options.orders and (task != orders.TASK or options.lengths):
        raise UserError(
            f"--orders is for {orders.TASK} at its own length, without --lengths; got "
            f"{task}, {options.lengths}."
        )
    rows = (
        orders.entries() if options.orders else entries(task, _lengths(task, options))
    )
    known = list(dict.fromkeys(row.method for row in rows))
    for name in options.methods or ():
        if name not in known:
            known = ", ".join(known)
            raise UserError(f"--methods of {task} must be of {known}, got {name}.")
    return [row for row in rows if not options.methods or row.method in options.methods]


def _do(rows, options):
    found = results.read(options.results, Config)
    rows = [entry for entry in rows if due(entry, found)]
    if rows:
        command = f"{PROGRAM} run {' '.join(options.tasks)}"
        count = lambda: left(rows, results.read(options.results, Config))
        program = "examples.study.equal.runs"
        run_all(rows, options.results, options.processes, command, count, program)


def _lengths(task, options):
    for length in options.lengths or ():
        if length not in LENGTHS[task]:
            known = ", ".join(map(str, LENGTHS[task]))
            raise UserError(f"--lengths of {task} must be of {known}, got {length}.")
    return options.lengths or LENGTHS[task]


def _table(options):
    """Prints the tables of tasks."""
    found = results.read(options.results, Config)
    for task in options.tasks:
        for length in _lengths(task, options):
            print(f"{task}, length {length}\n\n{table(task, length, found)}\n")
