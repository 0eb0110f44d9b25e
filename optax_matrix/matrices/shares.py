"""How many of the parameters are matrices."""

import math
from collections.abc import Mapping
from typing import Any

from optax_matrix.matrices._words import name_of
from optax_matrix.matrices.decisions import Decisions

VOCABULARY = (
    "an embedding by its name",
    "an embedding by its layer",
    "an embedding of patches by its name",
    "an output head by its name",
)


def shares(leaves: Mapping[str, Any], decisions: Decisions) -> dict[str, int]:
    """Numbers of parameters: in matrices, in embeddings and heads, in other leaves."""
    counts = {"matrix": 0, "vocabulary": 0, "other": 0}
    for path, decision in decisions.items():
        reason = decision.reason
        is_vocabulary = reason in VOCABULARY or _is_used_so(reason)
        other = "vocabulary" if is_vocabulary else "other"
        counts["matrix" if decision.view else other] += math.prod(leaves[path].shape)
    return counts


def few_matrices(leaves: Mapping[str, Any], decisions: Decisions) -> str | None:
    """A sentence if few parameters are in matrices by the default rule, else None."""
    left = {p: d for p, d in decisions.items() if d.is_guess or d.view is not None}
    counts = shares(leaves, left)
    rest = counts["matrix"] + counts["other"]
    if all(d.view is None and _is_bias(p) for p, d in left.items()):
        return None  # No kernel can have been missed.
    if counts["matrix"] and 3 * counts["matrix"] >= rest:
        return None
    if counts["matrix"]:
        said = (
            f"Only {counts['matrix']:,} of {rest:,} parameters beyond embeddings and "
            "heads are in matrices"
        )
    else:
        said = "No parameter is in a matrix"
    return (
        f"{said}: all others get the other optimizer, at its rate. "
        "`describe` shows why. Do not put optax.flatten and other wrappers that change "
        "shapes around a method."
    )


def _is_used_so(reason: str) -> bool:
    return getattr(reason, "kind", None) in ("table", "last layer")


def _is_bias(path: str) -> bool:
    return name_of(path).is_vector or name_of(path).name == "b"
