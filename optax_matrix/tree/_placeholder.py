"""What `optax.tree.map_params` sees of a state: it calls `init` with a placeholder."""

import contextlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from optax_matrix._surroundings import here, within
from optax_matrix._surroundings.observation import ObservedState
from optax_matrix.matrices.view import MatrixDimensionNumbers, make_view
from optax_matrix.stacks.layout import group_matrices
from optax_matrix.tree._build import Build
from optax_matrix.tree.state import OnMatricesState, entry_of

_OPAQUE: Any = object()  # Stands for arrays that belong to no parameter.


def is_placeholder(params: Any) -> bool:
    """Whether `optax.tree.map_params` calls."""
    return type(params).__name__ == "_ParamsPlaceholder"


def placeholder_state(tx: Any, placeholder: Any) -> OnMatricesState:
    """The state of an `OnMatrices`, with the placeholder for what is kept by stack.

    Where that is shows the state of a single matrix, and of a pair if there are some. A
    build that cannot do with one, such as rotations that layers share, is seen as a
    whole that belongs to none.
    """
    inner = _OPAQUE
    pair = ("first", "second") if any(tx.pairs) else ()
    for names in (pair, ("kernel", *pair)):  # Some blocks are for partners only.
        with contextlib.suppress(Exception):
            inner = _of_matrices(tx.build, placeholder, names)
    method: Any = dict.fromkeys(entry_of(tx.name), _OPAQUE)
    empty = OnMatricesState(method, _OPAQUE, _OPAQUE, inner)
    # The placement may keep state of its own.
    state = tx.placement.init(group_matrices({}, {}), lambda *_: empty, {}, [], False)
    is_empty = lambda x: isinstance(x, dict) and not x
    fill = lambda x: _OPAQUE if is_empty(x) else x  # By stack, too.
    inner = jax.tree.map(fill, state.inner_state, is_leaf=is_empty)
    if here().measures:
        inner = ObservedState(_OPAQUE, _OPAQUE, inner)
    return state._replace(
        inner_state=inner,
        slots=_OPAQUE,
        zero_gradients=placeholder if tx.on_zero == "fade" else None,
        after=tx.after and tx.after(None).init(placeholder),
        other=tx.other and tx.other(None).init(placeholder),
    )


def _of_matrices(build: Build, placeholder: Any, names: Sequence[str]) -> Any:
    pairs = {"first": "second"} if "first" in names else {}
    view = make_view((4, 6), MatrixDimensionNumbers(residual="out"))
    like = dict.fromkeys(names, jax.ShapeDtypeStruct(view.shape, jnp.float32))
    layout = group_matrices(like, dict.fromkeys(names, view), pairs=pairs)
    with within(measures={}, layout=layout):
        init = lambda leaves: build(layout).init(layout.stack(leaves))
        state = jax.eval_shape(init, like)
    known = set(layout.groups)
    by_stack = lambda x: isinstance(x, dict) and bool(x) and set(x) <= known
    mark = lambda x: placeholder if by_stack(x) else _OPAQUE
    return jax.tree.map(mark, state, is_leaf=by_stack)
