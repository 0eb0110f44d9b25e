"""Columns of progress bars. It does not import JAX."""

from rich.progress import (
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


def named_times() -> tuple[ProgressColumn, ...]:
    """Columns for the time since the start and the time that is left, by name."""
    return (
        *(TextColumn("elapsed"), TimeElapsedColumn()),
        *(TextColumn("left"), TimeRemainingColumn(elapsed_when_finished=False)),
    )
