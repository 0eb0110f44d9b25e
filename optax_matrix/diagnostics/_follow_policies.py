"""Rotation policies along one trajectory of momenta: ARO's objective and alignment."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, get_args

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from optax_matrix._arguments import check_callable, check_choice, checked
from optax_matrix.linalg.scale import as_work, matrix_norm, safe_divide
from optax_matrix.transforms import Policy, rotate
from optax_matrix.transforms.rotation import PolicyLike, PolicyName
from optax_matrix.transforms.sides import MatrixSides


class FollowedPolicy(NamedTuple):
    """The curves of one policy, see `follow_policies`."""

    objective: jax.Array
    alignment: jax.Array | None


def alignment_score(update: ArrayLike, gradient: ArrayLike) -> jax.Array:
    r"""ARO's normalized alignment score: the cosine of an update and a gradient.

    .. math::
        S_A = \langle \nabla L, \phi \rangle / (\|\nabla L\|_F \|\phi\|_F)

    Costs one pass over the entries.

    Args:
        update: Matrices :math:`\phi`, ``(..., m, n)``: the output of a block, before
            the multiplication by the negative learning rate.
        gradient: The gradient on all data, ``(..., m, n)``.

    Returns:
        One number per matrix from -1 to 1; 0 if either is zero.

    Raises:
        ValueError: If an array has fewer than two axes or no floating dtype.

    Examples:
        >>> import jax.numpy as jnp
        >>> g = jnp.array([[3.0, 4.0]])
        >>> round(float(alignment_score(jnp.sign(g), g)), 4)
        0.9899

    References:
        ARO, Eq. 55, Figures 20, 21 and 25, which show the cosine over all parameters.
    """
    x, y = as_work(jnp.asarray(update)), as_work(jnp.asarray(gradient))
    x, y = safe_divide(x, matrix_norm(x)), safe_divide(y, matrix_norm(y))
    return jnp.sum(x * y, axis=(-2, -1))


@checked
def follow_policies(
    momenta: ArrayLike,
    base: Any,
    policies: Sequence[PolicyName] | Mapping[str, PolicyName | PolicyLike] = get_args(
        PolicyName
    ),
    *,
    gradients: ArrayLike | None = None,
    side: MatrixSides = "short",
) -> dict[str, FollowedPolicy]:
    r"""Runs rotation policies along one trajectory and measures their updates.

    .. math::
        J(R; M, f) = \langle M, R f(R^\top M) \rangle

    is ARO's objective: how fast the loss falls along the rotated update. All policies
    get the same momenta and start at the identity. Each of them costs as much as
    `rotate` in every step.

    Args:
        momenta: Momenta ``(steps, ..., m, n)``.
        base: The base f: a function of matrices, or a transformation of stacks, whose
            state goes on from step to step, as in `rotate`.
        policies: Names of policies of `rotate`, or a dict from names of your choice to
            policies, such as ``{"ascent": rgd(0.05, rounds=20)}``.
        gradients: The gradients on all data at these steps, of the same shape, for the
            alignment score; None to leave it out.
        side: The side that rotates, as in `rotate`.

    Returns:
        For each name a named tuple of curves ``(steps, ...)``: ``objective`` is J, and
        ``alignment`` the `alignment_score`, or None without gradients. The mean and
        variance of a curve over the steps are ``curve.mean(0)`` and ``curve.var(0)``.

    Raises:
        ValueError: If an argument is out of range or of another shape.

    Examples:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> momenta = jax.random.normal(jax.random.key(0), (3, 4, 8))  # 3 steps
        >>> followed = follow_policies(momenta, jnp.sign, ("identity", "polar"))
        >>> gain = followed["polar"].objective / followed["identity"].objective
        >>> bool(gain.mean(0) > 1)
        True

    References:
        ARO, Section 5.3 and Figures 2 and 6 (J), Section 7 and Figures 20, 21 and 25
        (alignment).
    """
    momenta = _trajectory("momenta", momenta)
    if gradients is not None:
        gradients = _trajectory("gradients", gradients)
        if gradients.shape != momenta.shape:
            raise ValueError(
                f"`gradients` must have the shape {momenta.shape} of `momenta`, got "
                f"{gradients.shape}; pass one gradient per momentum."
            )
    named = policies if isinstance(policies, Mapping) else _by_name(policies)
    tx = _as_transformation(base)
    return {
        name: _follow(rotate(tx, policy=policy, side=side), momenta, gradients)
        for name, policy in named.items()
    }


def _follow(
    tx: optax.GradientTransformation, momenta: jax.Array, gradients: jax.Array | None
) -> FollowedPolicy:
    @jax.jit
    def run(momenta, gradients):
        def step(state, at):
            momentum, gradient = at
            update: Any
            update, state = tx.update(momentum, state)
            score = None if gradient is None else alignment_score(update, gradient)
            objective = jnp.sum(momentum * update, axis=(-2, -1))
            return state, FollowedPolicy(objective, score)

        return jax.lax.scan(step, tx.init(momenta[0]), (momenta, gradients))[1]

    return run(momenta, gradients)


def _by_name(policies: Sequence[Any]) -> dict[str, Any]:
    names = get_args(PolicyName)
    if isinstance(policies, str):
        policies = [policies]
    for policy in policies:
        if isinstance(policy, Policy) or callable(policy):
            raise ValueError(
                f"`policies` must be names, got {policy!r}; give your own policies in "
                'a dict, such as {"mine": policy}.'
            )
        check_choice("policies", policy, names)
    return {name: name for name in policies}


def _trajectory(name: str, x: ArrayLike) -> jax.Array:
    x = jnp.asarray(x)
    if x.ndim < 3 or not len(x):
        raise ValueError(
            f"`{name}` must be matrices (steps, ..., m, n), at least one step, got "
            f"shape {x.shape}; stack the steps in front."
        )
    return as_work(x)


def _as_transformation(base: Any) -> optax.GradientTransformation:
    if isinstance(base, optax.GradientTransformation):
        return base
    check_callable("base", base)
    return optax.stateless(lambda updates, _: jax.tree.map(base, updates))
