"""The next run of a protocol: the first one that it asks for and has not had."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


class MissingError(Exception):
    """A run that a protocol asks for and the results do not have."""

    def __init__(self, config: Any):
        self.config = config


def result(config: Any, results: Mapping[Any, T]) -> T:
    """What a run measured.

    Raises:
        MissingError: If it is not among the results.
    """
    if config not in results:
        raise MissingError(config)
    return results[config]


def next_run(ask: Callable[..., Any], *args: Any) -> Any:
    """The run that a function misses first; None if it has all of its runs."""
    try:
        ask(*args)
    except MissingError as missing:
        return missing.config
    return None
