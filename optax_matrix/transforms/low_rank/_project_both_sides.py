"""Running a transformation in two subspaces: one projection inside another."""

from functools import partial
from typing import Any, Literal

import jax
import optax

from optax_matrix._arguments import (
    NotNegativeInt,
    Positive,
    PositiveInt,
    Rank,
    Seed,
    checked,
)
from optax_matrix.transforms.arguments import Transformation
from optax_matrix.transforms.low_rank._find_basis import find_basis
from optax_matrix.transforms.low_rank._moment_transport import (
    carry_moments,
    check_transport,
)
from optax_matrix.transforms.low_rank._project_low_rank import project_low_rank


@checked
def project_both_sides(
    inner: Transformation,
    *,
    rank: Rank = 128,
    basis: Any = "randomized_svd",
    update_interval: PositiveInt = 200,
    phase: NotNegativeInt = 1,
    renew_below: Positive | None = None,
    stagger: bool = False,
    transport: Literal["keep", "carry", "reset"] = "keep",
    seed: Seed = 0,
) -> optax.GradientTransformationExtraArgs:
    r"""Runs a transformation on the coordinates of the gradient in two subspaces.

    .. math::
        \sigma_t = U_t^\top G_t V_t, \qquad
        \Delta_t = U_t \, \mathrm{inner}(\sigma_t) \, V_t^\top

    This is `project_low_rank` of the rows with `project_low_rank` of the columns as
    ``inner``. U is the basis of G, and V that of the rows of :math:`U_t^\top G_t`; with
    singular vectors these are the right singular vectors of G. Adam as ``inner`` gives
    SOAP of low rank.

    Args:
        inner: Any transformation of stacks ``(..., r, r)``.
        rank: Number of columns r of both bases, as in `project_low_rank`.
        basis: As in `project_low_rank`.
        update_interval: As in `project_low_rank`.
        phase: As in `project_low_rank`.
        renew_below: As in `project_low_rank`; each side goes by its own projection.
        stagger: As in `project_low_rank`.
        transport: ``"keep"``, ``"carry"`` or ``"reset"``, as in `project_low_rank`.
        seed: Seed of the random numbers, as in `project_low_rank`.

    Returns:
        A transformation of trees whose leaves are ``(..., m, n)``. Its
        `ProjectLowRankState` of the rows holds one of the columns, and that holds the
        state of ``inner``.

    Raises:
        ValueError: If an argument is out of range; at `init`, if ``transport="carry"``
            does not support a state of ``inner``.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax
        >>> import optax_matrix as om
        >>> tx = om.transforms.low_rank.project_both_sides(
        ...     optax.scale_by_sign(), rank=1
        ... )
        >>> w = {"w": jnp.diag(jnp.array([3.0, 1.0]))}
        >>> print(tx.update(w, tx.init(w))[0]["w"].round(1))
        [[1. 0.]
         [0. 0.]]

    References:
        SUMO, Definition C.1.
    """
    found = find_basis(basis)
    check_transport(transport, found.stored, stagger, renew_below)
    options: dict[str, Any] = {
        "basis": found,
        "update_interval": update_interval,
        "phase": phase,
        "renew_below": renew_below,
        "stagger": stagger,
    }
    of_rows = of_cols = transport
    if transport == "carry":
        of_rows = _carry_rows
        of_cols = partial(carry_moments, side="columns")
    if transport == "reset":
        of_rows = "keep"  # The projection of the columns resets its inner state.
    columns = project_low_rank(
        _transposed(inner),
        rank=1.0,
        side="in",
        transport=of_cols,
        seed=(seed + 1) % 2**32,
        **options,
    )
    return project_low_rank(
        columns, rank=rank, side="out", transport=of_rows, seed=seed, **options
    )


def _transposed(inner: optax.GradientTransformation) -> Any:
    """``inner`` on coordinates U'GV, for the projection onto V, which sees V'G'U."""
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


def _carry_rows(state: Any, overlaps: Any) -> Any:
    """`carry_moments` for a change of U; ``state`` is that of the projection onto V."""
    inner_state = carry_moments(state.inner_state, overlaps)
    return state._replace(inner_state=inner_state)
