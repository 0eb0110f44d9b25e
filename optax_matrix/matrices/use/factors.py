"""The two factors of a product."""

from typing import Any, NamedTuple

from optax_matrix.matrices.use.views import Hot, Value, View, empty


class Factor(NamedTuple):
    """One factor of a product, and where its axes are in the result.

    Attributes:
        value: The factor.
        summed: Its axes that the product sums over.
        batch: Its axes that both factors share, in the order of the result.
        rest: Its other axes.
        at: The axis of the result at which those start.
    """

    value: Value
    summed: tuple[int, ...]
    batch: tuple[int, ...]
    rest: tuple[int, ...]
    at: int

    def placed(self, view: View, shape: tuple[int, ...], *, shares: bool = True):
        """The axes of a view in the result."""
        axes = empty(shape)
        if shares:
            for i, d in enumerate(self.batch):
                axes[i] = view.axes[d]
        for i, d in enumerate(self.rest):
            axes[self.at + i] = view.axes[d]
        return axes


def factors_of(eqn: Any, x: Value, y: Value) -> tuple[Factor, Factor]:
    """The factors of a ``dot_general``."""
    (cx, cy), (bx, by) = eqn.params["dimension_numbers"]
    rest = lambda v, *used: tuple(
        d for d in range(len(v.shape)) if not any(d in dims for dims in used)
    )
    fx, fy = rest(x, cx, bx), rest(y, cy, by)
    first = Factor(x, tuple(cx), tuple(bx), fx, len(bx))
    return first, Factor(y, tuple(cy), tuple(by), fy, len(bx) + len(fx))


def sums_over_hot(x: Factor) -> bool:
    """Whether a product sums over the axes along which a factor is one-hot."""
    view = x.value.views.get(Hot())
    return view is not None and bool(view.at(x.summed))
