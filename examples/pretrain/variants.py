"""Methods that train few parameters, with options in their names.

    --optimizers poet,poet:block=16,poet:variant=full:block=0.5:init=xavier,lora:rank=8

Blocks of 32 and a rank of 16 make POET and LoRA of equal size, but for 3%: b - 1
against 2 r entries for each row and column. GaLore's rank is that of `galore:rank=16`.
"""

import ast
import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

import optax_matrix as om
from examples.pretrain.errors import UserError

Build = Callable[[Any], optax.GradientTransformation]
ALONE = {1: "in", 0: "out"}  # Sides that have all of the budget.
KEY = 6  # Of the initial weights, folded with the run's seed.


@dataclasses.dataclass(frozen=True)
class Poet:
    """POET: learning rate (AdamW's) to optimizer, and the weights that it starts from.

    Its own rate follows from AdamW's by the paper's rule: a fifth of it for blocks of
    256 or half of a side, in proportion to 1 / b.

    Attributes:
        other: Learning rate to the optimizer of embeddings, head and norms.
        variant: `block` or `full`.
        block: Side of the blocks, or for `full` their fraction of the side.
        share: Part of the budget that R gets (`sides=both`, square matrices).
        sides: `both`, `in` (OFT) or `out`.
        merge_interval: Updates between merges.
        terms: k of the Cayley-Neumann sum.
        max_norm: Bound on the norm of Q; None for none.
        init: `standard`, `xavier`, `uniform_spectrum`, `normalized`, or `given`.
    """

    other: Build
    variant: str = "block"
    block: Any = 32
    share: float = 0.5
    sides: str = "both"
    merge_interval: int = 100
    terms: int = 4
    max_norm: Any = "auto"
    init: str = "normalized"

    def __call__(self, lr):
        wide = self.block if isinstance(self.block, float) else self.block / 512
        rate = 0.1 / wide
        scaled = (lambda count: rate * lr(count)) if callable(lr) else rate * lr
        return om.poet(
            scaled,
            variant=self.variant,
            block=self.blocks(),
            sides=ALONE.get(self.share, self.sides),
            merge_interval=self.merge_interval,
            terms=self.terms,
            max_norm=self.max_norm,
            other=self.other(lr),
        )

    def blocks(self):
        """The block of each side: parameters go as b, for `full` as its square."""
        if not 0 <= self.share <= 1:
            raise ValueError(f"`share` must be from 0 to 1, got {self.share!r}.")
        if self.share == 0.5 or self.sides != "both":
            return self.block
        power = 0.5 if self.variant == "full" else 1
        parts = {"in": 2 * self.share, "out": 2 * (1 - self.share)}
        parts = {side: part for side, part in parts.items() if part}
        sizes = {side: self.block * part**power for side, part in parts.items()}
        if isinstance(self.block, float):
            return {side: min(size, 1.0) for side, size in sizes.items()}
        return {side: max(round(size), 2) for side, size in sizes.items()}

    def start(self, params, seed):
        """The weights of a fresh model, with matrices that suit it."""
        if self.init == "given":
            return params
        key = jax.random.fold_in(jax.random.key(KEY), seed)
        return om.initialize_matrices(params, key, self.init)


class LoraState(NamedTuple):
    """Factors of the change so far, by name and stack, and their optimizer's state."""

    factors: dict[str, dict[str, jax.Array]]
    inner_state: Any


@dataclasses.dataclass(frozen=True)
class Lora:
    """W = W_0 + B A with Adam on B and A, as an optimizer of W.

    Attributes:
        other: Learning rate to the optimizer of embeddings, head and norms.
        rank: Columns of B.
    """

    other: Build
    rank: int = 16

    def __call__(self, lr):
        if not isinstance(self.rank, int) or self.rank < 1:
            raise ValueError(f"`rank` must be a positive int, got {self.rank!r}.")
        build = partial(_factors, rank=self.rank)
        matrix = om.on_matrices(build, hyperparams={"lr": lr})
        parts = {"matrix": matrix, "other": self.other(lr)}
        return optax.partition(parts, om.layout.label_params())


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


def with_options(name: str, families: dict[str, Build]) -> Build:
    """The method that a name such as `poet:block=16:init=xavier` stands for.

    Args:
        name: A key of `families`, and options.
        families: Methods by name; those with options are dataclasses.

    Returns:
        The method.

    Raises:
        UserError: If it has no such option or does not take the value.
    """
    head, *options = name.split(":")
    method: Any = families[head]
    fields = getattr(method, "__dataclass_fields__", {}).values()
    known = [x.name for x in fields if x.default is not dataclasses.MISSING]
    given = {}
    for option in options:
        key, _, value = option.partition("=")
        if key not in known:
            have = ", ".join(known) or "none"
            raise UserError(f"{head} has no option {key!r}; its options: {have}.")
        try:
            given[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            given[key] = value
    method = dataclasses.replace(method, **given) if given else method
    try:
        if given:
            method(0.0)  # Factories check their arguments.
        if getattr(method, "init", "given") not in ("given", *om.weights.INITIALIZERS):
            raise ValueError(f"there is no init {method.init!r}")
    except (TypeError, ValueError) as error:
        raise UserError(f"{name}: {error}") from None
    return method
