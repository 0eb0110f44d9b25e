"""MaxText: `opt_type: "muon"`, with another method behind it.

`maxtext.optimizers.optimizers.get_optimizer` reads the axes of the model's matrices and
calls `muon` with the keywords of `optax.contrib.muon`. Put another function there, and
every trainer (pre-training, SFT, DPO) uses it::

    from maxtext.optimizers import optimizers

    optimizers.muon = with_keywords_of_muon(om.muoneq)
"""

from collections.abc import Callable
from typing import Any

import optax


def with_keywords_of_muon(
    recipe: Callable[..., optax.GradientTransformation], **options: Any
) -> Callable[..., optax.GradientTransformation]:
    """A recipe that takes what MaxText passes to `optax.contrib.muon`.

    Args:
        recipe: A recipe with a momentum `b1`, such as `om.muoneq`.
        **options: Further arguments of it, such as `placement`.
    """

    def muon(
        learning_rate: optax.ScalarOrSchedule,
        *,
        muon_weight_dimension_numbers: Any,
        beta: float = 0.95,
        weight_decay: float = 0.0,
        eps: float = 1e-8,
        mu_dtype: Any = None,
        adam_b1: float = 0.9,
        adam_b2: float = 0.999,
        adam_eps_root: float = 0.0,
        adam_weight_decay: float = 0.0,
        consistent_rms: float | None = None,
    ) -> optax.GradientTransformation:
        if consistent_rms is not None:
            raise ValueError(
                "`muon_consistent_rms` must be unset, got "
                f"{consistent_rms}: the method has its own scale; change the rate."
            )
        other = optax.adamw(
            learning_rate,
            b1=adam_b1,
            b2=adam_b2,
            eps=eps,
            eps_root=adam_eps_root,
            weight_decay=adam_weight_decay,
            mu_dtype=mu_dtype,
        )
        return recipe(
            learning_rate,
            b1=beta,
            weight_decay=weight_decay,
            mu_dtype=mu_dtype,
            dimension_numbers=muon_weight_dimension_numbers,
            other=other,
            **options,
        )

    return muon
