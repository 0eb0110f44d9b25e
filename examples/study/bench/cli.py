"""The command line of the study."""

import argparse
import os
import pathlib

from examples.pretrain.cli import run
from examples.pretrain.errors import UserError
from examples.study.bench import results, signals, spectra, times
from examples.study.bench.comparison import all_methods
from examples.study.bench.plot import draw
from examples.study.bench.search import expected, is_finished
from examples.study.bench.studies import STUDIES
from examples.study.bench.table import NAMES, table, write
from examples.study.bench.tasks import MAIN
from examples.study.bench.workers import run_all


def main(arguments: list[str] | None = None) -> int:
    """Runs a command; returns the exit code, as `pretrain.cli.run` has it."""
    remedy = "run the same command again to continue"
    return run(lambda options: options.command(options), _parser(), arguments, remedy)


def _parser():
    parser = argparse.ArgumentParser(
        prog="python -m examples.study bench", description=__doc__
    )
    commands = parser.add_subparsers(title="commands", required=True)

    def add(name, command, nargs, known=_study):
        one = commands.add_parser(
            name, help=command.__doc__, description=command.__doc__
        )
        one.set_defaults(command=command)
        one.add_argument("studies", nargs=nargs, type=known, metavar="STUDY")
        one.add_argument("--results", type=pathlib.Path, default=results.PATH)
        return one

    run = add("run", _run, "+")
    run.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    show = add("table", _table, "*", _table_name)
    show.add_argument("--write", action="store_true", help="into the pages and README")
    clock = commands.add_parser("time", help=_time.__doc__, description=_time.__doc__)
    clock.set_defaults(command=_time)
    clock.add_argument("tasks", nargs="*", type=_task, metavar="TASK")
    clock.add_argument("--results", type=pathlib.Path, default=times.PATH)
    values = commands.add_parser(
        "spectra", help=_spectra.__doc__, description=_spectra.__doc__
    )
    values.set_defaults(command=_spectra)
    values.add_argument("--results", type=pathlib.Path, default=spectra.PATH)
    rounding = commands.add_parser(
        "signals", help=_signals.__doc__, description=_signals.__doc__
    )
    rounding.set_defaults(command=_signals)
    add("plot", _plot, "+").add_argument("--out", type=pathlib.Path)
    return parser


def _study(name):
    if name not in STUDIES:
        known = ", ".join(STUDIES)
        raise argparse.ArgumentTypeError(f"no study {name!r}; choose from {known}")
    return name


def _task(name):
    if name not in MAIN:
        known = ", ".join(MAIN)
        raise argparse.ArgumentTypeError(f"no task {name!r}; choose from {known}")
    return name


def _table_name(name):
    return name if name in NAMES else _study(name)


def _run(options):
    """Does the missing runs of studies."""
    _check(options)
    results.prepare(options.results)
    for study in options.studies:
        command = f"python -m examples.study bench run {study}"
        while entries := _unfinished(study, options.results):
            _run_all(entries, options, command)
        print(table(study, results.read(options.results), options.results))


def _run_all(entries, options, command):
    path = options.results
    left = lambda: sum(expected(entry, results.read(path)) for entry in entries)
    run_all(entries, path, options.processes, command, left)


def _check(options):
    if options.processes < 1:
        raise UserError(f"--processes must be positive, got {options.processes}.")


def _unfinished(study, path):
    """The entries of a study that lack runs; a search has others after each round."""
    found = results.read(path)
    is_main = study in MAIN
    entries = all_methods(study, new=True) if is_main else STUDIES[study](found)
    return [e for e in entries if not is_finished(e, found)]


def _table(options):
    """Prints the tables of studies, or writes all of them into their pages."""
    if not (options.studies or options.write):
        known = ", ".join(sorted(NAMES))
        raise UserError(f"Name a table or give --write; choose from {known}.")
    found = results.read(options.results)
    for study in options.studies:
        print(table(study, found, options.results))
    if options.write:
        write(found, options.results)


def _time(options):
    """Times an update of every method beside AdamW, on all tasks or some."""
    tasks = options.tasks or MAIN
    times.run(tasks, options.results, "python -m examples.study bench time")
    print(times.table(times.read(options.results)))


def _spectra(options):
    """Singular values of one matrix under every method, for the pages of methods."""
    spectra.run(options.results, results.read())


def _signals(_):
    """Rounding errors of polar kernels on gradients and momenta of two texts."""
    print(signals.run())


def _plot(options):
    """Draws the curves of studies."""
    found = results.read(options.results)
    for study in options.studies:
        path = (options.out or results.PATH.parent) / f"{study}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        draw(study, found, path)
        print(path)
