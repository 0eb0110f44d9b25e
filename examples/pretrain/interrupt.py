"""Ctrl-C and SIGTERM, which a machine gets before it is taken away.

Both raise `Interrupted`. Inside `deferred` they wait until the code asks for them, so
that a run can save what it has; a second one does not wait.
"""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """A signal ends the command.

    Args:
        number: The signal.
        where: What the message to the user says, as "at step 7".
    """

    def __init__(self, number: int, where: str = ""):
        super().__init__(number, where)
        self.number, self.where = number, where


@contextlib.contextmanager
def handled(handler: Callable) -> Iterator[None]:
    """Calls a function of signal and frame on both signals, in the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = [signal.signal(number, handler) for number in SIGNALS]
    try:
        yield
    finally:
        for number, old in zip(SIGNALS, before, strict=True):
            signal.signal(number, old)


def raised() -> contextlib.AbstractContextManager[None]:
    """Both signals raise `Interrupted` at once."""

    def handler(number, _):
        raise Interrupted(number)

    return handled(handler)


@contextlib.contextmanager
def deferred() -> Iterator[list[int]]:
    """The signals so far, as a list that grows; the second one raises."""
    received = []

    def handler(number, _):
        received.append(number)
        if len(received) > 1:
            raise Interrupted(number)

    with handled(handler):
        yield received
