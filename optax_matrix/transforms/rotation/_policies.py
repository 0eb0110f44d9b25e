"""The policies of `rotate`: how the new rotation is computed.

A policy is a step from the current rotation, the momentum and the output of the base to
the next rotation.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from optax_matrix._arguments import Positive, PositiveInt, check_callable, checked
from optax_matrix._surroundings.joining import jointly
from optax_matrix.linalg import cross_gram, eigenbasis, polar_qr, power_step
from optax_matrix.linalg.products import full_dot
from optax_matrix.linalg.rotations import project_tangent, qr_retraction
from optax_matrix.linalg.scale import unit_peak
from optax_matrix.transforms.numerics import matrix_norm
from optax_matrix.transforms.second_moments import Gram
from optax_matrix.transforms.sides import Pair

Orthonormalize = Callable[..., jax.Array]


class Side(NamedTuple):
    """The inputs of a policy, for one side of each matrix; that side is the rows.

    Attributes:
        momentum: The momentum M, ``(..., p, q)``. If the columns rotate too, they are
            already rotated.
        direction: The output of the base under the current rotation, f(R'M),
            ``(..., p, q)``.
        rotation: The current rotation R, ``(..., p, p)``.
        gram: The accumulated statistic, ``(..., p, p)``, of arbitrary scale; None where
            the rotation follows from the momentum alone.
        qr: The kernel that makes columns orthonormal.
        base: The base f as a function of a matrix in the place of the rotated momentum,
            with the state of this step, which it leaves as it is. A base without state
            takes other shapes, too. It gets no ``gradient``, also with the statistics
            of the gradient. None with shared rotations.
    """

    momentum: jax.Array
    direction: jax.Array
    rotation: jax.Array
    gram: jax.Array | None
    qr: Orthonormalize
    base: Callable[[jax.Array], jax.Array] | None = None


@dataclasses.dataclass(frozen=True)
class Policy:
    """How `rotate` finds the next rotation: a step, and what is known of it.

    Attributes:
        step: Function of a `Side` that returns the new rotation, ``(..., p, p)``.
        rounds: Number of steps; before each one the base is evaluated again.
        looks: Whether the step uses the direction, so that the base must be evaluated
            ahead of the update.
        spans: Whether leading columns of the rotation span the range of the momentum.
        turns: Whether the rotation ever differs from the initial one.
        target: Function of a `Side` that returns square matrices whose Q factor is the
            new rotation, or None where only the step finds it. Sides of one size are
            then orthonormalized together.

    Examples:
        The second variant of ARO's Remark 12, and gradient ascent in more steps:

        >>> import optax, optax_matrix as om
        >>> from optax_matrix.transforms import Policy, rgd
        >>> def both_sides_by_f(side):
        ...     return side.qr(side.base(side.momentum) @ side.direction.mT)
        >>> tx = om.rotate(optax.scale_by_sign(), policy=Policy(both_sides_by_f))
        >>> tx = om.rotate(optax.scale_by_sign(), policy=rgd(0.02, rounds=50))
    """

    step: Callable[[Side], jax.Array]
    rounds: int = 1
    looks: bool = True
    spans: bool = False
    turns: bool = True
    target: Callable[[Side], jax.Array | None] | None = None


def _check_policy(name: str, value: Any) -> None:
    if not isinstance(value, Policy):
        check_callable(name, value)


PolicyName = Literal["aro", "eigen", "eigen_exact", "polar", "rgd", "identity"]
PolicyLike = Annotated[
    Policy | Callable[[Side], jax.Array], _check_policy, "a Policy, a function"
]


def _aro(side: Side) -> jax.Array:
    return _q_factor(side, side.direction)


def _aro_target(side: Side) -> jax.Array | None:
    return _target(side, side.direction)


def _eigen(side: Side) -> jax.Array:
    if side.gram is not None:
        return power_step(side.gram, side.rotation, qr=side.qr)
    return _q_factor(side, full_dot(side.rotation.mT, side.momentum))


def _eigen_target(side: Side) -> jax.Array | None:
    if side.gram is not None:
        return full_dot(side.gram, side.rotation)
    return _target(side, full_dot(side.rotation.mT, side.momentum))


def _eigen_exact(side: Side) -> jax.Array:
    gram, m = side.gram, side.momentum
    if gram is None and _is_tall(m):
        return _spanning(side, eigenbasis(cross_gram(m.mT, m.mT))[1])
    if gram is None:
        gram = cross_gram(m, m)
    return _unless_zero(eigenbasis(gram)[1], side)


def _polar(side: Side) -> jax.Array:
    # No singular value is cut off, not even zeros: a rotation must have full rank.
    return _unless_zero(polar_qr(_alignment(side), rtol=-1.0), side)


@checked
def rgd(step_size: Positive = 0.1, rounds: PositiveInt = 10) -> Policy:
    r"""Riemannian gradient ascent on ARO's objective, as a policy of `rotate`.

    .. math::
        R \leftarrow \mathrm{qr}(R + \eta \sqrt{p} \, T / \|M D^\top\|_F)

    where T is the tangent part of the gradient :math:`M D^\top` at R.

    Args:
        step_size: The size :math:`\eta` of a step.
        rounds: Number of steps per renewal.

    Returns:
        A policy. The name ``"rgd"`` stands for the defaults.

    Raises:
        ValueError: If an argument is out of range.

    References:
        ARO, Section 5.3.
    """
    return Policy(functools.partial(_ascend, step_size=step_size), rounds=rounds)


def _ascend(side: Side, step_size: Any) -> jax.Array:
    gradient = _alignment(side)
    norm = matrix_norm(gradient)
    size = step_size * side.rotation.shape[-1] ** 0.5
    gradient = gradient * (size / jnp.where(norm == 0, 1, norm))
    tangent = project_tangent(side.rotation, gradient)
    return qr_retraction(side.rotation, tangent, qr=side.qr)


def _stay(side: Side) -> jax.Array:
    return side.rotation


POLICIES: dict[PolicyName, Policy] = {
    "aro": Policy(_aro, spans=True, target=_aro_target),
    "eigen": Policy(_eigen, looks=False, spans=True, target=_eigen_target),
    "eigen_exact": Policy(_eigen_exact, looks=False, spans=True),
    "polar": Policy(_polar),
    "rgd": rgd(),
    "identity": Policy(_stay, looks=False, turns=False),
}
FROM_GRAM = tuple(name for name, policy in POLICIES.items() if not policy.looks)


def _alignment(side: Side) -> jax.Array:
    return cross_gram(side.momentum, side.direction)


def _is_tall(m: jax.Array) -> bool:
    return m.shape[-2] > m.shape[-1]


def _target(side: Side, d: jax.Array) -> jax.Array | None:
    """M D', unless it is singular because M has more rows than columns."""
    return None if _is_tall(side.momentum) else cross_gram(side.momentum, d)


def _q_factor(side: Side, d: jax.Array) -> jax.Array:
    """The Q factor of M D'."""
    m, target = side.momentum, _target(side, d)
    if target is not None:
        return side.qr(target, previous=side.rotation)
    # Leaves out the triangular factor of D', which would amplify rounding errors.
    return _spanning(side, side.qr(d[..., : m.shape[-1], :].mT))


def _spanning(side: Side, v: jax.Array) -> jax.Array:
    """An orthogonal matrix whose leading columns are the Q factor of M V."""
    p, q = side.momentum.shape[-2:]
    mv = full_dot(unit_peak(side.momentum)[0], v)
    padding = [(0, 0)] * (mv.ndim - 1) + [(0, p - q)]
    return side.qr(jnp.pad(mv, padding), previous=side.rotation)


def _unless_zero(rotation: jax.Array, side: Side) -> jax.Array:
    source = side.momentum if side.gram is None else side.gram
    live = jnp.any(source != 0, axis=(-2, -1), keepdims=True)
    return jnp.where(live, rotation, side.rotation)


def find_policy(policy: PolicyName | PolicyLike, statistics: str) -> Policy:
    """Finds a policy by name, or makes one from a function.

    Args:
        policy: A key of `POLICIES`, a `Policy`, or a function of a `Side`.
        statistics: ``"momentum"``, ``"gradient"`` or ``"kl"``.

    Returns:
        The policy.

    Raises:
        ValueError: If the policy does not support the statistics.
    """
    if isinstance(policy, Policy):
        return policy
    if callable(policy):
        return Policy(policy)
    if statistics != "momentum" and policy not in FROM_GRAM:
        raise ValueError(
            f"`policy` must be one of {FROM_GRAM} with statistics={statistics!r}, got "
            f"{policy!r}; the others need the momentum."
        )
    return POLICIES[policy]


def is_due(count: jax.Array, interval: int, accumulates: bool) -> jax.Array:
    """ARO renews at 1, K + 1, 2K + 1, ...; accumulating methods at 1, K, 2K, ..."""
    if not accumulates:
        return count % interval == 0
    return (count == 0) | ((count + 1) % interval == 0)


def sides_of(
    qr: Orthonormalize,
    m: jax.Array,
    d: jax.Array,
    old: Pair,
    gram: Pair,
    base: Callable,
) -> Pair:
    """The inputs of a policy on each side; both start from the old frame."""
    rows, cols = old
    if rows is None:
        return old
    if cols is None:
        return Pair(Side(m, d, rows, _normalized(gram.rows), qr, base), None)
    turned = lambda x: base(x.mT).mT
    left, right = full_dot(m, cols), full_dot(m.mT, rows)
    return Pair(
        Side(left, d, rows, _normalized(gram.rows), qr, base),
        Side(right, d.mT, cols, _normalized(gram.cols), qr, turned),
    )


def next_rotations(policy: Policy, sides: Any) -> Any:
    """Takes a step of a policy on every `Side` of a tree."""
    is_side = lambda x: isinstance(x, Side)
    leaves, structure = jax.tree.flatten(sides, is_leaf=is_side)
    if policy.target is None or not leaves:
        return structure.unflatten([policy.step(side) for side in leaves])
    targets = {str(i): policy.target(side) for i, side in enumerate(leaves)}
    targets = {i: x for i, x in targets.items() if x is not None}
    previous = {i: leaves[int(i)].rotation for i in targets}
    qr = leaves[0].qr

    def orthonormalized(targets: Any, _: Any, previous: Any) -> Any:
        return {i: qr(x, previous=previous[i]) for i, x in targets.items()}

    found = jointly(orthonormalized, targets, dict.fromkeys(targets), previous)
    steps = enumerate(leaves)
    new = [found[str(i)] if str(i) in found else policy.step(x) for i, x in steps]
    return structure.unflatten(new)


def _normalized(gram: Gram | None) -> jax.Array | None:
    return None if gram is None else gram.normalized
