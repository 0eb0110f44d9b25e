"""The command line of the study of unseen tasks."""

from examples.study.bench import commands
from examples.study.bench.workers import run_all
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
    if missing := [task for task in tasks if protocol.due(task, read())]:
        left = lambda: protocol.left(missing, read())
        arguments = options.results, options.processes, f"{PROGRAM} run", left
        run_all(missing, *arguments, "examples.study.unseen.runs")
    _table(options)


def _table(options):
    """Prints the tables."""
    found = table.read(options.results)
    print(f"{table.rules(found)}\n\n{table.tasks(found)}")
