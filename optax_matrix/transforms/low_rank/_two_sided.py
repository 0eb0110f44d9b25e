"""Projecting both sides of the gradient: one projection inside another."""

from typing import Any

import jax
import optax

from optax_matrix.transforms.low_rank._combine import back_project
from optax_matrix.transforms.low_rank._moment_transport import carry_moments


def check_two_sided(combine: Any, transport: Any) -> None:
    """Raises unless the other options support ``side="both"``.

    Args:
        combine: As in `project_low_rank`.
        transport: As in `project_low_rank`.

    Raises:
        ValueError: If one of them does not.
    """
    if combine is not back_project:
        raise ValueError(
            "`combine` must be back_project with side='both', whose residual lies on "
            f"both sides, got {combine!r}; project one side."
        )
    if callable(transport):
        raise ValueError(
            "`transport` must be 'keep', 'carry' or 'reset' with side='both', got "
            f"{transport!r}; a function does not learn which side's basis changed."
        )


def transposed(inner: optax.GradientTransformation) -> Any:
    """A transformation of transposed coordinates, run on coordinates ``(..., r, r)``.

    Args:
        inner: The transformation of coordinates U'GV.

    Returns:
        The transformation that the projection onto V, which sees V'G'U, runs.
    """
    inner = optax.with_extra_args_support(inner)
    turn = lambda tree: jax.tree.map(lambda x: x.mT, tree)

    def update_fn(updates, state, params=None, *, gradient=None, **extra_args):
        gradient = updates if gradient is None else gradient
        extra_args["gradient"] = turn(gradient)
        updates, state = inner.update(turn(updates), state, params, **extra_args)
        return turn(updates), state

    return optax.GradientTransformationExtraArgs(
        lambda params: inner.init(turn(params)), update_fn
    )


def carry_columns(state: Any, overlaps: Any) -> Any:
    """`carry_moments` for a change of V; ``state`` belongs to coordinates U'GV."""
    return carry_moments(state, overlaps, "columns")


def carry_inside(state: Any, overlaps: Any) -> Any:
    """`carry_moments` for a change of U; ``state`` is that of the projection onto V."""
    return state._replace(inner_state=carry_moments(state.inner_state, overlaps))
