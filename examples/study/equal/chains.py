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
        around: From the method, without decay and learning rate, to the changed one.
        momentum: From the share of the run that is over to a factor of 1 - b1.
        norms: From that share to a factor of the matrices' initial norms, which are
            set after every step; there is no weight decay then.
        rates: Factors of the learning rate, as of `om.scale_by_path`.
        is_averaged: Whether an average of the weights is measured.
    """

    bases: tuple[str, ...] = BASES
    keywords: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    around: Callable[[Transformation], Transformation] = lambda method: method
    momentum: Callable[[Any], Any] | None = None
    norms: Callable[[Any], Any] | None = None
    rates: Mapping[str, float] = dataclasses.field(default_factory=dict)
    is_averaged: bool = False


def _with_polar_of(scale):
    return {"polar": lambda x: POLAR(scale(x))}


def _centralized(method):
    """Gradient centralization; `optax.centralize` has the mean over the outputs."""
    mean = optax.stateless_with_tree_map(lambda g, _: g - g.mean(-1, keepdims=True))
    return optax.chain(om.on_matrices(mean), method)


def _whitened(method):
    roots = om.precondition(decay=B2, method="eigh", update_interval=RENEWAL)
    return optax.chain(om.on_matrices(roots), method)


def _followed_by(block):
    """Another block at the end, which does not change the norms of updates."""
    last = om.on_matrices(om.preserve_norm(block))
    return lambda method: optax.chain(method, last)


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


_HAVE_POLAR = "mousse", "aurora"
ADDITIONS = {
    "centralized": Addition(around=_centralized),
    "whitened": Addition(("muoneq", "aurora"), around=_whitened),
    "rows": Addition(_HAVE_POLAR, _with_polar_of(om.linalg.scale_rows)),
    "rowcol": Addition(_HAVE_POLAR, _with_polar_of(om.linalg.scale_rows_and_columns)),
    "normuon": Addition(  # Aurora's rows have equal norms.
        ("muoneq", "mousse", "soap"),
        around=_followed_by(om.equilibrate_with_ema(om.row_rms, B2)),
    ),
    "entries": Addition(
        ("muoneq", "mousse", "aurora"),
        around=_followed_by(om.scale_by_second_moment(B2)),
    ),
    "polar": Addition(("soap",), around=_followed_by(om.orthogonalize(POLAR))),
    "cautious": Addition(around=cautious),
    "rising": Addition(momentum=lambda t: 2.0 ** (1 - 2 * t)),
    "falling": Addition(momentum=lambda t: 2.0 ** (2 * t - 1)),
    "kept": Addition(norms=lambda _: 1.0),
    "growing": Addition(norms=lambda t: 2.0**t),
    "shrinking": Addition(norms=lambda t: 2.0**-t),
    "averaged": Addition(is_averaged=True),
    "attention_fast": Addition(rates={"attn/": 2.0}),
    "attention_slow": Addition(rates={"attn/": 0.5}),
    "outputs_fast": Addition(rates={"/(o|down)/": 2.0}),
    "outputs_slow": Addition(rates={"/(o|down)/": 0.5}),
}


def name_of(base: str, additions: Sequence[str]) -> str:
    """The name of a method with additions."""
    return "+".join((base, *additions))


def fit(additions: Sequence[str]) -> bool:
    """Whether no two additions set the same thing."""
    kinds = [kind for name in additions for kind in _kinds(ADDITIONS[name])]
    return len(set(kinds)) == len(kinds)


def _kinds(one):
    yield from (*one.keywords, *one.rates)
    yield from (kind for kind in ("momentum", "norms") if getattr(one, kind))


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
        method = one.around(method)
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
