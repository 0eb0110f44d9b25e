"""POET as a reparameterization: fixed matrices between trainable rotations."""

import dataclasses
from collections.abc import Hashable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike
from jaxtyping import Array

from optax_matrix.layout import MatrixView, resolve
from optax_matrix.layout.paths import map_named, named_leaves
from optax_matrix.layout.specs import keep_sharding
from optax_matrix.transforms import limit_skew_norm
from optax_matrix.transforms.stochastic_primitives import Primitives, norm_for
from optax_matrix.weights._leaf import draw, ordered, turn, zeros
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
        merges: Number of merges so far.
        count: Number of updates since the last merge.
    """

    weights: Any
    perms: dict[str, list[dict[str, Array]]]
    merges: Array
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
    """How weights depend on rotations; made by `reparameterize`, holds no arrays."""

    primitives: Primitives
    merge_interval: int | None
    reset: str
    dimension_numbers: Any
    train_others: bool
    in_turn: bool

    def split(self, params: Any) -> tuple[Frozen, Trainable]:
        """Splits parameters; `materialize` of the result gives them back.

        Args:
            params: Parameters, sharded or not; their shapes under `jax.eval_shape`.

        Returns:
            The frozen and the trainable part. Frozen matrices are sharded like the
            parameters; permutations and rotations are replicated over their mesh.
        """
        views = self._views(params)
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
        views = self._views(frozen.weights)

        def one(path: str, leaf: Any) -> Any:
            if path not in views:
                return leaf
            run = partial(turn, self.primitives, views[path], self.in_turn)
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
        """Multiplies the rotations into the weights and starts new rotations.

        Args:
            frozen: The frozen part.
            trainable: The trainable part.
            opt_state: State of the optimizer, if it is to be reset.
            tx: The optimizer, whose ``init`` gives the fresh state.

        Returns:
            The new parts and the new state. `materialize` of the new parts gives the
            same parameters as before.

        Raises:
            ValueError: If the state is to be reset and there is no optimizer.
        """
        views = self._views(frozen.weights)
        merges = frozen.merges + 1
        drawn = draw(self.primitives, views, merges)
        perms = jax.tree.map(in_type_of, frozen.perms, drawn)

        def one(path: str, leaf: Any) -> Any:
            if path not in views:
                return leaf
            run = partial(turn, self.primitives, views[path], self.in_turn)
            trees = (trainable.rotations, frozen.perms, perms)
            return keep_sharding(run, leaf, *(tree[path] for tree in trees))

        weights = map_named(one, frozen.weights)
        rotations = jax.tree.map(jnp.zeros_like, trainable.rotations)
        trainable = trainable._replace(rotations=rotations)
        if opt_state is not None and self.reset == "moments":
            opt_state = reset_rotations(opt_state, _fresh(tx, trainable))
        count = jnp.zeros_like(frozen.count)
        return Frozen(weights, perms, merges, count), trainable, opt_state

    def merge_if_due(
        self,
        frozen: Frozen,
        trainable: Trainable,
        opt_state: Any = None,
        tx: optax.GradientTransformation | None = None,
        *,
        updated: ArrayLike = True,
    ) -> tuple[Frozen, Trainable, Any]:
        """Counts an update, and merges every ``merge_interval`` updates.

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
        if self.merge_interval is None:
            return frozen._replace(count=count), trainable, opt_state
        return jax.lax.cond(
            updated & (count >= self.merge_interval),
            lambda f, t, s: self.merge(f, t, s, tx),
            lambda f, t, s: (f._replace(count=count), t, s),
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
            ValueError: If ``max_norm`` is not positive.
        """
        bound = norm_for("max_norm", max_norm, self.primitives.orthogonal)
        if bound is not None:
            rotations = optax.chain(rotations, limit_skew_norm(bound))
        parts: dict[Hashable, optax.GradientTransformation] = {
            ROTATIONS: rotations,
            OTHERS: others,
        }
        labels: Any = (ROTATIONS, OTHERS)
        return optax.partition(parts, Trainable(*labels))

    def _views(self, tree: Any) -> dict[str, MatrixView]:
        resolved = resolve(self.dimension_numbers, tree)
        return {path: r.view for path, r in resolved.items() if r.view is not None}

    def _start(self, views: dict[str, MatrixView], matrices: dict[str, Any]) -> tuple:
        """Permuted matrices, permutations and rotations by path, and both counts."""
        frames, rotations, perms = {}, {}, draw(self.primitives, views, 0)
        for path, leaf in matrices.items():
            view, replicated = views[path], partial(replicated_beside, leaf)
            perms[path] = jax.tree.map(replicated, perms[path])
            start = zeros(self.primitives, view, leaf.dtype)
            rotations[path] = jax.tree.map(replicated, start)
            frames[path] = keep_sharding(partial(ordered, view), leaf, perms[path])
        zero = jnp.zeros((), jnp.int32)
        for leaf in list(matrices.values())[:1]:
            zero = replicated_beside(leaf, zero)
        return frames, perms, rotations, zero, zero


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
