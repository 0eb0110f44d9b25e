"""How moments change when the basis of their coordinates changes.

A linear moment M becomes ``(U_new' U_old) M``. For second moments there is no exact
rule, so they are kept as they are.
"""

from typing import Any

import jax
import optax

from optax_matrix._arguments import check_choice
from optax_matrix.linalg.precision import project

TRANSPORTS = ("carry", "keep", "reset")
LINEAR = ("mu", "trace", "ema")
INVARIANT = ("count", "mini_step", "gradient_step", "norm", "weight", "col_scale")
QUADRATIC = ("nu", "root")


def check_transport(
    transport: Any, stored: bool, stagger: bool, renew_below: Any = None
) -> None:
    """Raises unless a transport is known and compatible with the other options."""
    if not callable(transport):
        check_choice("transport", transport, TRANSPORTS)
    if transport != "keep" and not stored:
        raise ValueError(
            f"`transport` must be 'keep' for a basis that is not stored, got "
            f"{transport!r}; store it, as in gaussian_basis(stored=True)."
        )
    if renew_below is not None and not stored:
        raise ValueError(
            f"`renew_below` must be None for a basis that is not stored, got "
            f"{renew_below!r}; store it, as in gaussian_basis(stored=True)."
        )
    if transport == "reset" and (stagger or renew_below is not None):
        option = "stagger=True" if stagger else "renew_below"
        raise ValueError(
            f"`transport` must not be 'reset' with {option}, because all stacks "
            "share one inner state; pass 'carry' or 'keep'."
        )


def carry_moments(state: Any, overlaps: Any, side: str = "rows") -> Any:
    """Transports the fields ``mu``, ``trace`` and ``ema`` of all states in a state.

    Other known fields are kept, unknown ones that hold arrays raise. ``side`` is where
    the basis is in the coordinates: ``"rows"`` of ``(..., r, n)``, or ``"columns"``.
    """
    carry = lambda part: carry_moments(part, overlaps, side)
    if hasattr(state, "_fields"):
        return state._replace(
            **{name: _field(state, name, overlaps, side) for name in state._fields}
        )
    if isinstance(state, tuple | list):
        return type(state)(map(carry, state))
    if isinstance(state, dict) and not _holds_arrays(state):
        return {name: carry(part) for name, part in state.items()}
    if jax.tree.leaves(state):
        raise ValueError(_message("an array", type(state).__name__))
    return state


def _field(state: Any, name: str, overlaps: Any, side: str) -> Any:
    value = getattr(state, name)
    if name in LINEAR:
        return jax.tree.map(lambda c, m: _carried(c, m, side), overlaps, value)
    if name in INVARIANT or name in QUADRATIC:
        return value
    if _holds_arrays(value):
        raise ValueError(_message(f"the field {name!r}", type(state).__name__))
    return carry_moments(value, overlaps, side)


def _carried(c: jax.Array, m: Any, side: str) -> Any:
    if isinstance(m, optax.MaskedNode):
        return m
    if not hasattr(m, "astype"):
        raise ValueError(_message("a moment in pieces", type(m).__name__))
    wide = m.astype(c.dtype)
    return (project(c, wide) if side == "rows" else project(wide, c.mT)).astype(m.dtype)


def _holds_arrays(value: Any) -> bool:
    """Whether a value holds arrays directly or in plain containers, not in a state."""
    is_state = lambda x: hasattr(x, "_fields")
    leaves = jax.tree.leaves(value, is_leaf=is_state)
    return any(not is_state(x) for x in leaves)


def _message(what: str, where: str) -> str:
    return (
        f"`transport` cannot tell how {what} of {where} changes with the basis; pass "
        "transport='keep', 'reset' or a function from (inner_state, overlaps) to the "
        f"new state. 'carry' supports {', '.join(LINEAR)} (linear), "
        f"{', '.join(QUADRATIC)} (kept) and {', '.join(INVARIANT)}."
    )
