"""What the low-rank recipes share: Adam on coordinates, bases, the last layer."""

from collections.abc import Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike, DTypeLike

from optax_matrix.arguments import Kernel
from optax_matrix.layout import HEADS, PathRule, by_path
from optax_matrix.transforms import Basis, scale_by_second_moment, svd_basis

SingularBasis = Literal["randomized_svd", "svd"]
Transport = Literal["keep", "carry", "reset"] | Kernel
LastLayer = Literal["other", "method"]


def coordinate_adam(
    b1: ArrayLike,
    b2: ArrayLike,
    bias_correction: bool,
    mu_dtype: DTypeLike | None,
    transport: Transport = "keep",
) -> optax.GradientTransformation:
    r"""Adam's direction, m / sqrt(v), for the ``inner`` of `project_low_rank`.

    It has no epsilon and survives gradients of 1e20 and 1e-20. By the inequality of
    Cauchy and Schwarz no entry exceeds

    .. math::
        (1 - \beta_1) / \sqrt{(1 - \beta_2) (1 - \beta_1^2 / \beta_2)},
        \qquad \beta_1^2 < \beta_2

    while both moments are averages of the same coordinates. Moments that were moved to
    another basis could exceed it by far, and are clipped to it.

    Args:
        b1: Decay rate of the momentum.
        b2: Decay rate of the second moment.
        bias_correction: Whether to correct both.
        mu_dtype: Dtype of the momentum; None for float32.
        transport: What happens to the moments at a renewal.

    Returns:
        A transformation of stacks.
    """
    moved = transport not in ("keep", "reset")
    return optax.chain(
        optax.ema(b1, bias_correction, mu_dtype),
        scale_by_second_moment(b2, bias_correction=bias_correction),
        *([optax.clip(_largest(b1, b2))] if moved else []),
    )


def _largest(b1: ArrayLike, b2: ArrayLike) -> jax.Array:
    """The largest entry of Adam's direction, infinite where there is none."""
    b1, b2 = jnp.asarray(b1, jnp.float32), jnp.asarray(b2, jnp.float32)
    rest = (1 - b2) * jnp.maximum(1 - b1**2 / b2, 0)
    return (1 - b1) / jnp.sqrt(rest)


def singular_basis(basis: SingularBasis, qr: Any) -> Basis:
    """The basis of leading singular vectors, approximate or exact.

    Args:
        basis: ``"randomized_svd"`` or ``"svd"``.
        qr: Kernel that orthonormalizes columns.

    Returns:
        A basis for `project_low_rank`.
    """
    return svd_basis("exact" if basis == "svd" else "randomized", qr=qr)


def with_last_layer(last_layer: LastLayer, common: Mapping[str, Any]) -> Any:
    """Dimension numbers for which the output head is a matrix, or those given.

    Args:
        last_layer: ``"method"`` for a matrix, or ``"other"``.
        common: The common keywords of the recipe.

    Returns:
        Dimension numbers.

    Raises:
        ValueError: If ``last_layer="method"`` is passed beside dimension numbers that
            cover every leaf already.
    """
    numbers = common.get("dimension_numbers")
    if last_layer == "other":
        return numbers
    if numbers is not None and not isinstance(numbers, PathRule):
        raise ValueError(
            "`last_layer` must be 'other' beside a tree or function of dimension "
            f"numbers, got {last_layer!r}; give the head numbers there."
        )
    return by_path(include=f"(?i){HEADS}", otherwise=numbers)
