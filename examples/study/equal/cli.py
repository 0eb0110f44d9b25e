"""The command line of the comparison with equal budgets."""

import argparse
import dataclasses
import math
import os
import pathlib

from examples.pretrain.cli import run
from examples.pretrain.errors import UserError
from examples.study.bench import results
from examples.study.bench.commands import prepare
from examples.study.bench.tasks import TASKS
from examples.study.bench.workers import run_all
from examples.study.equal import orders, own, plot, search, space
from examples.study.equal.config import PATH, Config
from examples.study.equal.protocol import LENGTHS, Entry, due, entries, left
from examples.study.equal.table import table

PROGRAM = "python -m examples.study equal"


def main(arguments: list[str] | None = None) -> int:
    """Runs a command; returns the exit code, as `pretrain.cli.run` has it."""
    remedy = "run the same command again to continue"
    return run(lambda options: options.command(options), _parser(), arguments, remedy)


def _parser():
    parser = argparse.ArgumentParser(prog=PROGRAM, description=__doc__)
    commands = parser.add_subparsers(title="commands", required=True)
    every = {"run": _run, "orders": _orders, "search": _search, "table": _table}
    for name, command in (every | {"try": _try}).items():
        one = commands.add_parser(
            name, help=command.__doc__, description=command.__doc__
        )
        one.set_defaults(command=command)
        path = "runs/equal.jsonl" if command is _try else PATH
        one.add_argument("--results", type=pathlib.Path, default=path)
        if command is not _table:
            one.add_argument("--processes", type=int, default=os.cpu_count() or 1)
        if command in (_run, _table):
            one.add_argument("tasks", nargs="+", choices=LENGTHS, metavar="TASK")
            known = "factors of the task's steps; default: all of the task"
            one.add_argument(
                "--lengths", nargs="+", type=int, metavar="FACTOR", help=known
            )
        if command is _run:
            known = "only these methods; default: all of the task"
            one.add_argument("--methods", nargs="+", help=known)
        if command is _try:
            _add_own(one)
    return parser


def _add_own(parser):
    known = "a function from learning rate to optimizer, as in my_module:make"
    parser.add_argument("functions", nargs="+", metavar="MODULE:FUNCTION", help=known)
    tasks = [*LENGTHS]
    parser.add_argument("--tasks", nargs="+", choices=tasks, default=tasks[:1])
    known = "the middle of the learning rates; default: that of AdamW"
    parser.add_argument("--rate", type=float, help=known)


def _run(options):
    """Does the missing runs of tasks."""
    rows = [row for task in options.tasks for row in _rows(task, options)]
    _do(rows, f"run {' '.join(options.tasks)}", options)
    _table(options)


def _try(options):
    """Compares optimizers of your own with the rows of the comparison."""
    if options.results.resolve() == PATH.resolve():
        raise UserError("--results must be a file of your own, not the study's.")
    if options.rate is not None and not 0 < options.rate < math.inf:
        raise UserError(f"--rate must be positive, got {options.rate}.")
    rows = [
        own.entry(task, function, options.rate)
        for task in dict.fromkeys(options.tasks)
        for function in dict.fromkeys(options.functions)
    ]
    prepare(options)
    read = lambda: own.read(options.results)
    _do_at_once(rows, f"try {' '.join(options.functions)}", options, read)
    found = read()
    for task in dict.fromkeys(options.tasks):
        print(f"{task}: {TASKS[task].title}\n\n{table(task, 1, found)}\n")
        picture = options.results.with_name(f"{options.results.stem}_{task}.png")
        plot.draw(plot.shown(task, 1, found), picture)
        print(f"picture in {picture}")
    _write_page(options)


def _write_page(options):
    from examples.study.report.cli import write

    page = options.results.with_suffix(".html")
    write([f"equal:{task}" for task in options.tasks], page, options.results)
    print(f"report in {page}")


def _rows(task, options):
    """The rows of a task that are asked for."""
    for name in options.methods or ():
        if name not in (known := space.methods(task)):
            known = ", ".join(known)
            raise UserError(f"--methods of {task} must be of {known}, got {name}.")
    rows = entries(task, _lengths(task, options))
    return [row for row in rows if not options.methods or row.method in options.methods]


def _orders(options):
    """Does the missing runs of the papers' orders."""
    _in_rounds(orders, "orders", options)
    print(f"\n{orders.looks(results.read(options.results, Config))}")


def _search(options):
    """Does the missing runs of the search, round after round."""
    _in_rounds(search, "search", options)


def _in_rounds(part, command, options):
    """Does missing runs until they ask for no others, and prints what they say."""
    read = lambda: results.read(options.results, Config)
    while _do(part.entries(read()), command, options):
        pass
    print(part.report(read()))


def _do(rows, command, options):
    """Does missing runs; returns whether there were any.

    What several rows begin from comes first, so that no two processes do the same run:
    the other leaves, and methods without options or additions.
    """
    prepare(options)
    others = [Entry(row.task) for row in rows]
    bases = [
        dataclasses.replace(row, method=base, seeds=())
        for row in rows
        if (base := space.base_of(row.method)) != row.method
    ]
    read = lambda: results.read(options.results, Config)
    parts = others, bases, rows
    return any([_do_at_once(part, command, options, read) for part in parts])


def _do_at_once(rows, command, options, read):
    found = read()
    missing = [entry for entry in dict.fromkeys(rows) if due(entry, found)]
    if missing:
        count = lambda: left(missing, read())
        program = "examples.study.equal.runs"
        arguments = options.results, options.processes, f"{PROGRAM} {command}"
        run_all(missing, *arguments, count, program)
    return bool(missing)


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
