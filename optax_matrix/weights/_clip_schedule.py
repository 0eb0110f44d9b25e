"""The clip threshold after a merge: a matter of the training loop."""

import jax.numpy as jnp
import optax

from optax_matrix.arguments import check_positive, check_positive_int


def clip_after_merge(
    max_norm: float,
    merge_interval: int = 400,
    *,
    ramp: int = 10,
    start: float = 0.1,
    until: int | None = 2000,
) -> optax.Schedule:
    r"""Clip threshold that is tightened after each merge and ramps back.

    .. math::
        c(t) = c_0 \, (s + (1 - s)\, p / r), \qquad p = t \bmod T_m < r

    from the first merge on, with ``max_norm`` c_0, ``merge_interval`` T_m, ``ramp`` r
    and ``start`` s. After a merge the moments are empty, and the first updates are as
    large as the first of all.

    Args:
        max_norm: Threshold between ramps.
        merge_interval: Updates between two merges.
        ramp: Updates until the threshold is back.
        start: Its fraction right after a merge.
        until: Update from which on the threshold is left alone; None for never.

    Returns:
        A schedule of the number of finished updates.

    Raises:
        ValueError: If an argument is out of range.

    Examples:
        >>> import optax
        >>> clip = clip_after_merge(0.1, 400)
        >>> [round(float(clip(step)), 3) for step in (0, 399, 400, 405, 410, 2400)]
        [0.1, 0.1, 0.01, 0.055, 0.1, 0.1]
        >>> tx = optax.inject_hyperparams(optax.clip_by_global_norm)(max_norm=clip)

    References:
        POET, Sec. 5 ("increase the gradient clipping" for 10 steps), as the authors'
        code has it: a smaller threshold, in the first 2000 steps.
    """
    check_positive("max_norm", max_norm)
    check_positive("start", start)
    check_positive_int("merge_interval", merge_interval)
    check_positive_int("ramp", ramp)

    def schedule(count):
        position = count % merge_interval
        ramped = (count >= merge_interval) & (position < ramp)
        if until is not None:
            ramped &= count < until
        fraction = start + (1 - start) * position / ramp
        return max_norm * jnp.where(ramped, fraction, 1.0)

    return schedule
