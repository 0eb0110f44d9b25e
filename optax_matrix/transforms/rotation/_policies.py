"""Policies: how a frame moves from its rotation to the next one."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from optax_matrix._arguments import Positive, PositiveInt, check_callable, checked
from optax_matrix._surroundings.joining import jointly
from optax_matrix.linalg import cross_gram, eigenbasis, polar_qr
from optax_matrix.linalg.precision import project, roots
from optax_matrix.linalg.rotations import project_tangent, qr_retraction
from optax_matrix.linalg.scale import is_some, matrix_norm, unit_peak

Orthonormalize = Callable[..., jax.Array]
Kernel = Callable[[jax.Array, jax.Array, Orthonormalize], jax.Array]


class PolicyInput(NamedTuple):
    """What a policy gets, for one side of each matrix; that side is the rows.

    Attributes:
        momentum: The momentum M, ``(..., p, q)``. If the columns rotate too, they are
            already rotated.
        direction: The output of the base under the current rotation, f(R'M),
            ``(..., p, q)``.
        rotation: The current rotation R, ``(..., p, p)``.
        gram: The averaged Gram matrix, ``(..., p, p)``, of arbitrary scale; None where
            the rotation follows from the momentum alone.
        qr: The kernel that makes columns orthonormal.
        base: The base f as a function of a matrix in the place of the rotated momentum,
            with the state of this step, which it leaves as it is. A base without state
            takes other shapes, too. It gets no ``gradient``, also in `in_eigenbasis`.
            None with shared rotations.
    """

    momentum: jax.Array
    direction: jax.Array
    rotation: jax.Array
    gram: jax.Array | None
    qr: Orthonormalize
    base: Callable[[jax.Array], jax.Array] | None = None


def _q_factor(x: jax.Array, old: jax.Array, qr: Orthonormalize) -> jax.Array:
    return qr(x, previous=old)


@dataclasses.dataclass(frozen=True)
class Policy:
    """How `rotate` and `in_eigenbasis` find the next rotation.

    Attributes:
        step: Function of a `PolicyInput` to the new rotation, ``(..., p, p)``.
        rounds: Number of steps; before each one the base is evaluated again.
        uses_direction: Whether the step uses the direction, so that the base must be
            evaluated ahead of the update.
        spans_range: Whether leading columns of the rotation span the range of the
            momentum.
        rotates: Whether the rotation ever differs from the initial one.
        target: Function of a `PolicyInput` that returns square matrices, from which
            ``kernel`` finds the rotation; `step` is called where it returns None. What
            different stacks have of one size then goes through one call of ``kernel``.
        kernel: Function of these matrices, the current rotation and
            ``qr``; by default the Q factor.

    Examples:
        The second variant of ARO's Remark 12, and gradient ascent in more steps:

        >>> import optax, optax_matrix as om
        >>> from optax_matrix.transforms import Policy, rgd
        >>> def both_sides_by_f(x):
        ...     return x.qr(x.base(x.momentum) @ x.direction.mT)
        >>> tx = om.rotate(optax.scale_by_sign(), policy=Policy(both_sides_by_f))
        >>> tx = om.rotate(optax.scale_by_sign(), policy=rgd(0.02, rounds=50))
    """

    step: Callable[[PolicyInput], jax.Array]
    rounds: int = 1
    uses_direction: bool = True
    spans_range: bool = False
    rotates: bool = True
    target: Callable[[PolicyInput], jax.Array | None] | None = None
    kernel: Kernel = _q_factor


def _check_policy(name: str, value: Any) -> None:
    if not isinstance(value, Policy):
        check_callable(name, value)


PolicyName = Literal["aro", "eigen", "eigen_exact", "polar", "rgd", "identity"]
GramPolicyName = Literal["eigen", "eigen_exact", "identity"]
PolicyLike = Annotated[
    Policy | Callable[[PolicyInput], jax.Array], _check_policy, "a Policy, a function"
]


def _alignment(x: PolicyInput) -> jax.Array:
    return cross_gram(x.momentum, x.direction)


def _is_tall(x: PolicyInput) -> bool:
    return x.momentum.shape[-2] > x.momentum.shape[-1]


def _spanning(x: PolicyInput, v: jax.Array) -> jax.Array:
    """An orthogonal matrix whose leading columns are the Q factor of M V."""
    p, q = x.momentum.shape[-2:]
    mv = project(unit_peak(x.momentum)[0], v)
    padding = [(0, 0)] * (mv.ndim - 1) + [(0, p - q)]
    return x.qr(jnp.pad(mv, padding), previous=x.rotation)


def _aro(x: PolicyInput) -> jax.Array:
    # With more rows than columns M D' is singular, and rounding would decide part of
    # its Q factor. M V spans the same range, where V is the Q factor of leading rows of
    # D: the triangular factor of D', which amplifies rounding errors, is left out.
    return _spanning(x, x.qr(x.direction[..., : x.momentum.shape[-1], :].mT))


def _aro_target(x: PolicyInput) -> jax.Array | None:
    return None if _is_tall(x) else _alignment(x)


def _power_input(x: PolicyInput) -> PolicyInput:
    """A power step on M M' is the alignment of M with R' M."""
    direction = project(x.rotation.mT, x.momentum)
    return x._replace(direction=direction)


def _eigen(x: PolicyInput) -> jax.Array:
    return _aro(_power_input(x))


def _eigen_target(x: PolicyInput) -> jax.Array | None:
    if x.gram is not None:
        return project(x.gram, x.rotation)
    return None if _is_tall(x) else _alignment(_power_input(x))


def _eigen_exact(x: PolicyInput) -> jax.Array:
    gram = cross_gram(x.momentum.mT, dot=roots)
    return _spanning(x, eigenbasis(gram)[1])


def _exact_target(x: PolicyInput) -> jax.Array | None:
    if x.gram is not None:
        return x.gram
    if _is_tall(x):
        return None
    return cross_gram(x.momentum, dot=roots)


def _eigenvectors(gram: jax.Array, old: jax.Array, qr: Orthonormalize) -> jax.Array:
    del qr
    return _unless_zero(gram, eigenbasis(gram)[1], old)


def _polar(x: jax.Array, old: jax.Array, qr: Orthonormalize) -> jax.Array:
    # No singular value is cut off, not even zeros: a rotation must have full rank.
    del qr
    return _unless_zero(x, polar_qr(x, rtol=-1.0), old)


def _unless_zero(x: jax.Array, new: jax.Array, old: jax.Array) -> jax.Array:
    return jnp.where(is_some(x), new, old)


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
    ascend = functools.partial(_ascend, step_size)
    return Policy(_stay, rounds=rounds, target=_alignment, kernel=ascend)


def _ascend(step_size, gradient: jax.Array, old: jax.Array, qr) -> jax.Array:
    norm = matrix_norm(gradient)
    gradient = gradient * (
        step_size * old.shape[-1] ** 0.5 / jnp.where(norm == 0, 1, norm)
    )
    tangent = project_tangent(old, gradient)
    return qr_retraction(old, tangent, qr=qr)


def _stay(x: PolicyInput) -> jax.Array:
    return x.rotation


POLICIES: dict[PolicyName, Policy] = {
    "aro": Policy(_aro, spans_range=True, target=_aro_target),
    "eigen": Policy(
        _eigen, uses_direction=False, spans_range=True, target=_eigen_target
    ),
    "eigen_exact": Policy(
        _eigen_exact,
        uses_direction=False,
        spans_range=True,
        target=_exact_target,
        kernel=_eigenvectors,
    ),
    "polar": Policy(_stay, target=_alignment, kernel=_polar),
    "rgd": rgd(),
    "identity": Policy(_stay, uses_direction=False, rotates=False),
}


def find_policy(policy: PolicyName | PolicyLike) -> Policy:
    """A policy by name, as it is, or made from a function of a `PolicyInput`."""
    if isinstance(policy, Policy):
        return policy
    return Policy(policy) if callable(policy) else POLICIES[policy]


def next_rotations(policy: Policy, inputs: Any) -> Any:
    """Takes a step of a policy for every `PolicyInput` of a tree."""
    is_input = lambda x: isinstance(x, PolicyInput)
    leaves, structure = jax.tree.flatten(inputs, is_leaf=is_input)
    find = policy.target or (lambda _: None)
    targets = {i: find(x) for i, x in enumerate(leaves)}
    targets = {i: x for i, x in targets.items() if x is not None}
    old = {i: leaves[i].rotation for i in targets}
    kernel = lambda x, old: policy.kernel(x, old, leaves[0].qr)
    found = jointly(kernel, targets, old)
    new = [found[i] if i in found else policy.step(x) for i, x in enumerate(leaves)]
    return structure.unflatten(new)
