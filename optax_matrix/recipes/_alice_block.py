"""What Alice makes of an inner transformation: its basis, its residual."""

from typing import Any

import optax
from jax.typing import ArrayLike

from optax_matrix.transforms import (
    back_project,
    compensate,
    project_low_rank,
    subspace_basis,
)


def alice_block(
    inner: optax.GradientTransformation,
    *,
    b1: ArrayLike,
    b3: ArrayLike,
    compensation: str | None,
    residual_scale: ArrayLike,
    limiter: ArrayLike,
    max_shrink: ArrayLike | None,
    leading: Any,
    switch: str,
    sampling: str,
    start: str,
    tracks: bool,
    qr: Any,
    **options: Any,
) -> optax.GradientTransformationExtraArgs:
    """A transformation in Alice's subspace, compensated for what that leaves out.

    Args:
        inner: The transformation.
        b1: Decay rate of the compensation's norms.
        b3: Decay rate of the tracked average.
        compensation: Kind of `compensate`; None for none.
        residual_scale: Its scale.
        limiter: Its limiter.
        max_shrink: As in `limit_norm_growth`.
        leading: As in `subspace_basis`, like the next five.
        switch: As there.
        sampling: As there.
        start: As there.
        tracks: As there.
        qr: As there.
        **options: Further arguments of `project_low_rank`.

    Returns:
        A transformation of stacks.

    Raises:
        ValueError: If an argument is out of range.
    """
    combine: Any = back_project
    if compensation is not None:
        combine = compensate(
            compensation,
            scale=residual_scale,
            decay=b1,
            limiter=limiter,
            max_shrink=max_shrink,
        )
    basis = subspace_basis(
        b3,
        leading=leading,
        switch=switch,
        sampling=sampling,
        start=start,
        tracks=tracks,
        qr=qr,
    )
    return project_low_rank(inner, combine=combine, basis=basis, **options)
