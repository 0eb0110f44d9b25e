"""ARO's objective and alignment score, along a trajectory of momenta."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, get_args

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from optax_matrix._arguments import check_callable, check_choice, checked
from optax_matrix.diagnostics._spectra import condition_number
from optax_matrix.linalg.products import full_dot
from optax_matrix.linalg.scale import as_work, matrix_norm, safe_divide, unit_peak
from optax_matrix.transforms import Policy, rotate
from optax_matrix.transforms.rotation import PolicyLike, PolicyName
from optax_matrix.transforms.sides import MatrixSides

Base = optax.GradientTransformation | Callable[[jax.Array], jax.Array]


class FollowedPolicy(NamedTuple):
    """What `follow_policies` measured under one policy.

    Attributes:
        objective: J at every step, ``(steps, ...)``.
        alignment: The alignment score at every step, ``(steps, ...)``; None without
            gradients.
    """

    objective: jax.Array
    alignment: jax.Array | None


class QrConditioning(NamedTuple):
    r"""Condition numbers of the matrices that two policies orthonormalize.

    Attributes:
        aro: That of :math:`M D^\top`, one number per matrix.
        eigen: That of :math:`M M^\top R`, one number per matrix.
    """

    aro: jax.Array
    eigen: jax.Array


def rotation_objective(rotation: ArrayLike, momentum: ArrayLike, base: Base) -> Any:
    r"""ARO's objective: how fast the loss falls along the rotated update.

    .. math::
        J(R; M, f) = \langle M, R f(R^\top M) \rangle

    Costs one ``m x m`` by ``m x n`` product, and the base.

    Args:
        rotation: Orthogonal matrices R, ``(..., m, m)``, which turn the rows.
        momentum: Matrices M, ``(..., m, n)``.
        base: The base f: a function of matrices, or a transformation of stacks, which
            starts from a new state.

    Returns:
        One number per matrix, at least float32.

    Raises:
        ValueError: If ``base`` is neither; if an array has fewer than two axes or no
            floating dtype.

    Examples:
        >>> import jax.numpy as jnp
        >>> m = jnp.array([[3.0, 4.0]])
        >>> float(rotation_objective(jnp.eye(1), m, jnp.sign))
        7.0

    References:
        ARO, Section 3.2, Figure 6.
    """
    turned, direction = _ahead(rotation, momentum, base)
    return jnp.sum(turned * direction, axis=(-2, -1))


def alignment_score(update: ArrayLike, gradient: ArrayLike) -> jax.Array:
    r"""ARO's normalized alignment score: the cosine of an update and a gradient.

    .. math::
        S_A = \langle \nabla L, \phi \rangle / (\|\nabla L\|_F \|\phi\|_F)

    Costs one pass over the entries.

    Args:
        update: Matrices :math:`\phi`, ``(..., m, n)``, which the weights move against:
            what a block returns, before the sign of the learning rate.
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
        ARO, Eq. 55, Figures 20, 21 and 25, where the cosine is that of all parameters
        together.
    """
    x, y = as_work(jnp.asarray(update)), as_work(jnp.asarray(gradient))
    x, y = safe_divide(x, matrix_norm(x)), safe_divide(y, matrix_norm(y))
    return jnp.sum(x * y, axis=(-2, -1))


def qr_condition_numbers(
    rotation: ArrayLike, momentum: ArrayLike, base: Base
) -> QrConditioning:
    r"""Condition numbers of the matrices whose Q factors are the next rotations.

    That is :math:`M D^\top` with :math:`D = f(R^\top M)` for ARO and
    :math:`M M^\top R`, a power step, for the eigenvectors. Only the first
    ``min(m, n)`` singular values count; the others are zero by construction. Costs four
    products, the base, and two singular value decompositions without vectors.

    Args:
        rotation: Orthogonal matrices R, ``(..., m, m)``.
        momentum: Matrices M, ``(..., m, n)``.
        base: As in `rotation_objective`.

    Returns:
        Two numbers per matrix; infinity for a zero momentum.

    Raises:
        ValueError: As in `rotation_objective`.

    Examples:
        >>> import jax.numpy as jnp
        >>> m = jnp.diag(jnp.array([10.0, 1.0]))
        >>> kappa = qr_condition_numbers(jnp.eye(2), m, jnp.sign)
        >>> round(float(kappa.aro)), round(float(kappa.eigen))
        (10, 100)

    References:
        ARO, Sections 4.1 and 5.3 (Figure 5): the base improves the conditioning.
    """
    turned, direction = _ahead(rotation, momentum, base)
    rank = max(1, min(turned.shape[-2:]))
    # R' M D' and R' M M' R have the singular values of M D' and M M' R.
    kappa = lambda y: condition_number(full_dot(turned, y.mT), rank=rank)
    return QrConditioning(kappa(unit_peak(direction)[0]), kappa(turned))


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
    """Runs rotation policies along one trajectory and measures their updates.

    All policies see the same momenta, whatever update they would have made of them, and
    start at the identity. Each one costs what `rotate` costs, at every step.

    Args:
        momenta: Momenta ``(steps, ..., m, n)``.
        base: As in `rotation_objective`. The state of a transformation goes on from
            step to step, as in `rotate`.
        policies: Names of policies of `rotate`, or a dict from names of your choice to
            policies, such as ``{"ascent": rgd(0.05, rounds=20)}``.
        gradients: The gradients on all data at these steps, of the same shape, for the
            alignment score; None to leave it out.
        side: The side that rotates, as in `rotate`.

    Returns:
        A dict from names to curves ``(steps, ...)``. Their mean and variance over the
        steps are ``curve.mean(0)`` and ``curve.var(0)``.

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


def _ahead(
    rotation: ArrayLike, momentum: ArrayLike, base: Base
) -> tuple[jax.Array, jax.Array]:
    """The rotated momentum, and the output of the base."""
    r, m = as_work(jnp.asarray(rotation)), as_work(jnp.asarray(momentum))
    turned, tx = full_dot(r.mT, m), _as_transformation(base)
    direction: Any = tx.update(turned, tx.init(turned))[0]
    return turned, as_work(direction)


def _as_transformation(base: Any) -> optax.GradientTransformation:
    if isinstance(base, optax.GradientTransformation):
        return base
    check_callable("base", base)
    return optax.stateless(lambda updates, _: jax.tree.map(base, updates))
