"""Methods that fine-tune the matrices of a model's layers, each at a given rank."""

import dataclasses
from collections.abc import Callable
from typing import Any

import optax

import optax_matrix as om

FROZEN = optax.set_to_zero()


@dataclasses.dataclass(frozen=True)
class Method:
    """A way to fine-tune.

    Attributes:
        optimizer: ``optimizer(rank, learning_rate)``.
        rates: Peaks of the learning rate that are tried.
        factors: Whether the method trains factors beside the weights.
    """

    optimizer: Callable[[int, Any], optax.GradientTransformation]
    rates: tuple[float, ...]
    factors: bool = False


def _adamw(_, lr):
    parts = {"matrix": optax.adamw(lr, weight_decay=0.0), "other": FROZEN}
    return optax.partition(parts, om.matrices.label_params())


def _orthogonal(recipe, rank, lr):
    """A rotation with as many parameters per row and column as factors of the rank.

    OFT has only the parameters of the columns.
    """
    block = 2 * rank + 1
    options = {"merge_interval": 100, "hold": "recovered", "terms": 4, "q_decay": 0.0}
    return recipe(lr, block=block, other=FROZEN, **options)


METHODS = {
    "adamw": Method(_adamw, (1e-3, 3e-3, 1e-2)),
    "galore": Method(
        lambda rank, lr: om.galore(lr, rank=rank, scale=1.0, other=FROZEN),
        (3e-3, 1e-2, 3e-2),
    ),
    "sumo": Method(
        lambda rank, lr: om.sumo(lr, rank=rank, other=FROZEN), (1e-3, 3e-3, 1e-2, 3e-2)
    ),
    "lora": Method(
        lambda _, lr: optax.adamw(lr, weight_decay=0.0), (3e-3, 1e-2, 3e-2, 1e-1), True
    ),
    "poet": Method(lambda rank, lr: _orthogonal(om.poet, rank, lr), (3e-3, 1e-2, 3e-2)),
    "oft": Method(lambda rank, lr: _orthogonal(om.oft, rank, lr), (3e-3, 1e-2, 3e-2)),
}
