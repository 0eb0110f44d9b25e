"""A block from a function of one matrix and a state, such as one number for each."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from optax_matrix._arguments import check_called
from optax_matrix.linalg.scale import check_matrices, widened
from optax_matrix.transforms.wrappers import with_dtypes_of


class WithStateState(NamedTuple):
    """State of `with_state`.

    Attributes:
        held: Per leaf what the function keeps; a number has the shape ``(..., 1, 1)``.
    """

    held: Any


def with_state(
    step: Callable[..., tuple[jax.Array, Any]],
    start: Any = 0.0,
) -> optax.GradientTransformationExtraArgs:
    r"""Applies a function to every matrix and to a state, by default one number.

    .. math::
        \Delta_t, s_t = f(X_t, s_{t-1}, G_t, W_t)

    A number of the state has the shape ``(..., 1, 1)``, so that it multiplies its
    matrix. An average of a norm x whose squares cannot overflow is
    ``jnp.hypot(b**0.5 * s, (1 - b) ** 0.5 * x)``; a maximum is ``jnp.maximum(s, x)``.
    ``matrix_norm`` of ``optax_matrix.linalg.scale`` neither overflows nor vanishes.

    Args:
        step: ``step(x, state, gradient, params)`` returns the update and the new state.
            It gets matrices ``(..., m, n)`` in at least float32 and must treat each of
            them by itself. ``gradient`` is the extra argument of that name
            (`with_gradient`), or ``x`` if there is none; ``params`` are the parameters,
            or None where `update` gets none.
        start: The state before the first update: a number for each matrix, a tuple or
            dict of numbers, or a function from matrices ``(..., m, n)`` to arrays whose
            first axes are those of the matrices. An int is kept as int32.

    Returns:
        A transformation of trees whose leaves are ``(..., m, n)``, with updates in
        their dtypes.

    Raises:
        ValueError: If ``step`` is not a function, or ``start`` holds something other
            than numbers.

    Examples:
        AdaGO: the polar factor of the momentum, in steps that become shorter as the
        norms of gradients, bounded by 5, add up.

        >>> import jax.numpy as jnp, optax
        >>> import optax_matrix as om
        >>> from optax_matrix.linalg.scale import matrix_norm
        >>> def adagrad(x, s, gradient, _):
        ...     norm = jnp.minimum(matrix_norm(gradient), 5.0)
        ...     s = jnp.hypot(s, norm)
        ...     return x * norm / s, s
        >>> chain = om.momentum(0.95), om.orthogonalize(om.linalg.polar_svd)
        >>> adago = optax.chain(*chain, om.transforms.with_state(adagrad, start=1e-6))
        >>> tx = om.on_matrices(om.transforms.with_gradient(adago))
        >>> w = {"kernel": jnp.eye(2, 3)}
        >>> state = tx.init(w)
        >>> for _ in range(4):
        ...     updates, state = tx.update(w, state)
        >>> updates["kernel"].round(3).tolist()
        [[0.5, 0.0, 0.0], [0.0, 0.5, 0.0]]
    """
    if not callable(step):
        raise ValueError(
            "`step` must be a function of (x, state, gradient, params) that returns "
            f"(update, state), got {step!r}."
        )
    check_called("step", step)
    make: Any = start if callable(start) else _numbers(start)

    def init_fn(params):
        jax.tree.map(check_matrices, params)
        return WithStateState(jax.tree.map(lambda x: make(widened(x)), params))

    def update_fn(updates, state, params=None, *, gradient=None, **extra_args):
        del extra_args
        leaves, structure = jax.tree.flatten(updates)
        of = lambda tree: leaves if tree is None else structure.flatten_up_to(tree)
        weights = [None] * len(leaves) if params is None else of(params)
        held = structure.flatten_up_to(state.held)
        each = zip(leaves, held, of(gradient), weights, strict=True)
        done = [_stepped(step, *arguments) for arguments in each]
        new, held = ([pair[k] for pair in done] for k in (0, 1))
        return structure.unflatten(new), WithStateState(structure.unflatten(held))

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def _stepped(
    step: Callable, x: jax.Array, held: Any, gradient: Any, params: Any
) -> tuple[jax.Array, Any]:
    wide = (None if a is None else widened(jnp.asarray(a)) for a in (gradient, params))
    new, state = step(widened(x), held, *wide)
    for part, got, want in ("update", new, x), ("state", state, held):
        if (is_ := _form(got)) != (must := _form(want)):
            raise ValueError(
                f"`step` must return the {part} in the form that it had, {must}, "
                f"got {is_}; sum or average with keepdims=True."
            )
    return new.astype(x.dtype), with_dtypes_of(held, state)


def _form(tree: Any) -> Any:
    return jax.tree.map(jnp.shape, tree)


def _numbers(start: Any) -> Callable[[jax.Array], Any]:
    """The function that gives each matrix the same numbers."""
    for number in jax.tree.leaves(start):
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise ValueError(
                "`start` must be a number, a tuple or dict of numbers, or a function "
                f"from matrices to arrays, got {start!r}."
            )

    def make(x: jax.Array) -> Any:
        shape = (*x.shape[:-2], 1, 1)
        dtype = lambda number: jnp.int32 if isinstance(number, int) else x.dtype
        each = lambda number: jnp.full(shape, number, dtype(number))
        return jax.tree.map(each, start)

    return make
