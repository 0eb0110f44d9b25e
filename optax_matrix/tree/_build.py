"""A transformation of stacks, or a function of their layout that returns one."""

from collections.abc import Callable
from typing import Any

import optax

from optax_matrix._arguments import check_called
from optax_matrix.stacks.layout import Layout

Build = Callable[[Layout], optax.GradientTransformation]


def as_build(build: Any) -> Build:
    """The argument ``build`` of `on_matrices` as a function of the layout."""
    if isinstance(build, optax.GradientTransformation):
        return lambda _: build
    if not callable(build):
        raise ValueError(
            "`build` must be a transformation, such as optax.chain(*blocks), or a "
            f"callable build(layout) that returns one, got {type(build).__name__}."
        )
    check_called("build", build)
    make: Any = build
    return make
