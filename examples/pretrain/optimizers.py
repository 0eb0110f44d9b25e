"""The optimizers by name: one line each, a learning rate or schedule in.

The same AdamW moves embeddings, head and norms under every one of them, and every
update of a matrix has a root mean square of about 0.2, which is AdamW's (or is Adam's
in another frame): so AdamW's learning rate serves all of them (ARO, Sec. 4.4). POET,
OFT and LoRA move other parameters than weights: see `variants`.
"""

import dataclasses
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import optax

import optax_matrix as om
from examples.pretrain.errors import UserError
from examples.pretrain.variants import Lora, Poet, with_options

Build = Callable[[optax.ScalarOrSchedule], optax.GradientTransformation]

BETAS = {"b1": 0.9, "b2": 0.95}
WEIGHT_DECAY = 0.1
DECAY = {"weight_decay": WEIGHT_DECAY}
COMMON = {  # What is the same for all, and no option.
    *("weight_decay", "weight_decay_mask", "other", "other_learning_rate"),
    *("dimension_numbers", "placement", "mu_dtype"),
}
QUARTER = 0.25  # Of the shorter side: the rank of low-rank methods.


def adamw(lr):
    """AdamW as the comparison has it everywhere."""
    return optax.adamw(lr, **BETAS, weight_decay=WEIGHT_DECAY)


def matched(direction: optax.GradientTransformation) -> Build:
    """A method whose own update size is another one, brought to AdamW's.

    Args:
        direction: Transformation of a whole tree that changes the matrices.

    Returns:
        Learning rate to optimizer.
    """

    def build(lr):
        matrix = optax.chain(
            direction,
            om.on_matrices(om.match_rms(0.2)),
            optax.add_decayed_weights(WEIGHT_DECAY),
            optax.scale_by_learning_rate(lr),
        )
        parts = {"matrix": matrix, "other": adamw(lr)}
        return optax.partition(parts, om.layout.label_params())

    return build


def recipe(
    factory: Callable[..., Any], of: Callable[..., Build] | None = None
) -> Build:
    """A recipe whose own numbers and words are options: `aro:sharing=chain:b1=0.9`.

    One that can rotate the residual side is told by `on(dimension_numbers)` which that
    is; `Trainer` does.

    Args:
        factory: The recipe, or with `of` its direction.
        of: Options to learning rate to optimizer; None for those of the recipe.

    Returns:
        Learning rate to optimizer.
    """
    build = of or (lambda **options: partial(factory, **DECAY, **options))
    parameters = inspect.signature(factory).parameters
    plain = (str, float, int, type(None))
    fields = [
        (name, Any, x.default)
        for name, x in parameters.items()
        if name not in COMMON and isinstance(x.default, plain)
    ]

    def call(self, lr, **layout):
        return build(**dataclasses.asdict(self), **layout)(lr)

    namespace: dict[str, Any] = {"__call__": call}
    if "orientation" in parameters:
        namespace["on"] = lambda self, layout: partial(self, dimension_numbers=layout)
    name = factory.__name__
    return dataclasses.make_dataclass(name, fields, namespace=namespace, frozen=True)()


def direction(factory: Callable[..., optax.GradientTransformation]) -> Build:
    """The same of a direction, `matched`."""
    return recipe(factory, lambda **options: matched(factory(**options)))


@dataclasses.dataclass(frozen=True)
class LowRank:
    """A method in a subspace, from a learning rate: `galore:rank=16`.

    Attributes:
        method: Transformation of a whole tree, given `rank=`.
        rank: Of the subspace; a fraction is one of the shorter side.
    """

    method: Callable[..., optax.GradientTransformation]
    rank: Any = QUARTER

    def __call__(self, lr):
        return matched(self.method(rank=self.rank))(lr)


@dataclasses.dataclass(frozen=True)
class Alice:
    """Alice, or what is left of it without some of its parts, from a learning rate.

    Its paper's Table 5 is, from the last row up, `alice`, `alice:compensation=None`,
    `alice:compensation=None:switch=none` and `alice:compensation=None:switch=none:b3=0`
    (with `update_interval=20`, say, in a run of 400 steps).

    Attributes:
        rank: Of the subspace; a fraction is one of the shorter side.
        leading: Eigenvectors that stay at a renewal; a fraction is one of the rank.
        b3: Decay rate of the tracked average, 0 for none.
        switch: Where the others are drawn from, `none` for no switching.
        compensation: `optimal`, `fira`, `fira_plus` or None.
        update_interval: Updates between renewals.
        transport: `keep` or `carry` for the moments.
    """

    rank: Any = QUARTER
    leading: Any = 0.3
    b3: float = 0.999
    switch: str = "complement"
    compensation: str | None = "optimal"
    update_interval: int = 200
    transport: str = "keep"

    def __call__(self, lr):
        return matched(om.scale_by_alice(**dataclasses.asdict(self)))(lr)


OPTIMIZERS: dict[str, Build] = {
    "adamw": adamw,
    "muon": lambda lr: om.muon(lr, scaling="max", **DECAY),
    "muoneq": lambda lr: om.muoneq(lr, **DECAY),
    "muon_plus": matched(om.scale_by_muon_plus()),
    "adamuon": lambda lr: om.adamuon(lr, **DECAY),
    "normuon": lambda lr: om.normuon(lr, **DECAY),
    "swan": lambda lr: om.swan(lr, other=adamw(lr), **DECAY),
    "sinkgd": lambda lr: om.sinkgd(lr, other=adamw(lr), **DECAY),
    "racs": matched(om.scale_by_racs()),
    "mars_adamw": lambda lr: om.mars_adamw(lr, **DECAY),
    "aro": recipe(om.aro),
    "eigen_sinkhorn": recipe(om.eigen_sinkhorn),
    "eigen_sign": recipe(om.eigen_sign),
    "eigen_rownorm": recipe(om.eigen_rownorm),
    "eigen_adam": recipe(om.eigen_adam),
    "soap": recipe(om.soap),
    "splus": direction(om.scale_by_splus),
    "shampoo": direction(om.scale_by_shampoo),
    "mousse": recipe(om.mousse),
    "dion": direction(om.scale_by_dion),
    "galore": LowRank(om.scale_by_galore),
    "alice": Alice(),
    "alice_0": Alice(b3=0.0),
    "sumo": LowRank(om.scale_by_sumo),
    "fira": LowRank(om.scale_by_fira),
    "fira_plus": LowRank(om.scale_by_fira_plus),
    "apollo": LowRank(om.scale_by_apollo),
    "apollo_mini": matched(om.scale_by_apollo_mini()),
    "apollo_svd": LowRank(om.scale_by_apollo_svd),
    "ldadam": LowRank(om.scale_by_ldadam),
    "poet": Poet(adamw),
    "oft": Poet(adamw, sides="in"),
    "lora": Lora(adamw),
}


def find(name: str) -> Build:
    """The optimizer of that name, which may have options: `poet:terms=2`.

    Raises:
        UserError: If there is none; the message lists the names.
    """
    if name.split(":")[0] not in OPTIMIZERS:
        raise UserError(
            f"There is no optimizer {name!r}; choose from {', '.join(OPTIMIZERS)}."
        )
    return with_options(name, OPTIMIZERS)
