"""POET as a reparameterization: fixed matrices between trainable rotations."""

import dataclasses
import functools
from collections.abc import Hashable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike
from jaxtyping import Array

from optax_matrix._mesh import keep_sharding
from optax_matrix._paths import map_named, named_leaves
from optax_matrix.matrices.decisions import decide, views_of
from optax_matrix.matrices.view import MatrixView
from optax_matrix.stacks.identities import paths_by_checksum
from optax_matrix.stacks.zeros import warn_of_zero_leaves
from optax_matrix.transforms.arguments import check_transformation
from optax_matrix.transforms.stochastic_primitives.primitives import Primitives
from optax_matrix.transforms.stochastic_primitives.skew_bound import bounded, reached
from optax_matrix.transforms.turns import select
from optax_matrix.weights._leaf import draw, materialize_leaf, permute_leaf, zeros
from optax_matrix.weights._reset import OTHERS, ROTATIONS, reset_rotations
from optax_matrix.weights._sharding import (
    in_type_of,
    replicated_beside,
    shardings_beside,
)

_ABSENT = optax.MaskedNode()


class Frozen(NamedTuple):
    """The part without gradients: plain arrays, to be saved with the trainable part.

    Attributes:
        weights: The tree of the parameters. Its matrices are W_0, with rows and columns
            in the order of `perms`; trained leaves are absent.
        perms: Permutations by path, piece and side, int32
            ``(matrices, size of the side)``.
        merges: Numbers of merges so far, by path and piece, int32 ``(matrices,)``.
        count: Number of updates since the last merge of all matrices.
    """

    weights: Any
    perms: dict[str, list[dict[str, Array]]]
    merges: dict[str, list[Array]]
    count: Array


class Trainable(NamedTuple):
    """The part that is trained.

    Attributes:
        rotations: By path, piece and side, the strict upper triangles of
            skew-symmetric blocks, float32 ``(matrices, blocks, b (b - 1) / 2)``; zero
            is the identity.
        others: The tree of the parameters without its matrices.
    """

    rotations: dict[str, list[dict[str, Array]]]
    others: Any


@dataclasses.dataclass(frozen=True)
class Reparameterization:
    """The map from rotations to weights, from `reparameterize`; holds no arrays."""

    primitives: Primitives
    merge_interval: int | None
    merge_at: Any
    reset: str
    dimension_numbers: Any
    train_others: bool
    in_turn: bool

    def split(self, params: Any) -> tuple[Frozen, Trainable]:
        """Splits parameters; `materialize` of the result returns them.

        Args:
            params: Parameters, sharded or not; their shapes under `jax.eval_shape`.

        Returns:
            The frozen and the trainable part. Frozen matrices are sharded like the
            parameters; permutations and rotations are replicated over their mesh.
        """
        views = self._views(params)
        paths_by_checksum(views)  # Two of one checksum are refused.
        warn_of_zero_leaves(named_leaves(params), views, "rotations")
        is_frozen = lambda path: path in views or not self.train_others
        weights = map_named(lambda p, x: x if is_frozen(p) else _ABSENT, params)
        others = map_named(lambda p, x: _ABSENT if is_frozen(p) else x, params)
        leaves = named_leaves(weights)
        run = partial(self._start, views)
        matrices = {path: leaves[path] for path in views}
        shardings = shardings_beside(matrices, jax.eval_shape(run, matrices))
        parts = jax.jit(run, out_shardings=shardings)(matrices)
        framed, perms, rotations, merges, count = parts
        weights = map_named(lambda p, x: framed.get(p, x), weights)
        return Frozen(weights, perms, merges, count), Trainable(rotations, others)

    def materialize(self, frozen: Frozen, trainable: Trainable) -> Any:
        """Computes the parameters, for the forward pass and for the final model.

        Args:
            frozen: The frozen part; within a scan over layers, a slice of it.
            trainable: The trainable part, or the same slice of it.

        Returns:
            The tree of the parameters, differentiable with respect to `trainable`.
        """
        views = self._views(_joined(frozen.weights, trainable.others))

        def one(path: str, leaf: Any) -> Any:
            if path not in views:
                return leaf
            run = partial(materialize_leaf, self.primitives, views[path], self.in_turn)
            return keep_sharding(
                run, leaf, trainable.rotations[path], frozen.perms[path]
            )

        return _joined(map_named(one, frozen.weights), trainable.others)

    def merge(
        self,
        frozen: Frozen,
        trainable: Trainable,
        opt_state: Any = None,
        tx: optax.GradientTransformation | None = None,
    ) -> tuple[Frozen, Trainable, Any]:
        """Multiplies all rotations into the weights and starts new rotations.

        Args:
            frozen: The frozen part.
            trainable: The trainable part.
            opt_state: State of the optimizer, if it is to be reset.
            tx: The optimizer, whose ``init`` returns the new state.

        Returns:
            The new parts and the new state. `materialize` of the new parts returns the
            same parameters as before.

        Raises:
            ValueError: If the state is to be reset and there is no optimizer.
        """
        due = jax.tree.map(lambda n: jnp.ones_like(n, bool), frozen.merges)
        frozen = frozen._replace(count=jnp.zeros_like(frozen.count))
        return self._merge(due, tx, frozen, trainable, opt_state)

    def merge_if_due(
        self,
        frozen: Frozen,
        trainable: Trainable,
        opt_state: Any = None,
        tx: optax.GradientTransformation | None = None,
        *,
        updated: ArrayLike = True,
    ) -> tuple[Frozen, Trainable, Any]:
        """Counts an update, and merges what is due by the interval or ``merge_at``.

        Call it once after each update; it can be called inside `jax.jit`.

        Args:
            frozen: As in `merge`.
            trainable: As in `merge`.
            opt_state: As in `merge`.
            tx: As in `merge`.
            updated: Whether there was an update. For `optax.MultiSteps` pass
                ``tx.has_updated(opt_state)``: its micro-steps do not count, and a merge
                in between would reset its sums.

        Returns:
            As `merge`.
        """
        count = frozen.count + jnp.asarray(updated, frozen.count.dtype)
        every = jnp.zeros((), bool)
        if self.merge_interval is not None:
            every = updated & (count >= self.merge_interval)
        frozen = frozen._replace(count=jnp.where(every, 0, count))
        if self.merge_interval is None and self.merge_at is None:
            return frozen, trainable, opt_state
        due = jax.tree.map(lambda n: jnp.broadcast_to(every, n.shape), frozen.merges)
        if self.merge_at is not None:
            grown = lambda due, q: due | updated & reached(q, self.merge_at)
            due = jax.tree.map(grown, due, trainable.rotations)
        return jax.lax.cond(
            functools.reduce(jnp.logical_or, map(jnp.any, jax.tree.leaves(due)), every),
            partial(self._merge, due, tx),
            lambda *parts: parts,
            frozen,
            trainable,
            opt_state,
        )

    def optimizer(
        self,
        rotations: optax.GradientTransformation,
        others: optax.GradientTransformation,
        *,
        max_norm: ArrayLike | str | None = "auto",
    ) -> optax.GradientTransformationExtraArgs:
        """Combines an optimizer for the rotations and one for the other leaves.

        Args:
            rotations: The optimizer of the rotations. Weight decay in it would pull the
                rotations towards the identity.
            others: The optimizer of the other leaves.
            max_norm: Largest norm of the Q of a block, as in `poet`; None for no bound.

        Returns:
            An optimizer of a `Trainable`.

        Raises:
            ValueError: If ``max_norm`` is not positive or below ``merge_at``.
        """
        check_transformation("rotations", rotations)
        check_transformation("others", others)
        kernel = self.primitives.orthogonal
        rotations = bounded(rotations, max_norm, kernel, self.merge_at)
        parts: dict[Hashable, optax.GradientTransformation] = {
            ROTATIONS: rotations,
            OTHERS: others,
        }
        labels: Any = (ROTATIONS, OTHERS)
        return optax.partition(parts, Trainable(*labels))

    def _merge(
        self, due: Any, tx: Any, frozen: Frozen, trainable: Trainable, opt_state: Any
    ) -> tuple[Frozen, Trainable, Any]:
        """Merges the matrices that are due, by path and piece ``(matrices,)``."""
        views = self._views(_joined(frozen.weights, trainable.others))
        old = frozen.merges
        more = lambda n, d: in_type_of(n, n + d.astype(n.dtype))
        merges = jax.tree.map(more, old, due)
        drawn = draw(self.primitives, views, merges)
        by_side = lambda pick: (
            lambda d, *sides: {
                side: pick(d, *(s[side] for s in sides)) for side in sides[0]
            }
        )
        renew = lambda d, old, new: in_type_of(old, select(d, new, old))
        perms = jax.tree.map(by_side(renew), due, frozen.perms, drawn)

        def one(path: str, leaf: Any) -> Any:
            if path not in views:
                return leaf
            run = partial(materialize_leaf, self.primitives, views[path], self.in_turn)
            trees = (trainable.rotations, frozen.perms, perms, due)
            return keep_sharding(run, leaf, *(tree[path] for tree in trees))

        weights = map_named(one, frozen.weights)
        clear = by_side(lambda d, q: in_type_of(q, select(d, 0, q)))
        rotations = jax.tree.map(clear, due, trainable.rotations)
        trainable = trainable._replace(rotations=rotations)
        if opt_state is not None and self.reset == "moments":
            opt_state = reset_rotations(opt_state, _fresh(tx, trainable), due)
        return Frozen(weights, perms, merges, frozen.count), trainable, opt_state

    def _views(self, tree: Any) -> dict[str, MatrixView]:
        return views_of(decide(tree, self.dimension_numbers))

    def _start(self, views: dict[str, MatrixView], matrices: dict[str, Any]) -> tuple:
        """Permuted matrices, permutations, rotations and merges by path; the count."""
        frames, rotations = {}, {}
        none = lambda piece: jnp.zeros((piece.count,), jnp.int32)
        merges = {path: list(map(none, views[path].pieces)) for path in matrices}
        perms = draw(self.primitives, views, merges)
        for path, leaf in matrices.items():
            view, replicated = views[path], partial(replicated_beside, leaf)
            perms[path] = jax.tree.map(replicated, perms[path])
            start = zeros(self.primitives, view, leaf.dtype)
            rotations[path] = jax.tree.map(replicated, start)
            merges[path] = jax.tree.map(replicated, merges[path])
            frames[path] = keep_sharding(partial(permute_leaf, view), leaf, perms[path])
        zero = jnp.zeros((), jnp.int32)
        for leaf in list(matrices.values())[:1]:
            zero = replicated_beside(leaf, zero)
        return frames, perms, rotations, merges, zero


def _fresh(tx: optax.GradientTransformation | None, trainable: Trainable) -> Any:
    if tx is None:
        raise ValueError(
            "`tx` must be the optimizer whose state is to be reset, got None; pass it, "
            'or keep the state with reset="none".'
        )
    return tx.init(trainable)


def _joined(weights: Any, others: Any) -> Any:
    absent = lambda x: isinstance(x, optax.MaskedNode)
    pick = lambda a, b: b if absent(a) else a
    return jax.tree.map(pick, weights, others, is_leaf=absent)
