"""Processes that train together: when one of them is lost, the others end and say so.

In every step the processes wait for each other. If one dies, the others get an error of
their connection to it; without more ado they would then wait at exit, for all. If the
first dies, which runs JAX's coordination service, JAX aborts the others.
"""

import contextlib
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator

import jax
from jax.experimental import multihost_utils

from examples.pretrain.errors import deferred, first_line


@contextlib.contextmanager
def together(remedy: str) -> Iterator[None]:
    """Ends this process at once if anything fails inside, and prints one line.

    The others then lose their connection to it, and end in the same way. With a single
    process this does nothing. An exit with a number, which all agreed on, is orderly.

    Args:
        remedy: End of the message: what starting again will do.
    """
    number, count = jax.process_index(), jax.process_count()
    if count == 1:
        yield
        return
    again = f"Start all processes again, or fewer, with the same command: {remedy}"
    killed = "was killed, by JAX if it has just said that another one died"
    with _told_if_killed(f"error: process {number} of {count} {killed}. {again}"):
        try:
            yield
            return
        except SystemExit as stop:
            if not isinstance(stop.code, str):
                raise
            message = stop.code
        except jax.errors.JaxRuntimeError as error:
            cause = first_line(error).rsplit("dispatching computation: ", 1)[-1]
            message = f"error: process {number} of {count} "
            if "RESOURCE_EXHAUSTED" in str(error):
                message += f"has no memory left ({cause}); lower --batch."
            else:
                message += f"cannot go on; another one seems lost ({cause}). {again}"
        except Exception:
            message = traceback.format_exc()
    print(message, file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(1)  # Otherwise JAX waits until all processes have come to their end.


@contextlib.contextmanager
def preemption() -> Iterator[Callable[[int], int | None]]:
    """Gives a function of the step: the signal that ends the run after it, or None.

    A single process ends on SIGTERM and Ctrl-C. Of many, any may get SIGTERM; JAX tells
    the others, and they agree on a step.
    """
    if jax.process_count() > 1:
        agreed = multihost_utils.reached_preemption_sync_point
        yield lambda step: signal.SIGTERM if agreed(step) else None
        return
    with deferred() as signals:
        yield lambda _: signals[0] if signals else None


@contextlib.contextmanager
def _told_if_killed(message: str) -> Iterator[None]:
    """Has a shell print a message if this process is killed or aborted inside.

    It waits for a line from this process, or for the system to close the pipe.
    """
    command = ["sh", "-c", 'read -r _ || printf "%s\\n" "$0" >&2', message]
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL}
    with subprocess.Popen(command, start_new_session=True, **streams) as shell:
        try:
            yield
        finally:
            shell.communicate(b"\n")
