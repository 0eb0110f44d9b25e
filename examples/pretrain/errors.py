"""What ends a command early: mistakes, bad disks, and signals.

`UserError` is printed as one line, with exit code 2. Ctrl-C and SIGTERM, which is sent
before a machine is preempted, raise `Interrupted`. Inside `deferred` the first signal
is only recorded, so that a run can save its state; the second raises at once.
"""

import contextlib
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class UserError(Exception):
    """A mistake in the input, or a bad disk; the message says what to do about it."""


def first_line(error: BaseException) -> str:
    """The first line of an error's message; of TensorStore's, what the system said."""
    text = str(error).strip()
    if code := re.search(r"os_error_code='(\d+)'", text):
        return os.strerror(int(code[1]))
    return (text.splitlines() or [type(error).__name__])[0]


class Interrupted(KeyboardInterrupt):
    """A signal ends the command.

    Args:
        number: The signal.
        where: What the message to the user says after "interrupted".
    """

    def __init__(self, number: int, where: str = ""):
        super().__init__(number, where)
        self.number, self.where = number, where


@contextlib.contextmanager
def handled(handler: Callable) -> Iterator[None]:
    """Calls a function of signal and frame on both signals, in the main thread only.

    A signal that the process ignores, as shells arrange for Ctrl-C in a background job,
    stays ignored.
    """
    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.getsignal(number) for number in SIGNALS}
    before = {k: v for k, v in before.items() if v not in (None, signal.SIG_IGN)}
    try:
        for number in before:
            signal.signal(number, handler)
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def raised() -> contextlib.AbstractContextManager[None]:
    """Both signals raise `Interrupted` at once, or later inside: see `deferred`."""
    received: list[int] = []

    def handler(number, _):
        received.append(number)
        raise Interrupted(number)

    handler.received = received
    return handled(handler)


def leave(code: int) -> NoReturn:
    """Ends the process with the exit code of a command.

    After a signal in the middle of a compilation Python's own way out may crash.
    """
    if code <= 128:
        sys.exit(code)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@contextlib.contextmanager
def deferred() -> Iterator[list[int]]:
    """Records signals in a list instead of raising; the second raises `Interrupted`.

    So does one that came before. Python drops what a handler raises while JAX's
    callback for the collection of garbage runs, as it often does in the first seconds.
    """
    for number in SIGNALS:
        for lost in getattr(signal.getsignal(number), "received", ()):
            raise Interrupted(lost)
    received = []

    def handler(number, _):
        received.append(number)
        if len(received) > 1:
            raise Interrupted(number)

    with handled(handler):
        yield received
