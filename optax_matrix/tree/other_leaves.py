"""The optimizer of the leaves that are not matrices."""

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from optax_matrix._paths import map_named, named_leaves
from optax_matrix._surroundings import here
from optax_matrix.matrices.vectors import vectors_of


def with_warning(other: Any, text: Callable[[Any], str | None]) -> Any:
    """`other` as `on_matrices` takes it, whose `init` warns if there are such leaves.

    ``text`` is called with them then; it returns what to say, or None.
    """

    def make(params: Any) -> optax.GradientTransformationExtraArgs:
        is_made = isinstance(other, optax.GradientTransformation)
        tx = optax.with_extra_args_support(other if is_made else other(params))

        def init(params: Any) -> Any:
            if jax.tree.leaves(params) and (said := text(params)):
                warnings.warn(said)  # noqa: B028 (shown once)
            return tx.init(params)

        return optax.GradientTransformationExtraArgs(init, tx.update)

    return make


def but_vectors(tx: optax.GradientTransformation) -> optax.GradientTransformation:
    """`tx` for other leaves, without vectors, whose updates pass through.

    The state does not depend on which leaves are vectors.
    """

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        new, state = tx.update(updates, state, params)
        kinds = here().kinds
        if kinds is None:  # Outside of `on_matrices`.
            vectors = vectors_of(updates if params is None else params)
        else:
            vectors = kinds.vectors
        pick = lambda path, new, old: old if path in vectors else new
        return map_named(pick, new, updates), state

    return optax.GradientTransformation(tx.init, update)


def running_statistics(leaves: Any) -> list[str]:
    """The leaves that a normalization averages, which are no parameters.

    They are those of a collection ``batch_stats``, and a ``mean`` and ``var`` beside
    the ``scale`` or ``bias`` of one layer.
    """
    found, names = [], named_leaves(leaves)
    for path in names:
        *scope, last = path.split("/")
        beside = {name: "/".join([*scope, name]) in names for name in _OF_A_NORM}
        is_average = last in ("mean", "var") and beside["mean"] and beside["var"]
        if "batch_stats" in scope or (
            is_average and (beside["scale"] or beside["bias"])
        ):
            found.append(path)
    return found


_OF_A_NORM = "mean", "var", "scale", "bias"


def climbs(tx: optax.GradientTransformation, leaves: Any) -> bool:
    """Whether the first update points along the gradient.

    It is computed for two numbers in place of a leaf: of a single one, or of each one
    where a mask needs the whole tree. False where it cannot be known before the step,
    as with traced rates.
    """

    def along(grads: Any, params: Any) -> Any:
        updates, _ = tx.update(grads, tx.init(params), params)
        return optax.tree.vdot(updates, grads)

    for tree in ({"bias": 0}, leaves):
        numbers = [
            jax.tree.map(lambda _, x=x: np.full(2, x, jnp.result_type(float)), tree)
            for x in (1.0, 0.0)
        ]
        try:  # One program; op by op it would be twenty to thirty.
            found = jax.jit(along).lower(*numbers).compile()(*numbers)
            return float(found) > 0
        except Exception:  # Of any optimizer's code, of any kind.
            continue
    return False
