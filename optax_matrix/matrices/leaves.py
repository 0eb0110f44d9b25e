"""The leaves of a tree, each with what the tree shows about it."""

import math
import re
from collections.abc import Mapping
from typing import Any

from optax_matrix._paths import leaves_with_keys, named_leaves, path_name
from optax_matrix.matrices._siblings import Leaf, Siblings
from optax_matrix.matrices.view import MatrixDimensionNumbers

_VECTORS = ("LayerNorm", "RMSNorm", "GroupNorm", "BatchNorm", "PReLU")
_GATES = {"GRUCell": 3, "LSTMCell": 4}
_KINDS = ("Linear", "Conv", "ConvTranspose", "Embedding", *_VECTORS, *_GATES)

_DIMENSION = re.compile(r"\dd$")  # Of Conv2d.

Answer = tuple[Any, str]


def leaves_in_tree(params: Any, leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves with what the whole tree shows about them; vectors as they are."""
    every = named_leaves(params) | dict(leaves)
    arrays = {path: x for path, x in every.items() if hasattr(x, "shape")}
    layers, siblings = layers_of(params), Siblings(arrays)

    def of(path: str, leaf: Any) -> Any:
        if len(getattr(leaf, "shape", ())) < 2:
            return leaf
        return Leaf(
            tuple(leaf.shape),
            leaf.dtype,
            layers.get(path),
            siblings.why_other(path),
            siblings.stack(path),
            siblings.is_transposed(path),
            siblings.axes(path),
        )

    return {path: of(path, leaf) for path, leaf in leaves.items()}


def layers_of(tree: Any) -> dict[str, Answer]:
    """Dimension numbers (or None) and reason of each leaf of a known layer, by path."""
    found = {}
    for keys, layer in leaves_with_keys(tree, lambda x: _kind(x) is not None):
        if kind := _kind(layer):
            for inside, leaf in leaves_with_keys(layer):
                name = path_name(inside)
                answer = _answer(kind, layer, name, leaf)
                if answer is not None:
                    found[path_name((*keys, *inside))] = answer
    return found


def _kind(x: Any) -> str | None:
    """The kind of a layer, by the module and name of its class or of a base class.

    No framework is imported.
    """
    for base in type(x).__mro__:
        name = _DIMENSION.sub("", base.__name__)
        if base.__module__.startswith("equinox.nn") and name in _KINDS:
            return name
    return None


def _answer(kind: str, layer: Any, name: str, leaf: Any) -> Answer | None:
    shape = getattr(leaf, "shape", ())
    if len(shape) < 2 or "." in name:
        return None
    if not name.startswith("weight"):
        return None, f"a bias of {kind}" if name.startswith("bias") else f"of {kind}"
    if kind in _VECTORS:
        return None, f"scales of {kind}"
    if kind == "Embedding":
        return None, "an embedding by its layer"
    if kind in _GATES:
        numbers = MatrixDimensionNumbers(-1, -2, output_sections=_GATES[kind])
        return numbers, f"{_GATES[kind]} gates of {kind} (out, in)"
    if kind == "Linear":
        return MatrixDimensionNumbers(-1, -2), "weight (out, in) of Linear"
    spatial = _spatial_axes(layer)
    axes = tuple(range(-spatial - 1, 0))
    if shape[-spatial - 1] == 1 and math.prod(shape[-spatial:]) > 1:
        return None, "a convolution of one input channel, as depthwise ones are"
    numbers = MatrixDimensionNumbers(axes, -spatial - 2)
    return numbers, f"weight (out, in, ...) of {kind}"


def _spatial_axes(layer: Any) -> int:
    """The number of spatial axes of a convolution, by its attribute or its name."""
    given = getattr(layer, "num_spatial_dims", None)
    name = type(layer).__name__
    named = int(name[-2]) if name.endswith("d") and name[-2:-1].isdigit() else None
    return given or named or len(layer.weight.shape) - 2
