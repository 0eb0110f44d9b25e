"""What GaLore's relatives share: Adam in a subspace, and how its answer is used."""

from collections.abc import Callable, Mapping
from typing import Any

import optax
from jax.typing import ArrayLike, DTypeLike

from optax_matrix.arguments import check_choice, check_decay, check_dtype, check_flag
from optax_matrix.layout import on_matrices
from optax_matrix.recipes._low_rank import coordinate_adam, with_last_layer
from optax_matrix.transforms import Basis, project_low_rank, svd_basis

BASES = {"randomized_svd": "randomized", "svd": "exact"}


def subspace_adam(
    combine: Callable[..., optax.GradientTransformation],
    hyperparams: Mapping[str, Any],
    *,
    b1: ArrayLike,
    b2: ArrayLike,
    basis: Basis,
    bias_correction: bool,
    probe: bool,
    last_layer: str,
    dimension_numbers: Any,
    placement: Any,
    mu_dtype: DTypeLike | None,
    **options: Any,
) -> optax.GradientTransformationExtraArgs:
    """Adam on coordinates in a subspace, with GaLore's renewals.

    Args:
        combine: From the hyperparameters to what makes an update of Adam's answer, for
            the ``combine`` of `project_low_rank`.
        hyperparams: Its arguments, which may be traced.
        b1: Decay rate of the momentum.
        b2: Decay rate of the second moment.
        basis: The basis.
        bias_correction: Whether to correct both moments.
        probe: As in `on_matrices`, which tries a ``transport`` that is a function, too.
        last_layer: As in `with_last_layer`.
        dimension_numbers: As in `on_matrices`.
        placement: As in `on_matrices`.
        mu_dtype: Dtype of the momentum; None for float32.
        **options: Further arguments of `project_low_rank`.

    Returns:
        A transformation for any tree.

    Raises:
        ValueError: If an argument is out of range.
    """
    check_decay("b1", b1)
    check_decay("b2", b2)
    if mu_dtype is not None:
        check_dtype("mu_dtype", mu_dtype)
    check_flag("bias_correction", bias_correction)
    options |= {"basis": basis, "phase": 0}
    # Checks its arguments, now.
    project_low_rank(optax.identity(), combine=combine(**hyperparams), **options)

    def build(layout, b1, b2, **hyperparams):
        inner = coordinate_adam(
            b1, b2, bias_correction=bias_correction, mu_dtype=mu_dtype
        )
        ids = {name: group.ids for name, group in layout.groups.items()}
        return project_low_rank(
            inner, combine=combine(**hyperparams), ids=ids, **options
        )

    return on_matrices(
        build,
        hyperparams={"b1": b1, "b2": b2, **hyperparams},
        dimension_numbers=with_last_layer(last_layer, dimension_numbers),
        placement=placement,
        probe=probe or callable(options.get("transport")),
    )


def singular_basis(basis: str, qr: Any) -> Basis:
    """The basis of leading singular vectors of that name.

    Args:
        basis: ``"randomized_svd"`` or ``"svd"``.
        qr: Kernel of orthonormal columns.

    Returns:
        A basis for `project_low_rank`.

    Raises:
        ValueError: If there is none of that name.
    """
    check_choice("basis", basis, BASES)
    return svd_basis(BASES[basis], qr=qr)
