"""One use of a parameter, as a trace records it."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Literal

from optax_matrix.matrices.use.views import Part

# Orders of outputs by which a router chooses.
ORDERS = {"top_k", "approx_top_k", "argmax", "argmin", "sort"}

# Details of products, for verdicts.
INDEXED = "indexed"
MET = "after data have met it entry by entry"


@dataclasses.dataclass
class Use:
    """One use of a parameter.

    Attributes:
        leaf: Number of the parameter.
        kind: ``product``, ``convolution``, ``lookup``, ``elementwise``, ``table`` (put
            in among data) or ``reduced`` (a scale that was summed to one number).
        inputs: Parts of the parameter that a product sums over.
        outputs: Parts that its result has.
        batch: Parts that both sides share, or of which one entry is used.
        layers: Those of ``batch`` that a scan goes through.
        detail: More about it, for the table.
        before: The uses that its data depend on, as bits.
        is_derivative: Whether it is in the backward pass of a derivative.
        cuts: Sections ``(axis, start, size)`` that later slices cut from the outputs.
        rejoined: Axes of which slices were joined again.
        heads: Sizes of output parts that a later product of data has as batch.
        ranked: The ways in which outputs are ranked: ``top_k``, ``argmax``, ...
        selected: Those of them that choose among data, and ways in which data sum over
            the outputs: ``summed``, ``contracted``.
        groups: Groups of a convolution that one axis of outputs holds.
        summed: Axes of the outputs that later products with parameters sum over.
        kept: Axes of the outputs that later parameters have as batch.
        reads: The signal of its data, if known.
        writes: The signal that it puts out.
    """

    leaf: int
    kind: str
    inputs: Sequence[Part] = ()
    outputs: Sequence[Part] = ()
    batch: Sequence[Part] = ()
    layers: Sequence[Part] = ()
    detail: str = ""
    before: int = 0
    is_derivative: bool = False
    cuts: set[tuple[int, int, int]] = dataclasses.field(default_factory=set)
    rejoined: set[int] = dataclasses.field(default_factory=set)
    heads: set[int] = dataclasses.field(default_factory=set)
    ranked: set[str] = dataclasses.field(default_factory=set)
    selected: set[str] = dataclasses.field(default_factory=set)
    groups: int = 1
    summed: set[int] = dataclasses.field(default_factory=set)
    kept: set[int] = dataclasses.field(default_factory=set)
    reads: int | None = None
    writes: int | None = None

    def leaves_out(self, side: Literal["reads", "writes"]) -> None:
        """Notes that a factor of a matrix is on one side of it alone."""
        setattr(self, side, None)

    def mixed(self, summed: Iterable[Part], *, is_hot: bool) -> None:
        """Notes that data sum over some of the outputs.

        What one-hot data select one of is a batch: experts, members.
        """
        if is_hot:
            self.kept |= {part.axis for part in summed}
        else:
            self.selected.add("contracted")

    @property
    def is_product(self) -> bool:
        """Whether the parameter multiplies data as a matrix."""
        return self.kind in ("product", "convolution")

    def sides(self) -> tuple[set[int], set[int]]:
        """The axes of inputs and of outputs."""
        return {p.axis for p in self.inputs}, {p.axis for p in self.outputs}
