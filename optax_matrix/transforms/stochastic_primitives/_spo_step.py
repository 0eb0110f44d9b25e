"""One update of `spo`: the gradient of Q, its step, and merges into the weights."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from optax_matrix._mesh import vary_like
from optax_matrix._platforms import by_platform, in_turn, is_large_stack
from optax_matrix._surroundings.keeping import kept, movable, note_kept
from optax_matrix._thresholds import Thresholds
from optax_matrix.linalg.permuted_blocks import (
    materialize,
    permute,
    recover_frame,
    rotate_sides,
)
from optax_matrix.linalg.scale import widened
from optax_matrix.transforms.stochastic_primitives._edits import edited, with_edits
from optax_matrix.transforms.stochastic_primitives._fingerprint import (
    fingerprint,
    update_towards,
)
from optax_matrix.transforms.stochastic_primitives._rare import Decide, decided
from optax_matrix.transforms.stochastic_primitives.merges import Merges, reset_moments
from optax_matrix.transforms.stochastic_primitives.primitives import Primitives
from optax_matrix.transforms.turns import any_of, select


class SpoState(NamedTuple):
    """State of `spo`. A side is ``"out"`` (rows) or ``"in"`` (columns).

    Attributes:
        count: Number of updates.
        merges: Per leaf and matrix the number of merges, int32 ``(...)``.
        perms: Per leaf and side the permutation of the primitive, int32 ``(..., m)``
            or ``(..., n)``.
        q: Per leaf and side the strict upper triangles of the blocks' Q,
            ``(..., k, b (b - 1) / 2)``, at least float32.
        frame: Per leaf :math:`W_0`, permuted on both sides, ``(..., m, n)``, at least
            float32; None if it is recovered.
        applied: Per leaf and matrix a fingerprint of the parameters that the last
            update leads to, uint32 ``(...)``; None if the frame is recovered.
        inner_state: State of the inner transformation.
    """

    count: Any
    merges: Any
    perms: Any
    q: Any
    frame: Any
    applied: Any
    inner_state: Any


@dataclasses.dataclass(frozen=True)
class Spo:
    inner: optax.GradientTransformationExtraArgs
    primitives: Primitives
    merges: Merges
    resets: bool
    stored: bool
    update_dtype: Any

    def init(self, params: Any) -> SpoState:
        merges = jax.tree.map(lambda w: jnp.zeros(w.shape[:-2], jnp.int32), params)
        perms = self.merges.draw(merges, params)
        q = jax.tree.map(self.primitives.zeros, params)
        permuted = lambda w, perm: permute(widened(w), perm)
        return SpoState(
            count=jnp.zeros((), jnp.int32),
            merges=merges,
            perms=perms,
            q=q,
            frame=jax.tree.map(permuted, params, perms) if self.stored else None,
            applied=jax.tree.map(fingerprint, params) if self.stored else None,
            inner_state=self.inner.init(q),
        )

    def update(
        self, updates: Any, state: Any, params: Any = None, **extra_args: Any
    ) -> tuple[Any, SpoState]:
        if params is None:
            raise ValueError(
                "`params` must be passed to `update`, because primitives act on the "
                "parameters; call tx.update(updates, state, params)."
            )
        if extra_args.get("gradient") is not None:
            raise ValueError(
                "`gradient` must not be given to `spo`, whose inner transformation "
                "sees gradients of Q and none of the weights; write "
                "spo(with_gradient(inner), ...)."
            )
        step = partial(self._step, updates, state, params, extra_args)
        expected = None
        if self.merges.merge_at is None:
            count = optax.safe_increment(state.count)
            expected = self._edits(params, state) | self.merges.every(count)
        new, after = decided(step, (updates, state), expected)
        # `_step` has left alone what does not change.
        held = lambda s: (s.frame, s.q, s.inner_state)
        note = lambda x, y: note_kept(x, y) if x.dtype == y.dtype else None
        jax.tree.map(note, held(after), held(state))
        return new, after

    def _edits(self, params: Any, state: SpoState) -> jax.Array:
        """Whether any matrix has been changed from outside."""
        if not self.stored:
            return jnp.zeros((), bool)
        return any_of(jax.tree.map(edited, params, state.applied))

    def _step(
        self, updates: Any, state: SpoState, params: Any, extra: Any, decide: Decide
    ) -> tuple[tuple[Any, SpoState], jax.Array]:
        """`update`, and whether anything was merged or had been edited."""
        start, applied = state.frame, state.applied
        if not self.stored:
            start = jax.tree.map(widened, params)
            applied = jax.tree.map(lambda _: None, params)
        moving = movable(jax.tree.map(lambda n: n >= 0, state.merges))  # Of all.
        gradient = partial(self._gradient, decide)
        frame, grads = _on_leaves(
            *(gradient, 1, start, params, applied, moving),
            *(state.perms, state.q, updates),
        )
        steps, inner_state = self.inner.update(
            grads, state.inner_state, state.q, **extra
        )
        q: Any = optax.apply_updates(state.q, steps)
        q, inner_state = kept((q, inner_state), old := (state.q, state.inner_state))
        count: Any = optax.safe_increment(state.count)
        due, merges, perms = (
            self.merges.due(count, q, params),
            state.merges,
            state.perms,
        )
        if due is not None:
            due = movable(due)
            merges = jax.tree.map(lambda n, d: n + d.astype(n.dtype), merges, due)
            perms = self.merges.redraw(decide, due, merges, params, perms)
        moves = self.stored and due is not None
        # The gradient is not needed any more: the update reuses its memory.
        place = jax.tree.map(lambda g, w: g.astype(w.dtype), updates, params)
        new, *merged, applied = _on_leaves(
            partial(self._move, decide),
            1 + moves,
            *(place, frame, params, state.perms, perms, state.q, q),
            due if moves else jax.tree.map(lambda _: None, params),
        )
        frame = merged[0] if moves else frame
        if due is not None:
            every, now = self.merges.every(count), (q, inner_state)
            reset = lambda: kept(self._reset(due, every, *now), old)
            q, inner_state = decide(any_of(due), reset, lambda: now)
        new_state = SpoState(
            count=count,
            merges=merges,
            perms=perms,
            q=q,
            frame=frame if self.stored else None,
            applied=applied if self.stored else None,
            inner_state=inner_state,
        )
        return (new, new_state), any_of(due) | self._edits(params, state)

    def _gradient(
        self, decide, frame, w, applied, moving, perms, q, g
    ) -> tuple[jax.Array, Any]:
        """The permuted W_0 of the current parameters, and the gradient of Q."""
        blocks, of_blocks = jax.vjp(lambda q: self.primitives.blocks(q, w), q)
        if self.stored:
            frame = with_edits(decide, frame, w, applied, moving, perms, blocks)
        else:
            frame = recover_frame(frame, blocks, perms)
        # The derivative is that of the permuted W. W itself would be permuted back, and
        # its gradient permuted again.
        of_w = jax.vjp(lambda blocks: rotate_sides(frame, blocks), blocks)[1]
        (out,) = of_blocks(*of_w(permute(g.astype(frame.dtype), perms)))
        most = float(jnp.finfo(frame.dtype).max) ** 0.5 / 16
        return frame, jax.tree.map(lambda x: jnp.clip(x, -most, most), out)

    def _move(
        self, decide, place, frame, w, perms, drawn, q, new_q, due
    ) -> tuple[Any, ...]:
        """The update; the frame, if merges are on; a fingerprint of the new W."""
        del place
        blocks = self.primitives.blocks
        at = lambda q: materialize(frame, blocks(q, frame), perms)
        target = at(new_q)
        if not self.stored:
            # Adding a difference keeps rounding of the inverses from accumulating.
            target = widened(w) + (target - at(q))
        update, applied = update_towards(target, w, self.update_dtype)
        if due is None:
            return update, fingerprint(applied)
        merge = lambda: select(due, permute(target, drawn), frame)
        merged = decide(jnp.any(due), merge, lambda: frame)
        return update, merged, fingerprint(applied)

    def _reset(self, due: Any, every: Any, q: Any, inner_state: Any) -> tuple[Any, Any]:
        """Triangles of identity rotations, and the inner state reset accordingly."""
        due = jax.tree.map(lambda d, sides: dict.fromkeys(sides, d), due, q)
        if self.resets:
            inner_state = reset_moments(self.inner.init(q), inner_state, due, every)
        q = jax.tree.map(lambda d, x: select(d, 0, x), due, q)
        return q, vary_like(inner_state, q)


def _on_leaves(
    kernel: Callable[..., tuple], in_place: int, *trees: Any
) -> tuple[Any, ...]:
    """Applies a kernel to each leaf of the first tree and its counterparts in the rest.

    On a CPU it takes large matrices in turn, and its first ``in_place`` results reuse
    the memory of as many arguments; it returns one result more. Its intermediates then
    exist for one matrix only. Otherwise XLA's CPU scheduler, which runs as much as it
    can at once, keeps those of all leaves alive together.
    """
    structure = jax.tree.structure(trees[0])
    rows = zip(*map(structure.flatten_up_to, trees), strict=True)
    one_by_one = in_turn(kernel, in_place=in_place)

    def run(*stacks: Any) -> tuple:
        large = is_large_stack(*stacks, side=Thresholds.primitives_side)
        return by_platform(kernel, *stacks, cpu=one_by_one if large else None)

    results = [run(*row) for row in rows]
    columns = range(in_place + 1)
    return tuple(structure.unflatten([row[i] for row in results]) for i in columns)
