"""One rotation for a set of matrices: those at the same point of the residual stream.

The set acts like one wide matrix, the concatenation of its members along the columns.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from optax_matrix._arguments import Kernel, PositiveInt, check_choice, checked
from optax_matrix._surroundings.layouts import of_layout
from optax_matrix._surroundings.observation import in_another_frame
from optax_matrix.linalg import cholesky_qr
from optax_matrix.linalg.precision import project
from optax_matrix.linalg.scale import safe_divide
from optax_matrix.transforms.arguments import Transformation
from optax_matrix.transforms.rotation._frames import in_frame, out_of
from optax_matrix.transforms.rotation._policies import (
    Policy,
    PolicyInput,
    PolicyLike,
    PolicyName,
    find_policy,
    next_rotations,
)
from optax_matrix.transforms.sides import (
    Pair,
    SidesOfLayout,
    side_views,
    turned,
    turned_back,
    turned_zeros,
)
from optax_matrix.transforms.turns import counted, select


@dataclasses.dataclass(frozen=True)
class Sets:
    """Which matrices of a dict of stacks share a rotation.

    Attributes:
        member: For each stack the index of each matrix's set, int32 ``(b,)``.
        count: Number of sets.
        axes: For each stack the mesh axes over which its matrices are spread inside
            `jax.shard_map`; empty outside of it.
    """

    member: Mapping[str, Any]
    count: int
    axes: Mapping[str, tuple[str, ...]]

    def total(self, parts: Mapping[str, jax.Array]) -> jax.Array:
        """Sums values ``(b, ...)`` over the matrices of each set: ``(count, ...)``."""
        local = self._by_set(parts, jax.ops.segment_sum)
        return self._all_reduce(local, jax.lax.psum, jnp.add)

    def largest(self, parts: Mapping[str, jax.Array]) -> jax.Array:
        """The largest of the nonnegative numbers ``(b,)`` of each set."""
        local = self._by_set(parts, jax.ops.segment_max)
        some = {n: jnp.maximum(x, 0) for n, x in local.items()}  # Empty sets have -inf.
        return self._all_reduce(some, jax.lax.pmax, jnp.maximum)

    def of_each(self, values: jax.Array) -> dict[str, jax.Array]:
        """Distributes values of sets ``(count, ...)`` to their matrices."""
        return {name: values[index] for name, index in self.member.items()}

    def _by_set(self, parts: Mapping[str, jax.Array], reduce) -> dict[str, jax.Array]:
        return {n: reduce(x, self.member[n], self.count) for n, x in parts.items()}

    def _all_reduce(self, local: Mapping[str, jax.Array], reduce, join) -> jax.Array:
        """Reduces stacks over axes that not all have, then all over the common ones."""
        common = [a for a in next(iter(self.axes.values()), ()) if self._everywhere(a)]
        own = {n: tuple(a for a in self.axes[n] if a not in common) for n in local}
        parts = [reduce(x, own[n]) if own[n] else x for n, x in local.items()]
        whole = functools.reduce(join, parts)
        return reduce(whole, tuple(common)) if common else whole

    def _everywhere(self, axis: str) -> bool:
        return all(axis in axes for axes in self.axes.values())


class RotateSharedState(NamedTuple):
    """State of `rotate_shared`.

    Attributes:
        count: Per set the number of updates since its first gradient, int32; None
            where every update renews the rotations.
        rotation: Orthogonal matrices ``(sets, p, p)``, at least float32, the same on
            every device.
        base_state: State of the base.
    """

    count: Any
    rotation: jax.Array
    base_state: Any


@checked
def rotate_shared(
    base: Transformation,
    sets: Sets | Callable[[Any], Sets],
    *,
    sides: Mapping[str, str] | SidesOfLayout,
    policy: PolicyName | PolicyLike = "aro",
    qr: Kernel = cholesky_qr,
    update_interval: PositiveInt = 1,
) -> optax.GradientTransformationExtraArgs:
    r"""Runs a transformation in a rotated frame that a set of matrices shares.

    .. math::
        R = \mathrm{qr}\Big(\sum_i M_i D_i^\top\Big), \qquad
        \Delta_i = R \, f(R^\top M_i)

    over the matrices :math:`M_i` of a set, with the rotated side as rows. This is
    `rotate` of their concatenation along the columns. A base that combines columns gets
    two extra arguments: ``sum_rows``, a function that sums ``(b, p)`` over each set,
    and ``peak``, the largest entry of each set's momenta, ``(b,)``, to keep squares in
    range; see `equilibrate_rows_jointly`. Where matrices are spread over devices, a
    step costs an all-reduce of one number and one of ``p * p`` per set, in addition to
    those of the base.

    Args:
        base: A transformation of a dict of stacks.
        sets: The sets of matrices that share a rotation. Inside `on_matrices`, ``sets``
            and ``sides`` may be functions from the `stacks.Layout` to these values.
        sides: For each stack the side that rotates, ``"out"`` or ``"in"``. All of these
            sides have the same size.
        policy: Policy, as in `rotate`. A function gets one `PolicyInput` for all sets,
            with :math:`\sum_i M_i D_i^\top` as momentum and the identity as direction.
        qr: Kernel that orthonormalizes columns, as in `rotate`.
        update_interval: Number K of updates between renewals of the rotations, at
            updates 1, K + 1, 2K + 1, ...

    Returns:
        A transformation of dicts of stacks ``(b, m, n)``.

    Raises:
        ValueError: If an argument is out of range; at `init`, if the sides that rotate
            differ in size.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax
        >>> from optax_matrix.transforms.rotation import Sets, rotate_shared
        >>> sets = Sets({"w": jnp.zeros(2, int)}, 1, {"w": ()})
        >>> tx = rotate_shared(optax.scale_by_sign(), sets, sides={"w": "out"})
        >>> tx.init({"w": jnp.ones((2, 3, 4))}).rotation.shape
        (1, 3, 3)

    References:
        ARO, Section 4.2, Eq. 47, 51 and 52, Table 3.
    """
    if not callable(sides):
        for side in sides.values():
            check_choice("sides", side, ("out", "in"))
    base = optax.with_extra_args_support(base)
    found = find_policy(policy)

    def known() -> _Shared:
        """The block for the matrices of this device."""
        values = of_layout("sets", sets), of_layout("sides", sides)
        return _Shared(base, *values, found, qr, update_interval)

    return optax.GradientTransformationExtraArgs(
        init=lambda params: known().init(params),
        update=lambda *args, **extra: known().update(*args, **extra),
    )


@dataclasses.dataclass(frozen=True)
class _Shared:
    base: optax.GradientTransformationExtraArgs
    sets: Sets
    sides: Mapping[str, str]
    policy: Policy
    qr: Callable[..., jax.Array]
    interval: int

    def init(self, params: Any) -> RotateSharedState:
        seen = turned_zeros(side_views(self.sides, params), params)
        sizes = {name: x.shape[-2] for name, x in seen.items()}
        if len(set(sizes.values())) > 1:
            raise ValueError(
                f"`sides` must have the same size to share a rotation, got {sizes}; "
                "rotate the others separately."
            )
        first = next(iter(seen.values()), jnp.zeros((0, 0)))
        side, dtype = first.shape[-2], first.dtype
        eye, once = jnp.eye(side, dtype=dtype), self.interval == 1
        return RotateSharedState(
            count=None if once else jnp.zeros(self.sets.count, jnp.int32),
            rotation=jnp.broadcast_to(eye, (self.sets.count, side, side)),
            base_state=self.base.init(seen),
        )

    def update(self, updates: Any, state: Any, params: Any = None, **extra: Any):
        del params
        if not updates:
            return updates, state
        sets, views = self.sets, side_views(self.sides, updates)
        given = extra.pop("gradient", None)
        mean, gradient = turned(views, updates), turned(views, given)
        fixed = jax.lax.stop_gradient(mean)  # The peaks cancel out.
        peak = sets.largest({n: jnp.max(jnp.abs(x), (1, 2)) for n, x in fixed.items()})
        peaks = sets.of_each(peak)
        unit = {n: safe_divide(x, peaks[n][:, None, None]) for n, x in mean.items()}
        extra["sum_rows"] = lambda parts: sets.of_each(sets.total(parts))
        extra["peak"] = peaks
        answer = functools.partial(
            self._answer, mean, gradient, state.base_state, extra
        )
        rotation = self._next_rotation(answer, unit, peak > 0, state)
        out: Any
        out, base_state = answer(rotation)
        frames = self._frames(rotation)
        out = {n: out_of(x, frames[n]) for n, x in out.items()}
        out = turned_back(views, out, updates)
        count = state.count
        if count is not None:
            count = counted(count, (count > 0) | (peak > 0))
        return out, RotateSharedState(count, rotation, base_state)

    def _frames(self, rotation: jax.Array) -> dict[str, Pair]:
        return {n: Pair(r, None) for n, r in self.sets.of_each(rotation).items()}

    def _answer(
        self, mean: Any, gradient: Any, base_state: Any, extra: Any, rotation: jax.Array
    ):
        """The output of the base in rotated frames, and its new state."""
        frames = self._frames(rotation)
        seen = functools.partial(in_frame, self.policy)
        if gradient is not None:
            extra = {**extra, "gradient": seen(gradient, frames)}
        with in_another_frame():
            return self.base.update(seen(mean, frames), base_state, **extra)

    def _next_rotation(
        self, answer: Callable, unit: Any, live: jax.Array, state: RotateSharedState
    ) -> jax.Array:
        due = live
        if self.interval > 1:
            due = live & (state.count % self.interval == 0)

        def renewed(rotation):
            for _ in range(self.policy.rounds):
                new = next_rotations(self.policy, self._input(answer, unit, rotation))
                rotation = select(due, new, rotation)
            return rotation

        if self.interval == 1:
            return renewed(state.rotation)
        return jax.lax.cond(due.any(), renewed, lambda old: old, state.rotation)

    def _input(self, answer: Callable, unit: Any, rotation: jax.Array) -> PolicyInput:
        """Each set as one matrix: its alignments, or its Gram matrices, summed."""
        uses = self.policy.uses_direction
        partner = answer(rotation)[0] if uses else unit
        parts = {n: project(x, partner[n].mT) for n, x in unit.items()}
        whole = self.sets.total(parts)
        eye = jnp.broadcast_to(jnp.eye(whole.shape[-1], dtype=whole.dtype), whole.shape)
        gram = None if uses else whole
        return PolicyInput(whole, eye, rotation, gram, self.qr)
