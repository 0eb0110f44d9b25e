"""The optimizers: AdamW for all leaves, or a matrix method beside AdamW."""

from typing import Any

import optax

import optax_matrix as om
from examples.pretrain.options import Method, keywords, with_options
from examples.study.bench.tasks import CLIP, schedule

ADAMW = "adamw:b2=0.999", "adamw:b2=0.99"
MATRIX = "muon:b1=0.95", "muon:b1=0.9", "muoneq:b1=0.95", "soap:b1=0.95"
METHODS = ADAMW + MATRIX
# Updates have the size of those of AdamW under all of them.
OPTIONS = {"muon": {"scaling": "max"}, "muoneq": {}, "soap": {}}


def optimizer(
    method: str,
    rate: Any,
    other: tuple[str, Any] | None,
    numbers: Any,
    updates: int,
) -> optax.GradientTransformation:
    """The optimizer of a run.

    Args:
        method: Of `METHODS`.
        rate: Peak of its rate, which may be traced.
        other: For the leaves that are not matrices: of `ADAMW`, and its rate; None
            under AdamW.
        numbers: Which leaves are matrices, as `on_matrices` takes it.
        updates: Updates of the run.
    """
    lr = schedule(rate, updates)
    if other is None:
        whole = _adamw(method, lr)
    else:
        name, other_rate = other
        factories = {base: _recipe(base) for base in OPTIONS}
        recipe = with_options(method, factories)
        whole = recipe.replace(
            other=_adamw(name, schedule(other_rate, updates)),
            dimension_numbers=numbers,
            weight_decay=0.0,
        )(lr)
    return optax.chain(optax.clip_by_global_norm(CLIP), whole)


def _recipe(base):
    factory = getattr(om, base)
    return Method(factory, keywords(factory) | OPTIONS[base])


def _adamw(name, lr):
    b2 = float(name.partition("b2=")[2])
    return optax.adamw(lr, b2=b2, weight_decay=0.0)
