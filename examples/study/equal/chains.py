"""Methods with additions in their names, as in ``mousse+centralized+averaged``.

An addition changes one thing of a method: its gradients, its polar factor, its updates,
its momentum over time, the norms or the average of its weights, or the learning rates
of some matrices. `search` tries them.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

import optax_matrix as om

BASES = "muoneq", "mousse", "soap", "aurora"
B2, RENEWAL = 0.95, 10  # Of the averages of `whitened`, `normuon` and `entries`.
WINDOW = 0.05  # Of `averaged`, as a share of the steps.
POLAR = partial(om.linalg.newton_schulz, coefficients=om.linalg.YOU)
Transformation = optax.GradientTransformation


@dataclasses.dataclass(frozen=True)
class Addition:
    """What is added to a method.

    Attributes:
        bases: Methods that it may be added to; the others have it, or no place for it.
        keywords: Keywords of the method.
        around: From the method, without decay and learning rate, and the rule of what
            is a matrix, to the changed method.
        momentum: From the share of the run that is over to a factor of 1 - b1.
        norms: From that share to a factor of the matrices' initial norms, which are
            set after every step; there is no weight decay then.
        rates: Factors of the learning rate, as of `om.scale_by_path`.
        is_averaged: Whether an average of the weights is measured.
    """

    bases: tuple[str, ...] = BASES
    keywords: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    around: Callable[[Transformation, Any], Transformation] = lambda method, _: method
    momentum: Callable[[Any], Any] | None = None
    norms: Callable[[Any], Any] | None = None
    rates: Mapping[str, float] = dataclasses.field(default_factory=dict)
    is_averaged: bool = False


def _with_polar_of(scale):
    return {"polar": lambda x: POLAR(scale(x))}


def _after(block):
    """A block behind the method, which does not change the norms of updates."""
    block = om.transforms.preserve_norm(block)
    return lambda method, numbers: optax.chain(method, _on(block, numbers))


def _before(block):
    """A block of the gradients."""
    return lambda method, numbers: optax.chain(_on(block, numbers), method)


def _on(block, numbers):
    return om.on_matrices(block, dimension_numbers=numbers)


def cautious(method: Transformation) -> Transformation:
    """Drops entries whose sign is not the gradient's, and keeps the mean size."""
    method = optax.with_extra_args_support(method)

    def one(update, gradient):
        mask = (update * gradient > 0).astype(update.dtype)
        return update * mask / jnp.maximum(mask.mean(), 1e-3)

    def update_fn(updates, state, params=None, **extra_args):
        found, state = method.update(updates, state, params, **extra_args)
        return jax.tree.map(one, found, updates), state

    return optax.GradientTransformationExtraArgs(method.init, update_fn)


# In the order in which they are put around a method: `cautious` sees raw gradients.
# Aurora balances rows and columns itself.
ADDITIONS = {
    "rows": Addition(("mousse",), _with_polar_of(om.linalg.scale_rows)),
    "rowcol": Addition(("mousse",), _with_polar_of(om.linalg.scale_rows_and_columns)),
    "mode_rowcol": Addition(("muoneq",), {"mode": "rowcol"}),
    "whitened": Addition(
        ("muoneq", "aurora"),
        around=_before(
            om.precondition(
                decay=B2, bias_correction=True, method="eigh", update_interval=RENEWAL
            )
        ),
    ),
    "centralized": Addition(  # `optax.centralize` has the mean over the outputs.
        around=_before(
            optax.stateless_with_tree_map(lambda g, _: g - g.mean(-1, keepdims=True))
        )
    ),
    "polar": Addition(("soap",), around=_after(om.orthogonalize(POLAR))),
    "entries": Addition(
        ("muoneq", "mousse", "aurora"), around=_after(om.scale_by_second_moment(B2))
    ),
    "normuon": Addition(  # Aurora's rows have equal norms.
        ("muoneq", "mousse", "soap"),
        around=_after(om.equilibrate_with_ema(om.row_rms, B2)),
    ),
    "cautious": Addition(around=lambda method, _: cautious(method)),
    "rising": Addition(momentum=lambda t: 2.0 ** (1 - 2 * t)),
    "falling": Addition(momentum=lambda t: 2.0 ** (2 * t - 1)),
    "kept": Addition(norms=lambda _: 1.0),
    "growing": Addition(norms=lambda t: 2.0**t),
    "shrinking": Addition(norms=lambda t: 2.0**-t),
    "attention_fast": Addition(rates={"attn/": 2.0}),
    "attention_slow": Addition(rates={"attn/": 0.5}),
    "outputs_fast": Addition(rates={"/(o|down)/": 2.0}),
    "outputs_slow": Addition(rates={"/(o|down)/": 0.5}),
    "averaged": Addition(is_averaged=True),
}


def name_of(base: str, additions: Sequence[str]) -> str:
    """The name of a method with additions, in their order."""
    return "+".join((base, *sorted(additions, key=list(ADDITIONS).index)))


def fit(additions: Sequence[str]) -> bool:
    """Whether no two additions set the same thing."""
    kinds = "keywords", "momentum", "norms", "rates"
    found = [ADDITIONS[name] for name in additions]
    return all(sum(bool(getattr(one, kind)) for one in found) < 2 for kind in kinds)


def build(
    base: str,
    additions: Sequence[str],
    lr: optax.Schedule,
    betas: Mapping[str, Any],
    decay: Any,
    other: Transformation,
    numbers: Any,
    steps: int,
) -> Transformation:
    """A method with additions; without any it is the recipe.

    Args:
        base: A recipe.
        additions: Keys of `ADDITIONS`.
        lr: Learning rate of the matrices.
        betas: Keywords of the recipe, which may be traced.
        decay: Weight decay of the matrices.
        other: Optimizer of all other leaves.
        numbers: Which leaves are matrices.
        steps: Of the run.
    """
    found = [ADDITIONS[name] for name in additions]
    keywords = {k: v for one in found for k, v in one.keywords.items()}
    direction = partial(getattr(om, f"scale_by_{base}"), **keywords)
    method = _method(partial(direction, dimension_numbers=numbers), betas, found, steps)
    for one in found:
        method = one.around(method, numbers)
    norms = next((one.norms for one in found if one.norms), None)
    matrix = optax.chain(
        method,
        optax.identity() if norms else optax.add_decayed_weights(decay),
        optax.scale_by_learning_rate(lr),
    )
    parts = {"matrix": matrix, "other": other}
    links = [optax.partition(parts, om.matrices.label_params(numbers))]
    links += [om.scale_by_path(one.rates) for one in found if one.rates]
    if norms:
        sphere = _with_norms(lambda count: norms(count / steps))
        on = partial(om.on_matrices, dimension_numbers=numbers, needs_params=True)
        links.append(on(sphere))
    whole = optax.chain(*links)
    if any(one.is_averaged for one in found):
        return om.average_weights(whole, 1 - 1 / max(WINDOW * steps, 1))
    return whole


def _method(direction, betas, additions, steps):
    """A method whose b1 may change with time."""
    factor = next((one.momentum for one in additions if one.momentum), None)
    if factor is None:
        return direction(**betas)
    others = {name: value for name, value in betas.items() if name != "b1"}
    b1 = lambda count: 1 - (1 - betas["b1"]) * factor(count / steps)
    return om.inject_hyperparams(lambda b1: direction(b1=b1, **others))(b1=b1)


class _NormsState(NamedTuple):
    count: jax.Array
    first: Any


def _with_norms(factor):
    """Steps that end at the initial norms times a factor."""
    norm = lambda w: jnp.linalg.norm(w, axis=(-2, -1), keepdims=True)

    def init_fn(params):
        return _NormsState(jnp.zeros([], jnp.int32), jax.tree.map(norm, params))

    def update_fn(updates, state, params=None):
        size = factor(state.count + 1)

        def one(u, w, first):
            return (w + u) * (size * first / norm(w + u)) - w

        steps = jax.tree.map(one, updates, params, state.first)
        return steps, _NormsState(state.count + 1, state.first)

    return optax.GradientTransformation(init_fn, update_fn)
