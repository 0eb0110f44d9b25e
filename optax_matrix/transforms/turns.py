"""Whose turn it is to be renewed, by the number of each matrix's own updates.

A count starts with the first gradient that is not zero, so that a first frame comes
with it. `on_matrices` puts the count back where a gradient has no effect.
"""

from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
import optax

from optax_matrix._surroundings.keeping import movable, note_kept, select as select
from optax_matrix.linalg.scale import is_some


def no_turns(tree: Any) -> Any:
    """Counts before the first update, int32 ``(...)`` for leaves ``(..., m, n)``."""
    return jax.tree.map(lambda x: jnp.zeros(x.shape[:-2], jnp.int32), tree)


def begun(counts: Any, gradients: Any) -> Any:
    """Which matrices have had a gradient, this one included."""
    some = lambda n, x: (n > 0) | is_some(x)[..., 0, 0]
    return jax.tree.map(some, counts, gradients)


def counted(counts: Any, begun: Any) -> Any:
    """The counts after an update."""
    more = lambda n, on: jnp.where(on, optax.safe_increment(n), n)
    return jax.tree.map(more, counts, begun)


def any_of(due: Any) -> jax.Array:
    """Whether it is any matrix's turn."""
    each = [jnp.any(x) for x in jax.tree.leaves(due)]
    return reduce(jnp.logical_or, each, jnp.asarray(False))


def renewed(
    renew: Callable[[Any, Any], Any], due: Any, old: Any, *, if_any: bool = True
) -> Any:
    """State after a renewal, without matrices that are skipped and keep theirs.

    Args:
        renew: ``renew(due, old)`` returns the new state of matrices that are due, and
            the old state of others, as `select` does.
        due: Which matrices are due, by stack ``(b, ...)``.
        old: The state before.
        if_any: Whether ``renew`` runs only if any matrix is due.
    """
    due = movable(due)
    run = partial(renew, due)
    new = jax.lax.cond(any_of(due), run, lambda old: old, old) if if_any else run(old)
    note_kept(new, old)
    return new
