"""The command line of the study of tuning."""

from examples.study.bench import commands
from examples.study.posttrain import protocol, table
from examples.study.posttrain.changes import CHANGES
from examples.study.posttrain.protocol import BASES, Entry

PROGRAM = "python -m examples.study posttrain"


def main(arguments: list[str] | None = None) -> int:
    """Runs a command; returns the exit code."""
    return commands.main(PROGRAM, __doc__, _run, _table, table.PATH, arguments)


def _run(options):
    """Does the missing runs; trains the bases first."""
    from examples.study.posttrain import bases

    commands.prepare(options)
    bases.prepare()
    read = lambda: table.read(options.results)
    rows = protocol.entries()
    # The settings of other leaves come first, so that no two processes do the same run.
    others = [Entry(change, base) for change in CHANGES for base in BASES]
    many, few = ([row for row in rows if row.few is is_few] for is_few in (False, True))
    for part in (others, many, few):
        commands.run_missing(part, protocol, read, options, f"{PROGRAM} run")
    _table(options)


def _table(options):
    """Prints the tables."""
    found = table.read(options.results)
    for change in CHANGES:
        for base in BASES:
            for few in (False, True):
                steps = Entry(change, base, few=few).steps
                shown = table.table(change, base, few, found)
                print(f"{change}, trained by {base}, {steps} steps\n\n{shown}\n")
