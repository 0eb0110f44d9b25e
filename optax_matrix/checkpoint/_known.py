"""Which leaves of a state are in a field of optax or of this package.

The meaning of such fields is known. States and parameters of other packages are not
judged, whatever the names of their fields.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from jax.tree_util import GetAttrKey

from optax_matrix._paths import leaves_with_keys
from optax_matrix.quantization.packing import QuantizedState
from optax_matrix.quantization.quantizer import SIGNED, UNSIGNED
from optax_matrix.tree.state import OnMatricesState

# Fields of this package that hold the state of any transformation, or of any basis.
_ANY = {"inner_state", "base_state", "combine_state", "tracked"}
_INTEGERS = {"count", "merges", "perms", "applied"}
# States of optax whose second moments are averages of squares. Those of `sophia` and
# `scale_by_sm3` have either sign.
_SQUARES = {
    "ScaleByAdamState",
    "ScaleByAdemamixState",
    "ScaleByAmsgradState",
    "ScaleByBeliefState",
    "ScaleByNovogradState",
    "ScaleByRStdDevState",
    "ScaleByRStdDevWithCountState",
    "ScaleByRmsState",
    "ScaleByRmsWithCountState",
}


class Known(NamedTuple):
    """A leaf, and the innermost known named tuple and field that it is in.

    Attributes:
        keys: Where it is.
        value: The leaf.
        node: The type of the named tuple; ``tuple`` if there is none.
        field: Its field.
    """

    keys: tuple
    value: Any
    node: type = tuple
    field: str = ""

    @property
    def kind(self) -> str:
        """``"integers"`` or ``"real numbers"``; empty where it may be anything."""
        if self.node is OnMatricesState:
            return "integers" if self.field == "zero_gradients" else ""
        if self.field in _INTEGERS if _is_block(self.node) else self.field == "count":
            return "integers"
        is_moment = self.field in {*SIGNED, *UNSIGNED}
        is_array = _is_block(self.node) and self.field not in _ANY
        return "real numbers" if is_moment or is_array else ""

    @property
    def is_unsigned(self) -> bool:
        """Whether it is a second moment that cannot be negative."""
        if _is_block(self.node):
            return self.field in UNSIGNED
        is_optax = self.node.__module__.startswith("optax.")
        known = is_optax and self.node.__name__ in _SQUARES
        return known and self.field in ("nu", "nu_max")

    @property
    def counts_roundings(self) -> bool:
        """Whether it exists only because moments are stored in fewer bits."""
        return self.node is QuantizedState and self.field == "count"


_NOTHING = Known((), None)


def known_leaves(tree: Any, above: Known = _NOTHING) -> Iterator[Known]:
    """What is known of each leaf of a state, in the order of its leaves."""
    is_node = lambda x: isinstance(x, tuple) and hasattr(x, "_fields")
    for keys, part in leaves_with_keys(tree, is_node):
        keys = above.keys + keys
        if not is_node(part):
            yield above._replace(keys=keys, value=part)
            continue
        for name, inside in zip(part._fields, part, strict=True):
            at = above._replace(keys=(*keys, GetAttrKey(name)))
            if _is_known(type(part)):
                at = at._replace(node=type(part), field=name)
            yield from known_leaves(inside, at)


def _is_known(node: type) -> bool:
    """Whether this is a state of optax or of this package, not one of parameters."""
    ours = node.__module__.startswith(("optax.", "optax_matrix."))
    return _is_block(node) or (ours and node.__name__.endswith("State"))


def _is_block(node: type) -> bool:
    return node.__module__.startswith("optax_matrix.transforms.")
