"""The methods of the study, in two settings.

`matched`: updates of matrices have AdamW's root mean square, AdamW's weight decay, and
one learning rate for the whole model, as in `examples.pretrain.optimizers`.

`own`: the recipe as its paper has it: its scale, its weight decay, and its AdamW for
the other leaves. Only methods whose scale or weight decay differs have this setting.

`tuned`: AdamW with freedoms that no other method has here (`TUNED`).

`chain` is any method of the algebra in `chains`, matched.

In both, AdamW trains embeddings, positions, head and norms, and low-rank methods have a
quarter of the shorter side as rank, as in the papers (128 of 512).
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import optax

import optax_matrix as om
from examples.pretrain.optimizers import SMALL, Arena, methods
from examples.pretrain.options import Method, keywords, with_options
from examples.study.bench.chains import chains

# Learning rates of the papers or of their programs, where the search begins; where none
# is known, that of a method with updates of the same size.
OWN_RATES = {
    "muon": 0.02,
    "muon_plus": 0.02,
    "aurora": 0.05,
    "dion": 0.01,
    "dion2": 0.01,
    "swan": 0.02,
    "scion": 0.00036,
    "muonh": 0.02,
    "racs": 0.02,
    "eigen_adam": 0.004,
    "soap": 0.003,
    "soap_muon": 0.02,
    "splus": 0.1,
    "shampoo": 0.1,
    "kl_shampoo": 0.003,
    "kl_soap": 0.003,
    "kron": 0.001,
    "galore": 0.02,
    "alice": 0.02,
    "alice_0": 0.02,
    "sumo": 0.002,
    "fira": 0.02,
    "fira_plus": 0.02,
    "apollo": 0.01,
    "apollo_mini": 0.01,
    "apollo_svd": 0.01,
    "ldadam": 0.001,
}


# Found in 14 trials on *books* with a seed of its own. The rate is that of matrices.
TUNED = {"b1": 0.8, "other": 4.0, "warm_up": 0.2}


def tuned(arena: Arena) -> Callable[..., Any]:
    """AdamW whose other leaves have a rate of their own, with a longer warm-up."""

    def build(lr):
        adamw = dataclasses.replace(arena, b1=TUNED["b1"]).adamw
        parts = {
            "matrix": adamw(lr),
            "other": adamw(lambda count: TUNED["other"] * lr(count)),
        }
        return optax.partition(parts, om.matrices.label_params(arena.dimension_numbers))

    made: Any = build
    made.warm_up = TUNED["warm_up"]
    return made


def own(name: str, arena: Arena) -> Method:
    """A recipe with the defaults of its paper; vectors decay, as in its runs."""
    factory = getattr(om, name)
    given = {"dimension_numbers": arena.dimension_numbers, "weight_decay_mask": True}

    def build(lr, **options):
        return factory(lr, **given | options)

    return Method(build, keywords(factory) | SMALL.get(name, {}))


def find(name: str, setting: str, arena: Arena) -> Any:
    """The method of a name, which may set options, under a task's AdamW."""
    if setting == "tuned":
        return tuned(arena)
    if setting == "matched":
        return with_options(name, {**methods(arena), "chain": chains(arena)})
    return with_options(name, {name: own(name, arena) for name in OWN_RATES})
