"""The methods that train something other than the weights: LoRA, POET and OFT.

    --optimizer lora:rank=8
    --optimizer poet:variant=full:block=0.5:init=xavier

With blocks of 32, POET trains as many numbers as LoRA of rank 16, but for 3%: b - 1
against 2 r for each row and column.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

import optax_matrix as om
from examples.pretrain.options import Method, keywords

KEY = 6  # Seed of the initial weights; the seed of the run is folded in.
INITS = ("given", *om.weights.INITIALIZERS)
OWN = {"block": 32, "merge_interval": 100, "init": "normalized"}


class LoraState(NamedTuple):
    """Factors of the change so far, by name and stack, and their optimizer's state."""

    factors: dict[str, dict[str, jax.Array]]
    inner_state: Any


def lora(
    learning_rate: optax.ScalarOrSchedule,
    *,
    other: Callable[..., Any],
    rank: int = 16,
    dimension_numbers: Any = None,
) -> optax.GradientTransformation:
    """W = W_0 + B A with Adam on B and A; the weights stay plain weights.

    Args:
        learning_rate: Learning rate of all leaves, a number or a schedule.
        other: Learning rate to the optimizer of embeddings, head and norms.
        rank: Columns of B.
        dimension_numbers: Which leaves are matrices; None for the default rule.

    Returns:
        An optimizer of the whole tree.
    """
    if not isinstance(rank, int) or rank < 1:
        raise ValueError(f"`rank` must be a positive int, got {rank!r}.")
    build = jax.tree_util.Partial(_factors, lr=learning_rate, rank=rank)
    numbers = {"dimension_numbers": dimension_numbers}
    return om.on_matrices(build, other=other(learning_rate), **numbers)


def _factors(layout, lr, rank):
    adam = optax.scale_by_adam(0.9, 0.95)
    inner = optax.chain(adam, optax.scale_by_learning_rate(lr))

    def draw(name, w):
        def one(numbers):
            key = jax.random.fold_in(jax.random.key(0), numbers[0])
            shape = rank, w.shape[-1]
            return jax.random.normal(jax.random.fold_in(key, numbers[1]), shape)

        return jax.vmap(one)(jnp.asarray(layout.groups[name].ids)) / w.shape[-1] ** 0.5

    def init_fn(params):
        a = {name: draw(name, w) for name, w in params.items()}
        b = {name: jnp.zeros((*w.shape[:-1], rank)) for name, w in params.items()}
        factors = {"a": a, "b": b}
        return LoraState(factors, inner.init(factors))

    def update_fn(updates, state, params=None):
        del params
        a, b = state.factors["a"], state.factors["b"]
        gradient = {
            "a": {name: b[name].mT @ g for name, g in updates.items()},
            "b": {name: g @ a[name].mT for name, g in updates.items()},
        }
        steps, inner_state = inner.update(gradient, state.inner_state, state.factors)
        new = optax.apply_updates(state.factors, steps)
        change = {n: new["b"][n] @ new["a"][n] - b[n] @ a[n] for n in updates}
        return change, LoraState(new, inner_state)

    return optax.GradientTransformation(init_fn, update_fn)


class Orthogonal(Method):
    """A method that keeps the singular values of the weights that it starts from."""

    def start(self, params, seed):
        """The weights of a fresh model with new matrices, by the option ``init``."""
        if self.options["init"] == "given":
            return params
        key = jax.random.fold_in(jax.random.key(KEY), seed)
        numbers = {"dimension_numbers": self.options.get("dimension_numbers")}
        return om.initialize_matrices(params, key, self.options["init"], **numbers)


def orthogonal(recipe: Callable[..., Any], other: Callable[..., Any]) -> Orthogonal:
    """`om.poet` or `om.oft`, called with AdamW's learning rate.

    The rotations' learning rate follows from AdamW's by the paper's rule: a fifth of it
    for blocks of 256 or half of a side, and in proportion to 1 / b. The keywords are
    those of the recipe, ``init`` (an initializer of `om.initialize_matrices`, or
    ``given`` for the weights of all other methods) and, if the recipe has ``sides``,
    ``share``, the part of the trained numbers that R gets (of square matrices). Other
    leaves get the optimizer ``other(learning_rate)``.
    """
    options = keywords(recipe) | OWN
    if "sides" in options:
        options["share"] = 0.5

    def build(
        learning_rate: Any, *, init, share=0.5, dimension_numbers=None, **options
    ):
        if init not in INITS:
            raise ValueError(f"`init` must be one of {', '.join(INITS)}, got {init!r}.")
        block: Any = options["block"]
        if isinstance(block, dict):  # One for each side.
            block = max(block.values(), default=0)
        if isinstance(block, bool) or not isinstance(block, int | float) or block <= 0:
            raise ValueError(f"`block` must be a positive number, got {block!r}.")
        rate = 0.1 / (block if isinstance(block, float) else block / 512)
        scaled = (
            (lambda count: rate * learning_rate(count))
            if callable(learning_rate)
            else rate * learning_rate
        )
        options |= shared(share, **options)
        options |= {"dimension_numbers": dimension_numbers} if dimension_numbers else {}
        return recipe(scaled, other=other(learning_rate), **options)

    return Orthogonal(build, options)


def shared(share, *, block: Any, variant, sides="in", **_) -> dict[str, Any]:
    """The blocks of each side when R gets a share of what both would train.

    The trained numbers of a side are proportional to b, for ``variant="full"`` to its
    square. A share of 1 or 0 leaves one side; with one side there is nothing to share.

    Returns:
        The arguments of `om.poet` that this changes.
    """
    if not isinstance(share, int | float) or not 0 <= share <= 1:
        raise ValueError(f"`share` must be from 0 to 1, got {share!r}.")
    if share == 0.5 or sides != "both":
        return {}
    power = 0.5 if variant == "full" else 1
    parts = {"in": 2 * share, "out": 2 * (1 - share)}
    sizes = {side: block * part**power for side, part in parts.items() if part}
    if isinstance(block, float):
        sizes = {side: min(size, 1.0) for side, size in sizes.items()}
    else:
        sizes = {side: max(round(size), 2) for side, size in sizes.items()}
    return {"block": sizes, "sides": "both" if len(sizes) == 2 else next(iter(sizes))}
