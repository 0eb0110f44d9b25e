"""The command line of the study of rewards."""

from examples.study.bench import commands
from examples.study.reinforce import protocol, table
from examples.study.reinforce.methods import ADAMW
from examples.study.reinforce.protocol import TASKS

PROGRAM = "python -m examples.study reinforce"


def main(arguments: list[str] | None = None) -> int:
    """Runs a command; returns the exit code."""
    return commands.main(PROGRAM, __doc__, _run, _table, table.PATH, arguments)


def _run(options):
    """Does the missing runs; trains the base first."""
    from examples.study.reinforce import base

    commands.prepare(options)
    base.weights()
    read = lambda: table.read(options.results)
    rows = protocol.entries()
    # The rates of AdamW come first, since all others begin from them.
    for task in TASKS:
        for is_adamw in (True, False):
            part = [
                row
                for row in rows
                if row.task == task and (row.method in ADAMW) is is_adamw
            ]
            commands.run_missing(part, protocol, read, options, f"{PROGRAM} run")
    _table(options)


def _table(options):
    """Prints the tables."""
    found = table.read(options.results)
    for task in TASKS:
        print(f"{task}\n\n{table.table(task, found)}\n\n{table.rates(task, found)}\n")
