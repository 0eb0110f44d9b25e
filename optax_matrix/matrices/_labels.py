"""Labels for `optax.partition`."""

from collections.abc import Callable
from typing import Any

from optax_matrix._paths import map_named
from optax_matrix.matrices.decisions import decide


def label_params(dimension_numbers: Any = None) -> Callable[[Any], Any]:
    """Labels every leaf ``"matrix"`` or ``"other"``, as in `on_matrices`.

    A recipe inside `optax.partition` does not see the leaves of others, although these
    can decide how a matrix is read (a bias shows the axis of outputs). So decide once,
    on the whole tree: ``numbers = matrices.by_path()(params)``, for this function and
    for the recipe's ``dimension_numbers``.

    Args:
        dimension_numbers: As in `on_matrices`.

    Returns:
        A callable from parameters to labels, for `optax.partition`.

    Examples:
        >>> import jax.numpy as jnp
        >>> labels = label_params()
        >>> labels({"kernel": jnp.ones((2, 3)), "bias": jnp.ones(3)})
        {'bias': 'other', 'kernel': 'matrix'}
    """

    def labels(params: Any) -> Any:
        decisions = decide(params, dimension_numbers)
        label = lambda path, _: "matrix" if decisions[path].view else "other"
        return map_named(label, params)

    return labels
