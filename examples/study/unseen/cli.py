"""The command line of the study of unseen tasks."""

from examples.study.bench import commands
from examples.study.unseen import protocol, table
from examples.study.unseen.protocol import CHOOSING, CONFIRMING

PROGRAM = "python -m examples.study unseen"


def main(arguments: list[str] | None = None) -> int:
    """Runs a command; returns the exit code."""
    return commands.main(PROGRAM, __doc__, _run, _table, table.PATH, arguments)


def _run(options):
    """Does the missing runs."""
    commands.prepare(options)
    read = lambda: table.read(options.results)
    tasks = [*CHOOSING, *CONFIRMING]
    commands.run_missing(tasks, protocol, read, options, f"{PROGRAM} run")
    _table(options)


def _table(options):
    """Prints the tables."""
    found = table.read(options.results)
    print(f"{table.rules(found)}\n\n{table.tasks(found)}")
