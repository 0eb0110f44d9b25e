"""A schedule of the clip threshold after merges, for use in the training loop."""

import jax.numpy as jnp
import optax

from optax_matrix._arguments import Positive, PositiveInt, checked


@checked
def clip_after_merge(
    max_norm: Positive,
    merge_interval: PositiveInt = 400,
    *,
    ramp: PositiveInt = 10,
    start: Positive = 0.1,
    until: int | None = 2000,
) -> optax.Schedule:
    r"""Returns a schedule that lowers the clip threshold for a while after each merge.

    .. math::
        c(t) = c_0 \, (s + (1 - s)\, p / r), \qquad p = t \bmod T_m < r

    from the first merge on, where c_0 is ``max_norm``, T_m is ``merge_interval``, r is
    ``ramp`` and s is ``start``. After a merge the moments are zero, and the next
    updates are as large as the very first ones.

    Args:
        max_norm: The threshold outside of ramps.
        merge_interval: Number of updates between two merges.
        ramp: Number of updates until the threshold is ``max_norm`` again.
        start: The fraction of ``max_norm`` right after a merge.
        until: Number of updates after which the threshold stays at ``max_norm``; None
            for no limit.

    Returns:
        A schedule: a function of the number of finished updates.

    Raises:
        ValueError: If an argument is out of range.

    Examples:
        >>> import optax
        >>> clip = clip_after_merge(0.1, 400)
        >>> [round(float(clip(step)), 3) for step in (0, 399, 400, 405, 410, 2400)]
        [0.1, 0.1, 0.01, 0.055, 0.1, 0.1]
        >>> tx = optax.inject_hyperparams(optax.clip_by_global_norm)(max_norm=clip)

    References:
        POET, Sec. 5 ("increase the gradient clipping" for 10 steps), as in the authors'
        code: a smaller threshold, during the first 2000 steps.
    """

    def schedule(count):
        position = count % merge_interval
        ramped = (count >= merge_interval) & (position < ramp)
        if until is not None:
            ramped &= count < until
        fraction = start + (1 - start) * position / ramp
        return max_norm * jnp.where(ramped, fraction, 1.0)

    return schedule
