"""The methods of the comparison by name; `options` says how names set their keywords.

Under every method the same AdamW trains embeddings, head and norms, and the updates of
matrices have AdamW's root mean square, about 0.2 (or Adam's, in another frame). So
AdamW's learning rate serves all of them (ARO, Sec. 4.4).
"""

from collections.abc import Callable
from functools import partial

import optax

import optax_matrix as om
from examples.pretrain.lora import lora
from examples.pretrain.options import Method, keywords, with_options
from examples.pretrain.poet import orthogonal

BETAS = {"b1": 0.9, "b2": 0.95}
WEIGHT_DECAY = 0.1
HEAD = om.layout.by_path(include="lm_head")
QUARTER = 0.25  # Rank of low-rank methods, as a fraction of the shorter side.


def adamw(lr):
    """AdamW with the settings of the whole comparison."""
    return optax.adamw(lr, **BETAS, weight_decay=WEIGHT_DECAY)


def recipe(factory: Callable[..., optax.GradientTransformation], **options) -> Method:
    """A recipe whose updates have AdamW's size; ``options`` are other defaults."""
    build = partial(factory, weight_decay=WEIGHT_DECAY)
    return Method(build, keywords(factory) | options)


def matched(
    direction: Callable[..., optax.GradientTransformation], **options
) -> Method:
    """A recipe, given by its ``scale_by_``, with updates rescaled to AdamW's size.

    With ``last_layer=method`` the output head counts as a matrix.
    """

    def build(lr, **options):
        numbers = HEAD if options.get("last_layer") == "method" else None
        size = om.on_matrices(om.match_rms(0.2), dimension_numbers=numbers)
        matrix = optax.chain(
            direction(**options, dimension_numbers=numbers),
            size,
            optax.add_decayed_weights(WEIGHT_DECAY),
            optax.scale_by_learning_rate(lr),
        )
        parts = {"matrix": matrix, "other": adamw(lr)}
        return optax.partition(parts, om.layout.label_params(numbers))

    return Method(build, keywords(direction) | options)


def _swan(lr, **options):
    """SWAN beside the AdamW of the other methods; its own has another `b2`."""
    return om.swan(lr, other=adamw(lr), weight_decay=WEIGHT_DECAY, **options)


NAMES = [row.recipe.__name__ for rows in om.recipes.METHODS.values() for row in rows]
DIRECTIONS = {name: getattr(om, f"scale_by_{name}", None) for name in NAMES}
OPTIMIZERS: dict[str, Method] = {
    "adamw": Method(adamw),
    **{name: matched(update) for name, update in DIRECTIONS.items() if update},
    # Those whose updates have AdamW's size, or whose defaults do not fit the model.
    "muon": recipe(om.muon, scaling="max"),
    "muoneq": recipe(om.muoneq),
    "adamuon": recipe(om.adamuon),
    "normuon": recipe(om.normuon),
    "swan": Method(_swan, keywords(om.swan)),
    "sinkgd": recipe(om.sinkgd),
    "mars_adamw": recipe(om.mars_adamw),
    "aro": recipe(om.aro),
    "eigen_sinkhorn": recipe(om.eigen_sinkhorn),
    "eigen_sign": recipe(om.eigen_sign),
    "eigen_rownorm": recipe(om.eigen_rownorm),
    "eigen_adam": recipe(om.eigen_adam),
    "soap": recipe(om.soap),
    "mousse": recipe(om.mousse),
    "galore": matched(om.scale_by_galore, rank=QUARTER),
    "alice": matched(om.scale_by_alice, rank=QUARTER, leading=0.3),
    "alice_0": matched(om.scale_by_alice_0, rank=QUARTER, leading=0.3),
    "sumo": matched(om.scale_by_sumo, rank=QUARTER),
    "fira": matched(om.scale_by_fira, rank=QUARTER),
    "fira_plus": matched(om.scale_by_fira_plus, rank=QUARTER),
    "apollo": matched(om.scale_by_apollo, rank=QUARTER),
    "apollo_svd": matched(om.scale_by_apollo_svd, rank=QUARTER),
    "ldadam": matched(om.scale_by_ldadam, rank=QUARTER),
    "poet": orthogonal(om.poet, adamw),
    "oft": orthogonal(om.oft, adamw),
    "lora": Method(partial(lora, other=adamw), keywords(lora)),
}


def find(name: str) -> Method:
    """The method of a name, which may set options: ``poet:terms=2``.

    Raises:
        UserError: If there is none; the message lists the names, or the options.
    """
    return with_options(name, OPTIMIZERS)
