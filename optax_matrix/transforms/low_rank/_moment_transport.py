"""How moments change when the basis of their coordinates changes.

A linear moment M becomes ``(U_new' U_old) M``. For second moments there is no exact
rule, so they are kept as they are.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from optax_matrix.arguments import check_choice
from optax_matrix.linalg.products import full_dot

TRANSPORTS = ("carry", "keep", "reset")
LINEAR = ("mu", "trace", "ema")
INVARIANT = ("count", "mini_step", "gradient_step", "norm", "weight", "col_scale")
QUADRATIC = ("nu", "root")


def check_transport(transport: Any, stored: bool, stagger: bool) -> None:
    """Raises unless a transport is known and compatible with the other options.

    Args:
        transport: Transport, as in `project_low_rank`.
        stored: Whether the basis is stored.
        stagger: Whether stacks are renewed in turn, as in `project_low_rank`.

    Raises:
        ValueError: If it is unknown or not compatible.
    """
    if not callable(transport):
        check_choice("transport", transport, TRANSPORTS)
    if transport != "keep" and not stored:
        raise ValueError(
            f"`transport` must be 'keep' for a basis that is not stored, got "
            f"{transport!r}; store it, as in gaussian_basis(stored=True)."
        )
    if transport == "reset" and stagger:
        raise ValueError(
            "`transport` must not be 'reset' with stagger=True, because all stacks "
            "share one inner state; pass 'carry' or 'keep'."
        )


def carry_moments(state: Any, overlaps: Any) -> Any:
    r"""Transports moments that are linear in the gradient to another basis.

    .. math::
        M \leftarrow (U_{new}^\top U_{old}) M

    for the fields ``mu``, ``trace`` and ``ema`` of all states within ``state``. Second
    moments, norms and counts are kept as they are.

    Args:
        state: State of a transformation of coordinates ``(..., r, n)``.
        overlaps: Per leaf :math:`U_{new}^\top U_{old}`, ``(..., r, r)``.

    Returns:
        The new state.

    Raises:
        ValueError: If a state holds arrays in an unknown field.
    """
    if hasattr(state, "_fields"):
        return state._replace(
            **{name: _field(state, name, overlaps) for name in state._fields}
        )
    if isinstance(state, tuple | list):
        return type(state)(carry_moments(part, overlaps) for part in state)
    if isinstance(state, dict) and not _holds_arrays(state):
        return {name: carry_moments(part, overlaps) for name, part in state.items()}
    if jax.tree.leaves(state):
        raise ValueError(_message("an array", type(state).__name__))
    return state


def _field(state: Any, name: str, overlaps: Any) -> Any:
    value = getattr(state, name)
    if name in LINEAR:
        return jax.tree.map(_carried, overlaps, value)
    if name in INVARIANT or name in QUADRATIC:
        return value
    if _holds_arrays(value):
        raise ValueError(_message(f"the field {name!r}", type(state).__name__))
    return carry_moments(value, overlaps)


def _carried(c: jax.Array, m: Any) -> Any:
    if isinstance(m, optax.MaskedNode):
        return m
    return full_dot(c, m.astype(c.dtype)).astype(m.dtype)


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


def identity_overlap(sigma: jax.Array) -> jax.Array:
    """The overlap that means no change of basis, for coordinates ``(..., r, n)``."""
    eye = jnp.eye(sigma.shape[-2], dtype=sigma.dtype)
    return jnp.broadcast_to(eye, (*sigma.shape[:-2], *eye.shape))


def largest_direction(b1: ArrayLike, b2: ArrayLike) -> jax.Array:
    r"""The largest entry that Adam's m / sqrt(v) may have.

    .. math::
        (1 - \beta_1) / \sqrt{(1 - \beta_2) (1 - \beta_1^2 / \beta_2)},
        \qquad \beta_1^2 < \beta_2

    by the inequality of Cauchy and Schwarz, with and without bias correction. It holds
    while both moments average the same numbers, which moments carried to another basis
    do not.

    Args:
        b1: Decay rate of the momentum.
        b2: Decay rate of the second moment.

    Returns:
        The bound; infinity where :math:`\beta_1^2 \ge \beta_2`.

    Examples:
        >>> float(largest_direction(0.9, 0.9).round(3))
        1.0
    """
    b1, b2 = jnp.asarray(b1, jnp.float32), jnp.asarray(b2, jnp.float32)
    return (1 - b1) / jnp.sqrt((1 - b2) * jnp.maximum(1 - b1**2 / b2, 0))
