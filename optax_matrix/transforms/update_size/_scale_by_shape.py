"""Scaling updates by a factor that depends on the shape of the matrix."""

from collections.abc import Callable
from typing import Any, Literal

import jax.numpy as jnp
import optax

from optax_matrix._arguments import check_choice, check_not_negative
from optax_matrix.linalg.scale import check_matrices

ShapeRule = Literal["out/in", "unclipped", "max", "sqrt_max", "sum", "none"]
SHAPE_RULES: dict[ShapeRule, Callable[[int, int], float]] = {
    "out/in": lambda rows, cols: max(1.0, rows / cols) ** 0.5,
    "unclipped": lambda rows, cols: (rows / cols) ** 0.5,
    "max": lambda rows, cols: 0.2 * max(rows, cols) ** 0.5,
    "sqrt_max": lambda rows, cols: max(rows, cols) ** 0.5,
    "sum": lambda rows, cols: 1 / (rows + cols),
    "none": lambda rows, cols: 1.0,  # noqa: ARG005
}


def scale_by_shape(
    rule: ShapeRule | int | float | Callable[[int, int], Any] = "out/in",
) -> optax.GradientTransformationExtraArgs:
    r"""Multiplies every matrix by a factor that depends on its shape alone.

    For a matrix with :math:`m` rows (outputs) and :math:`n` columns (inputs):

    * ``"out/in"``: :math:`\sqrt{\max(1, m/n)}` (Keller Jordan's Muon)
    * ``"unclipped"``: :math:`\sqrt{m/n}` (Muon+; the spectral form of muP): a
      semi-orthogonal matrix gets an RMS-to-RMS operator norm of one, so that learning
      rates carry over to wider models (``examples/coordinate_check.py``)
    * ``"max"``: :math:`0.2 \sqrt{\max(m, n)}` (Moonlight): a semi-orthogonal matrix
      gets a root mean square of 0.2, the usual size of Adam's update
    * ``"sqrt_max"``: :math:`\sqrt{\max(m, n)}` (SUMO, as printed)
    * ``"sum"``: :math:`1 / (m + n)` (SPlus, up to its factor)
    * ``"none"``: 1

    Args:
        rule: One of these names, a function of ``(rows, cols)``, or a number.

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
    factor: Any = rule
    if not callable(rule):
        if hasattr(rule, "__float__"):
            check_not_negative("rule", rule)
            factor = lambda rows, cols: rule  # noqa: ARG005
        else:
            others = "a number", "a function of (rows, cols)"
            check_choice("rule", rule, SHAPE_RULES, others)
            factor = SHAPE_RULES[factor]

    def scaled(x, _):
        if jnp.ndim(x) < 2:
            check_matrices(x)  # Says what is wrong.
        return (x * factor(*jnp.shape(x)[-2:])).astype(x.dtype)

    return optax.with_extra_args_support(optax.stateless_with_tree_map(scaled))
