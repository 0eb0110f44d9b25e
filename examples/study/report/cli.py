"""The command line: which runs, and mistakes answered in one line."""

import argparse
import pathlib
import sys
from collections.abc import Sequence

from examples.pretrain.directory import recorded
from examples.pretrain.errors import UserError

KINDS = {"run": "a run", "comparison": "a comparison", "study": "a study"}


def main(arguments: list[str] | None = None) -> int:
    """Writes the page.

    Args:
        arguments: Arguments after the program's name; None for those of `sys.argv`.

    Returns:
        The exit code: 0 for success, 2 for a mistake in the input or a bad disk.
    """
    try:
        options = _parser().parse_args(arguments)
        runs = dict.fromkeys(str(pathlib.Path(run)) for run in options.runs)
        write([*runs], options.out, options.results)
    except (UserError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    print(f"report in {options.out}")
    return 0


class _Parser(argparse.ArgumentParser):
    """A parser that raises `UserError` instead of printing its usage and exiting."""

    def error(self, message):
        raise UserError(f"{message} (--help lists the options).")


def _parser():
    parser = _Parser(
        prog="python -m examples.study report",
        description="One HTML page of runs, comparisons or studies, which needs no "
        "other file.",
    )
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        help="a directory of `examples.pretrain` or of `compare`, a study of `bench`, "
        "such as bench:books, or a task with equal budgets, such as equal:books",
    )
    path = pathlib.Path
    parser.add_argument("--out", type=path, default=path("report.html"))
    parser.add_argument("--results", type=path, help="results of studies")
    return parser


def write(
    runs: Sequence[str], out: pathlib.Path, results: pathlib.Path | None = None
) -> None:
    """Writes the page of some runs of one kind.

    Args:
        runs: Directories or studies.
        out: The page.
        results: Results of studies; None for the file of the repository.

    Raises:
        UserError: If there is no such run, it is damaged, or the kinds differ.
    """
    kinds = {run: _kind(run) for run in runs}
    first = kinds[runs[0]]
    for run, kind in kinds.items():
        if kind != first:
            raise UserError(
                f"{runs[0]} is {KINDS[first]} and {run} is {KINDS[kind]}; make a page "
                "for each kind."
            )
    from examples.study.report import page  # Imports of JAX come after mistakes.

    out.parent.mkdir(parents=True, exist_ok=True)
    page.write(_sections(first, runs, results), out)


def _sections(kind, runs, results):
    directories = [pathlib.Path(run) for run in runs]
    if kind == "study":
        from examples.study.report import equals, studies

        of = lambda run: equals if run.startswith(equals.PREFIX) else studies
        return [of(run).section(run, results) for run in runs]
    if kind == "comparison":
        from examples.study.report import comparisons

        return [comparisons.section(directory) for directory in directories]
    from examples.study.report.runs import section

    return [section(directories)]


def _kind(run: str) -> str:
    if run.startswith(("bench:", "equal:")):
        return "study"
    directory = pathlib.Path(run)
    if not directory.is_dir():
        raise UserError(
            f"There is no directory {run}; give one that `train` or `compare` wrote, "
            "or a study such as bench:books."
        )
    if (directory / "results.json").exists():
        return "comparison"
    settings = recorded(directory)
    if settings is None:
        raise UserError(
            f"{run} holds neither a run nor a comparison; give the --out of `train` or "
            "`compare`."
        )
    if "optimizers" in settings:
        raise UserError(f"The comparison in {run} is not finished; repeat its command.")
    return "run"
