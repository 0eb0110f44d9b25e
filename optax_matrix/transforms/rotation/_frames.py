"""A transformation in a rotated frame, and the frame's next step.

`rotate` and `in_eigenbasis` share this: rotating matrices into a frame and back without
amplifying rounding noise, and renewing the frame by a policy.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from optax_matrix._surroundings import here
from optax_matrix._surroundings.keeping import kept
from optax_matrix._thresholds import Thresholds
from optax_matrix.linalg.precision import project
from optax_matrix.linalg.scale import unit_peak
from optax_matrix.transforms.rotation._policies import (
    Orthonormalize,
    Policy,
    PolicyInput,
    next_rotations,
)
from optax_matrix.transforms.sides import Pair
from optax_matrix.transforms.turns import renewed, select


def no_rotation(x: jax.Array) -> jax.Array:
    """Identity rotations for the rows of matrices ``(..., p, q)``."""
    eye = jnp.eye(x.shape[-2], dtype=x.dtype)
    return jnp.broadcast_to(eye, (*x.shape[:-1], x.shape[-2]))


def into(x: jax.Array, rotation: Pair) -> jax.Array:
    """Rotates matrices into the frame of the base: ``R' x Q``."""
    rows, cols = rotation
    x = x if rows is None else project(rows.mT, x)
    return x if cols is None else project(x, cols)


def out_of(x: jax.Array, rotation: Pair) -> jax.Array:
    """Rotates matrices back to the frame of the parameters: ``R x Q'``."""
    rows, cols = rotation
    x = x if rows is None else project(rows, x.astype(rows.dtype))
    return x if cols is None else project(x, cols.mT)


def without_noise(x: jax.Array, rotation: Pair, source: jax.Array) -> jax.Array:
    """Sets rows (and columns, if they rotate) of a rotated ``source`` to zero if noise.

    They belong to directions in which the matrices have no range; sign, row norm and
    similar bases would amplify them to full size.
    """
    if rotation.rows is None:
        return x
    # The rounding errors of a product R'x are proportional to the norms of the columns
    # of x. If both sides rotate, the second product adds some that are proportional to
    # the norms of rows.
    y, peak = unit_peak(jnp.asarray(source))
    squares = jnp.sum(y * y, axis=-2, keepdims=True)
    if rotation.cols is not None:
        rows = jnp.sum(y * y, axis=-1, keepdims=True)
        squares = jnp.maximum(_largest(squares), _largest(rows))
    factor = 4 * jnp.finfo(x.dtype).eps * max(x.shape[-2:]) ** 0.5
    noise = factor * jnp.sqrt(squares) * peak
    above = ~(jnp.abs(x) < noise)
    if rotation.cols is None:
        live = jnp.any(above, axis=-1, keepdims=True)
    else:  # The bound is one number, which the largest entry of a row decides.
        largest = lambda axis: jnp.max(jnp.abs(x), axis=axis, keepdims=True)
        live = ~(largest(-1) < noise) & ~(largest(-2) < noise)
    # Single small entries stay, for their signs are nearly always right, but not in
    # small matrices: there rows of signs often differ in one entry only, and then ARO's
    # rotated momentum has entries that are zero.
    if max(x.shape[-2:]) <= Thresholds.noise_side:
        live &= above
    return jnp.where(live, x, 0)


def _largest(x: jax.Array) -> jax.Array:
    return jnp.max(x, axis=(-2, -1), keepdims=True)


def leading_square(spans: jax.Array | bool, x: jax.Array, rotation: Pair) -> jax.Array:
    """Sets a rotated momentum to zero outside its leading square, where it is noise.

    ``spans`` says, for all or each matrix, whether leading columns of the rotation span
    the momentum's range.
    """
    # A momentum of p rows and fewer columns, q, has a range of at most q dimensions. If
    # the leading columns of its rotation span that range, the other rows are zero, but
    # for rounding errors that grow with the condition number of the momentum.
    p, q = x.shape[-2:]
    inside = jnp.arange(p)[:, None] < q
    if rotation.cols is not None:
        inside &= jnp.arange(q) < p
    elif rotation.rows is None or p <= q:
        return x
    elsewhere = jnp.logical_not(spans)[..., None, None]
    return jnp.where(inside | elsewhere, x, 0)


def in_frame(policy: Policy, matrices: Any, rotation: Any, spans: Any = False) -> Any:
    """A tree of matrices as the base sees them: rotated, without noise."""
    x = jax.tree.map(into, matrices, rotation)
    if spans is True:
        x = jax.tree.map(functools.partial(leading_square, True), x, rotation)
    elif spans is not False:
        x = jax.tree.map(leading_square, spans, x, rotation)
    if policy.rotates:
        x = jax.tree.map(without_noise, x, rotation, matrices)
    return x


class NextFrame(NamedTuple):
    """Finds the rotations of an update.

    Attributes:
        policy: The policy.
        qr: The kernel that makes columns orthonormal.
        base: The base as a function of the rotated momentum alone.
        ahead: Function from rotations to the output of the base in that frame.
    """

    policy: Policy
    qr: Orthonormalize
    base: Callable[[Any], Any]
    ahead: Callable[[Any], Any]

    def __call__(self, last: Any, due: Any, momentum: Any, grams: Any = None) -> Any:
        """The new rotations where a renewal is due, the last ones elsewhere.

        ``due`` is True, or a tree of booleans ``(...)``.
        """
        if grams is None:
            grams = jax.tree.map(lambda _: Pair(None, None), momentum)
        bases = self._bases(momentum)

        def every(rotation):
            for _ in range(self.policy.rounds):
                # A policy that does not use the direction gets M in its place.
                uses = self.policy.uses_direction
                ahead = self.ahead(rotation) if uses else momentum
                trees = momentum, ahead, rotation, grams, bases
                inputs = jax.tree.map(self._inputs, *trees)
                rotation = next_rotations(self.policy, inputs)
            return rotation

        if due is True:
            return kept(every(last), last)

        def renew(due, old):
            swap = lambda d, *pair: jax.tree.map(functools.partial(select, d), *pair)
            return jax.tree.map(swap, due, every(old), old)

        # Devices of a team call the base together, but not all of them may be due.
        in_team = self.policy.uses_direction and bool(here().shared)
        return renewed(renew, due, last, if_any=not in_team)

    def _inputs(self, m, d, rotation: Pair, gram: Pair, base: Callable) -> Pair:
        """What the policy gets for each side; both sides start from the old frame."""
        (rows, cols), grams = rotation, _normalized(gram)
        if rows is None:
            return rotation
        if cols is None:
            return Pair(PolicyInput(m, d, rows, grams.rows, self.qr, base), None)
        left, right = project(m, cols), project(m.mT, rows)
        turned = lambda x: base(x.mT).mT
        return Pair(
            PolicyInput(left, d, rows, grams.rows, self.qr, base),
            PolicyInput(right, d.mT, cols, grams.cols, self.qr, turned),
        )

    def _bases(self, momentum: Any) -> Any:
        """Per leaf the base as a function of that leaf; the others stay unrotated."""
        leaves, structure = jax.tree.flatten(momentum)

        def of(at):
            def base(x):
                swapped = [*leaves[:at], x, *leaves[at + 1 :]]
                out = self.base(structure.unflatten(swapped))
                return structure.flatten_up_to(out)[at]

            return base

        return structure.unflatten([of(at) for at in range(len(leaves))])


def _normalized(gram: Pair) -> Pair:
    return Pair(*(None if x is None else x.normalized for x in gram))
