"""Models and parameters of all frameworks, known without import."""

import sys
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from optax_matrix._paths import key_name

# What Linen keeps beside the parameters, and does not learn.
_COLLECTIONS = ("batch_stats", "cache", "intermediates")


def is_model(x: Any) -> bool:
    """Whether it is a model of NNX or Equinox, which holds its parameters itself.

    Functions that Equinox has wrapped are modules, too, but hold no arrays.
    """
    if is_nnx(x):
        return True
    is_learned = lambda leaf: _kind(leaf) == "learned"
    return _is_of("equinox", "Module", x) and any(map(is_learned, jax.tree.leaves(x)))


def _is_of(module: str, name: str, x: Any) -> bool:
    loaded = sys.modules.get(module)  # Nobody has such an object who has not.
    return loaded is not None and isinstance(x, getattr(loaded, name))


def is_nnx(x: Any) -> bool:
    """Whether it is a model of NNX, which steps may change in place."""
    return _is_of("flax.nnx", "Module", x)


def is_linen(x: Any) -> bool:
    """Whether it is a module of Linen, which does not contain its parameters."""
    return _is_of("flax.linen", "Module", x)


def split(params: Any) -> tuple[Any, Any, Callable[[Any, Any], Any]]:
    """Parameters, other arrays, and the function that puts both together again.

    A model of NNX is copied, so that tracing leaves it as it is. Of any other tree
    the leaves with floats are parameters, but for what Linen keeps beside "params".
    What is not an array stays inside.
    """
    if is_nnx(params):
        nnx = sys.modules["flax.nnx"]
        graph, learned, rest = nnx.split(params, nnx.Param, ...)
        return learned, rest, lambda learned, rest: nnx.merge(graph, learned, rest)
    pairs, structure = jax.tree.flatten_with_path(params)
    leaves = [leaf for _, leaf in pairs]
    has_linen = isinstance(params, Mapping) and "params" in params

    def kind_of(keys: tuple[Any, ...], leaf: Any) -> str:
        is_state = has_linen and key_name(keys[0]) in _COLLECTIONS
        return "rest" if is_state and _kind(leaf) == "learned" else _kind(leaf)

    kinds = [kind_of(keys, leaf) for keys, leaf in pairs]
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


def split_inputs(args: Any) -> tuple[list[Any], list[Any], Callable[..., Any]]:
    """Arrays that are data, those of a model's state, and what puts all together again.

    Python's numbers stay inside, such as the number of a layer or a rate of dropout.
    """
    nodes, structure = jax.tree.flatten(args, is_leaf=_is_state)
    parts = [jax.tree.flatten(node) for node in nodes]
    is_array = lambda x: _kind(x) != "static"

    def joined(data: list[Any], state: list[Any]) -> Any:
        found = iter(data), iter(state)
        made = []
        for node, (leaves, inner) in zip(nodes, parts, strict=True):
            source = found[_is_state(node)]
            made.append(
                inner.unflatten(next(source) if is_array(x) else x for x in leaves)
            )
        return structure.unflatten(made)

    def of(kind: bool) -> list[Any]:
        pairs = zip(nodes, parts, strict=True)
        several = (leaves for node, (leaves, _) in pairs if _is_state(node) == kind)
        return [x for leaves in several for x in leaves if is_array(x)]

    return of(False), of(True), joined


def _is_state(x: Any) -> bool:
    return _is_of("flax.nnx", "State", x) or _is_of("equinox.nn", "State", x)
