"""Models of NNX and Equinox as functions of their parameters, known without import."""

import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def is_model(x: Any) -> bool:
    """Whether it is a model of NNX or Equinox, which holds its parameters itself."""
    return _is_nnx(x) or _is_of("equinox", "Module", x)


def _is_of(module: str, name: str, x: Any) -> bool:
    loaded = sys.modules.get(module)  # Nobody has such an object who has not.
    return loaded is not None and isinstance(x, getattr(loaded, name))


def _is_nnx(x: Any) -> bool:
    return _is_of("flax.nnx", "Module", x)


def split(params: Any) -> tuple[Any, Any, Callable[[Any, Any], Any]]:
    """Parameters, other arrays, and the function that puts both together again.

    A model of NNX is copied, so that tracing leaves it as it is. Of any other tree
    the leaves with floats are parameters. What is not an array stays inside.
    """
    if _is_nnx(params):
        nnx = sys.modules["flax.nnx"]
        graph, learned, rest = nnx.split(params, nnx.Param, ...)
        return learned, rest, lambda learned, rest: nnx.merge(graph, learned, rest)
    leaves, structure = jax.tree.flatten(params)
    kinds = [_kind(leaf) for leaf in leaves]
    of = lambda kind: structure.unflatten(
        leaf if kind == found else None
        for leaf, found in zip(leaves, kinds, strict=True)
    )

    def joined(learned: Any, rest: Any) -> Any:
        found = {
            "learned": iter(jax.tree.leaves(learned)),
            "rest": iter(jax.tree.leaves(rest)),
            "static": iter(
                x for x, k in zip(leaves, kinds, strict=True) if k == "static"
            ),
        }
        return structure.unflatten(next(found[kind]) for kind in kinds)

    return of("learned"), of("rest"), joined


def _kind(leaf: Any) -> str:
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        return "static"
    return "learned" if jnp.issubdtype(leaf.dtype, jnp.inexact) else "rest"


def is_input(x: Any) -> bool:
    """Whether an argument's leaf is data, and not an option or state of a layer."""
    is_number = isinstance(x, int | float | complex) and not isinstance(x, bool)
    return hasattr(x, "shape") or is_number
