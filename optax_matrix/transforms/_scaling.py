"""The sizes of updates: by shape, by root mean square, by what came in."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from optax_matrix.transforms._checks import (
    check_choice,
    check_positive,
    check_transformation,
)
from optax_matrix.transforms._numerics import matrix_norm, safe_divide, widened
from optax_matrix.transforms._stateless import map_matrices

SHAPE_RULES: dict[str, Callable[[int, int], float]] = {
    "out/in": lambda rows, cols: max(1.0, rows / cols) ** 0.5,
    "unclipped": lambda rows, cols: (rows / cols) ** 0.5,
    "max": lambda rows, cols: 0.2 * max(rows, cols) ** 0.5,
    "sum": lambda rows, cols: 1 / (rows + cols),
    "none": lambda rows, cols: 1.0,  # noqa: ARG005
}


def scale_by_shape(
    rule: str | Callable[[int, int], float] = "out/in",
) -> optax.GradientTransformationExtraArgs:
    r"""Multiplies every matrix by a number that depends on its shape alone.

    For a matrix with :math:`m` rows (outputs) and :math:`n` columns (inputs):

    * ``"out/in"``: :math:`\sqrt{\max(1, m/n)}` (Keller Jordan's Muon)
    * ``"unclipped"``: :math:`\sqrt{m/n}` (Muon+)
    * ``"max"``: :math:`0.2 \sqrt{\max(m, n)}` (Moonlight): a semi-orthogonal matrix
      gets a root mean square of 0.2, the usual size of Adam's update
    * ``"sum"``: :math:`1 / (m + n)` (SPlus, up to its factor)
    * ``"none"``: 1

    Args:
        rule: One of these names, or a function of ``(rows, cols)``.

    Returns:
        A stateless transformation of trees whose leaves are ``(..., m, n)``.

    Raises:
        ValueError: If ``rule`` is an unknown name.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> tx = om.scale_by_shape("out/in")
        >>> w = {"w": jnp.ones((8, 2))}
        >>> float(tx.update(w, tx.init(w))[0]["w"][0, 0])
        2.0
    """
    if not callable(rule):
        check_choice("rule", rule, SHAPE_RULES)
        rule = SHAPE_RULES[rule]
    return map_matrices(lambda x: x * rule(x.shape[-2], x.shape[-1]))


def match_rms(target: ArrayLike = 0.2) -> optax.GradientTransformationExtraArgs:
    r"""Scales every matrix to a given root mean square.

    .. math::
        \Delta \mapsto \rho \sqrt{m n} \, \Delta / \|\Delta\|_F

    with :math:`\rho` the ``target``; a matrix of zeros stays zero.

    Args:
        target: Root mean square of every update, above zero.

    Returns:
        A stateless transformation of trees whose leaves are ``(..., m, n)``.

    Raises:
        ValueError: If ``target`` is not positive.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> tx = om.match_rms(0.5)
        >>> w = {"w": jnp.array([[3.0, 0.0], [0.0, 4.0]])}
        >>> tx.update(w, tx.init(w))[0]["w"].round(3).tolist()
        [[0.6..., 0.0], [0.0, 0.8...]]
    """
    check_positive("target", target)

    def scale(x):
        size = x.shape[-2] * x.shape[-1]
        unit = safe_divide(widened(x), matrix_norm(x))
        return (unit * (target * size**0.5)).astype(x.dtype)

    return map_matrices(scale)


def preserve_norm(
    inner: optax.GradientTransformation,
) -> optax.GradientTransformationExtraArgs:
    r"""Gives what a transformation returns the Frobenius norm of what it got.

    .. math::
        \Delta \mapsto \|\Delta\|_F \, f(\Delta) / \|f(\Delta)\|_F

    matrix by matrix, with :math:`f` the ``inner`` transformation.

    Args:
        inner: A transformation that acts on each matrix by itself.

    Returns:
        A transformation with the state of ``inner``.

    Raises:
        ValueError: If ``inner`` is no transformation.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax
        >>> import optax_matrix as om
        >>> tx = om.preserve_norm(optax.scale_by_sign())
        >>> w = {"w": jnp.array([[3.0, -4.0]])}
        >>> print(tx.update(w, tx.init(w))[0]["w"].round(2))
        [[ 3.54 -3.54]]
    """
    check_transformation("inner", inner)
    inner = optax.with_extra_args_support(inner)

    def update_fn(updates, state, params=None, **extra_args):
        changed, state = inner.update(updates, state, params, **extra_args)

        def rescale(new, old):
            unit = safe_divide(widened(new), matrix_norm(new))
            return (unit * matrix_norm(old)).astype(jnp.result_type(old))

        return jax.tree.map(rescale, changed, updates), state

    return optax.GradientTransformationExtraArgs(inner.init, update_fn)
