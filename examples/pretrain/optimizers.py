"""The methods of the comparison by name; `options` says how names set their keywords.

Under every method the same AdamW trains embeddings, head and norms, and the updates of
matrices have AdamW's root mean square, about 0.2 (or Adam's, in another frame). So one
grid of learning rates serves all of them; the best ones of small models are a few times
AdamW's (``examples/study/pages/rates.md``).
"""

import dataclasses
import numbers
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import optax

import optax_matrix as om
from examples.pretrain import user
from examples.pretrain.factors import lora, orthogonal
from examples.pretrain.options import Method, keywords, with_options

QUARTER = 0.25  # Rank of low-rank methods, as a fraction of the shorter side.
NAMES = [recipe.__name__ for group in om.recipes.METHODS.values() for recipe in group]


@dataclasses.dataclass(frozen=True)
class Arena:
    """What all methods of a comparison share: AdamW's settings, and the matrices.

    Attributes:
        b1: First decay rate of AdamW.
        b2: Second decay rate of AdamW.
        weight_decay: Decay rate of all leaves with two axes or more.
        dimension_numbers: Which leaves are matrices; None for the default rule.
    """

    b1: float = 0.9
    b2: float = 0.95
    weight_decay: float = 0.1
    dimension_numbers: Any = None

    def adamw(self, lr):
        """AdamW, for the whole model or for the leaves that are no matrices."""
        decayed = lambda params: jax.tree.map(lambda leaf: leaf.ndim > 1, params)
        decay = {"weight_decay": self.weight_decay, "mask": decayed}
        return optax.adamw(lr, b1=self.b1, b2=self.b2, **decay)

    def recipe(self, factory: Callable[..., Any], **options) -> Method:
        """A recipe whose updates have AdamW's size; ``options`` are other defaults."""

        def build(lr, dimension_numbers=self.dimension_numbers, **options):
            return factory(
                lr,
                other=self.adamw(lr),
                weight_decay=self.weight_decay,
                dimension_numbers=dimension_numbers,
                **options,
            )

        return Method(build, keywords(factory) | options)

    def matched(self, direction: Callable[..., Any], **options) -> Method:
        """A recipe, given by its ``scale_by_``, with updates rescaled to AdamW's size.

        With ``last_layer=method`` the output head counts as a matrix.
        """

        def build(lr, dimension_numbers=self.dimension_numbers, **options):
            last = options.get("last_layer") == "method"
            numbers = dimension_numbers
            numbers = om.matrices.heads_as_matrices(numbers) if last else numbers
            size = om.on_matrices(om.match_rms(0.2), dimension_numbers=numbers)
            matrix = optax.chain(
                direction(**options, dimension_numbers=numbers),
                size,
                optax.add_decayed_weights(self.weight_decay),
                optax.scale_by_learning_rate(lr),
            )
            parts = {"matrix": matrix, "other": self.adamw(lr)}
            return optax.partition(parts, om.matrices.label_params(numbers))

        return Method(build, keywords(direction) | options)


def _small(name: str) -> dict[str, Any]:
    """The options that a small model needs, in place of the papers' for large ones."""
    defaults = keywords(getattr(om, name))
    if not isinstance(defaults.get("rank"), numbers.Integral):
        return {}
    wanted = {"rank": QUARTER, "leading": 0.3}
    return {key: value for key, value in wanted.items() if key in defaults}


SMALL = {name: options for name in NAMES if (options := _small(name))}
# Recipes whose updates have AdamW's size; others are rescaled.
OF_ADAMS_SIZE = {
    "muon": {"scaling": "max"},
    "muonh": {},  # Its steps are relative to the weights.
    "muoneq": {},
    "adamuon": {},
    "normuon": {},
    "mousse": {},
    "swan": {},
    "sinkgd": {},
    "mars_adamw": {},
    "aro": {},
    "eigen_sinkhorn": {},
    "eigen_sign": {},
    "eigen_rownorm": {},
    "eigen_adam": {},
    "soap": {},
}


def methods(arena: Arena) -> dict[str, Method]:
    """Every method under the settings of an arena, by name."""
    found = {"adamw": Method(arena.adamw)}
    for name in NAMES:
        recipe = getattr(om, name)
        if name in OF_ADAMS_SIZE:
            found[name] = arena.recipe(recipe, **OF_ADAMS_SIZE[name])
        elif direction := getattr(om, f"scale_by_{name}", None):
            found[name] = arena.matched(direction, **SMALL.get(name, {}))
        else:  # Its updates are finished steps.
            found[name] = orthogonal(recipe, arena.adamw)
    found["lora"] = Method(partial(lora, other=arena.adamw), keywords(lora))
    return found


OPTIMIZERS = methods(Arena())


def find(name: str) -> Method:
    """The method of a name, which may set options: ``poet:terms=2``.

    ``my_module:make`` is a function of the user's (`user.find`).

    Raises:
        UserError: If there is none; the message lists the names, or the options.
    """
    return user.find(name) if _is_users(name) else with_options(name, OPTIMIZERS)


def version(name: str) -> str | None:
    """The version of the file that a user's optimizer comes from; None for others."""
    return user.checksum(name) if _is_users(name) else None


def _is_users(name: str) -> bool:
    head, _, rest = name.partition(":")
    names_function = rest != "" and "=" not in rest.partition(":")[0]
    return head not in OPTIMIZERS and names_function
