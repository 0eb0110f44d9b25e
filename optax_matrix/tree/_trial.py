"""One call of a build in the factory, which checks its arguments there."""

import traceback
from collections.abc import Callable, Mapping
from typing import Any

import optax

from optax_matrix._arguments import unchecked
from optax_matrix.stacks.layout import EMPTY_LAYOUT

Build = Callable[..., optax.GradientTransformation]


def tried(build: Build, hyperparams: Mapping[str, Any]) -> Build:
    """Calls a build once, with a layout that has no groups.

    An argument that a block refuses thus raises where `on_matrices` is called. A build
    may fail for another reason: it may need a group that the empty layout lacks. Only
    a `ValueError` or `TypeError` that this package or optax raises is therefore passed
    on; after any other error, the build checks its arguments at every call.

    Args:
        build: As in `on_matrices`.
        hyperparams: As in `on_matrices`.

    Returns:
        The build. If the call succeeded, it does not check arguments again. Arguments
        may depend on the layout, so `init` calls `build` itself.

    Raises:
        ValueError: If an argument of a block is out of range.
        TypeError: If `build` does not take these hyperparameters.
    """
    try:
        build(EMPTY_LAYOUT, **hyperparams)
    except (ValueError, TypeError) as error:
        if raised_in(error, "optax_matrix", "optax"):
            raise
        return build
    except Exception:  # Any error of a build that needs the groups.
        return build

    def build_unchecked(*args: Any, **kwargs: Any) -> optax.GradientTransformation:
        with unchecked():
            return build(*args, **kwargs)

    return build_unchecked


def raised_in(error: Exception, *packages: str) -> bool:
    """Whether the innermost frame of an error belongs to one of these packages."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    module = frame.f_globals.get("__name__", "")
    return module.partition(".")[0] in packages
