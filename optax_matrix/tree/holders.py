"""Optimizer states as frameworks hold them: in an optimizer, in a training state.

No framework is imported: whatever has an ``opt_state`` beside its optimizer or its
parameters is one that holds it, as `nnx.Optimizer` and Linen's ``TrainState``.
"""

from typing import Any

from jax.tree_util import DictKey

from optax_matrix._paths import key_name, leaves_with_keys


def held_state(state: Any, what: str) -> Any:
    """The state itself, where an optimizer or training state is given.

    Raises if it has no named tuples, by which a state is known.
    """
    state = state.opt_state if _holds_state(state) else state
    check_tuples(state, what)
    return state


def check_itself(state: Any, what: str) -> None:
    """Raises unless this is a state itself, for functions that return one."""
    check_tuples(state, what)
    if _holds_state(state):
        raise ValueError(
            f"`{what}` must be the optimizer's state, got {type(state).__name__}, "
            "which holds it; pass its opt_state, and put the result in its place."
        )


def check_tuples(state: Any, what: str) -> None:
    """Raises if a state of `on_matrices` has become a mapping."""
    nodes: dict[tuple, set[str]] = {}
    for keys, _ in leaves_with_keys(state):
        for i, key in enumerate(keys):
            if isinstance(key, DictKey):
                nodes.setdefault(keys[:i], set()).add(key_name(key))
    if any({"manifest", "inner_state"} <= names for names in nodes.values()):
        raise ValueError(
            f"`{what}` must be the optimizer's state with its named tuples, got "
            "mappings in their place, as nnx.state(optimizer), nnx.to_pure_dict and a "
            "restore without a target make them; pass optimizer.opt_state, or restore "
            "with tx.init(params) as the target."
        )


def _holds_state(x: Any) -> bool:
    """Whether this has a state, beside what only a training state has."""
    beside = any(hasattr(x, name) for name in ("tx", "params", "model"))
    return hasattr(x, "opt_state") and beside
