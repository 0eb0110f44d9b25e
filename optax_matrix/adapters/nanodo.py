"""nanodo: a branch of `_get_base_optimizer`.

    elif optimizer_type == "muoneq":
        base_optimizer = adapter.base_optimizer(c, learning_rate_fn, decay_mask)

Clipping and accumulation (`optax.MultiSteps`) stay in `get_optimizer`, which wraps it.
"""

from collections.abc import Callable
from typing import Any

import optax

import optax_matrix as om


def base_optimizer(
    c: Any, learning_rate: optax.Schedule, decay_mask: Callable | None = None
) -> optax.GradientTransformation:
    """MuonEq by nanodo's configuration.

    Args:
        c: The `ConfigDict`; `weight_decay` and, if they are there, `momentum` and
            `independent_weight_decay` are read, the latter as for AdamW.
        learning_rate: What `get_learning_rate_schedule(c)` returns.
        decay_mask: nanodo's `_params_mask`, with the names bound; None decays all.
    """
    weight_decay = c.weight_decay
    if c.get("independent_weight_decay", False):
        weight_decay /= c.peak_learning_rate
    return om.muoneq(
        learning_rate,
        b1=c.get("momentum", 0.95),
        weight_decay=weight_decay,
        weight_decay_mask=True if decay_mask is None else decay_mask,
    )
