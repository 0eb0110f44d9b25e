"""One call of a build in the factory, which checks its arguments there."""

import traceback
from collections.abc import Callable

import optax

from optax_matrix.stacks.layout import EMPTY_LAYOUT, Layout

Build = Callable[[Layout], optax.GradientTransformation]


def check_arguments(build: Build) -> None:
    """Calls a build once, with a layout that has no groups.

    An argument that a block refuses thus raises where `on_matrices` is called. A build
    may fail for another reason: it may need a group that the empty layout lacks. Only
    a `ValueError` or `TypeError` that this package or optax raises is therefore passed
    on.
    """
    try:
        build(EMPTY_LAYOUT)
    except (ValueError, TypeError) as error:
        if raised_in(error, "optax_matrix", "optax"):
            raise
    except Exception:  # Any error of a build that needs the groups.
        pass


def raised_in(error: Exception, *packages: str) -> bool:
    """Whether the innermost frame of an error belongs to one of these packages."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    module = frame.f_globals.get("__name__", "")
    return module.partition(".")[0] in packages
