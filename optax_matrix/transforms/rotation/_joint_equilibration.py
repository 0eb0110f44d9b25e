"""Bases for `rotate_shared`: row norms and Sinkhorn over all matrices of a set."""

from typing import Literal

import jax.numpy as jnp
import optax

from optax_matrix._arguments import PositiveInt, checked
from optax_matrix.linalg.products import times
from optax_matrix.linalg.scale import inverse, safe_divide, safe_root, unit_max


def equilibrate_rows_jointly() -> optax.GradientTransformationExtraArgs:
    r"""Divides each row by its norm over all matrices of a set.

    .. math::
        X_i \mapsto \mathrm{diag}(\rho)^{-1} X_i, \qquad
        \rho^2 = \sum_i \mathrm{rowsum}(X_i^2)

    Returns:
        A base for `rotate_shared`.

    References:
        ARO, Eq. 52 with the base ``row_norm``: f of the stacked momentum. `match_rms`
        then sets the size of each matrix by itself.
    """

    def update_fn(updates, state, params=None, **extra_args):
        del params
        sum_rows = extra_args["sum_rows"]
        updates = _scaled(updates, extra_args["peak"])
        norms = sum_rows({n: jnp.sum(x * x, axis=-1) for n, x in updates.items()})
        scales = {n: safe_root(inverse(v))[..., None] for n, v in norms.items()}
        return {n: x * scales[n] for n, x in updates.items()}, state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update_fn)


@checked
def sinkhorn_jointly(
    rounds: PositiveInt = 5,
    scheme: Literal["simultaneous", "alternating"] = "simultaneous",
) -> optax.GradientTransformationExtraArgs:
    r"""Applies Sinkhorn scaling to all matrices of a set, placed side by side.

    With :math:`P_i = X_i^2` each round computes :math:`u' = 1 / \sum_i P_i v_i` for the
    rows and :math:`v_i' = 1 / P_i^\top u` for the columns of each matrix: it is
    `linalg.sinkhorn` of the concatenated matrices. If they are spread over devices,
    each round costs one all-reduce of a vector per set.

    Args:
        rounds: Number of rounds.
        scheme: ``"simultaneous"`` (ARO) or ``"alternating"``.

    Returns:
        A base for `rotate_shared`.

    Raises:
        ValueError: If an argument is out of range.

    References:
        ARO, Algorithm 1 and Eq. 52. `match_rms` then sets the size of each matrix by
        itself.
    """

    def update_fn(updates, state, params=None, **extra_args):
        del params
        sum_rows = extra_args["sum_rows"]
        updates = _scaled(updates, extra_args["peak"])
        squares = {n: x * x for n, x in updates.items()}
        u = {n: jnp.ones_like(p[..., 0]) for n, p in squares.items()}
        v = {n: jnp.ones_like(p[..., 0, :]) for n, p in squares.items()}
        for _ in range(rounds):
            sums = sum_rows({n: times(p, v[n]) for n, p in squares.items()})
            new_u = {n: unit_max(inverse(x)) for n, x in sums.items()}
            side = new_u if scheme == "alternating" else u
            v = {n: inverse(times(p.mT, side[n])) for n, p in squares.items()}
            u = new_u
        scaled = {
            n: safe_root(u[n])[..., None] * x * safe_root(v[n])[..., None, :]
            for n, x in updates.items()
        }
        return scaled, state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update_fn)


def _scaled(updates, peak):
    return {n: safe_divide(x, peak[n][:, None, None]) for n, x in updates.items()}
