"""The methods: the paper's size of updates, and one AdamW for all other leaves."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

import optax_matrix as om
from examples.pretrain.factors import orthogonal
from examples.pretrain.optimizers import SMALL, Arena
from examples.pretrain.options import Method, keywords, with_options
from examples.study.bench.tasks import CLIP, FINAL
from examples.study.equal import chains, own
from examples.study.equal.space import OTHER_DECAY, base_of, is_users

KEY = 7  # Of the initial weights; the seed of the run is folded in.


def schedule(peak, warm_up, steps: int) -> optax.Schedule:
    """As `bench.tasks.schedule`, for a traced share of rising steps."""
    first = jnp.maximum(jnp.floor(warm_up * steps), 1)

    def rate(count):
        t = count + 1
        fall = jnp.clip((t - first) / (steps - first), 0, 1)
        cosine = FINAL + (1 - FINAL) * 0.5 * (1 + jnp.cos(jnp.pi * fall))
        return peak * jnp.where(t < first, t / first, cosine)

    return rate


def optimizer(name: str, settings: dict[str, Any], arena: Arena, steps: int):
    """A method with some settings of a `Config`, by name, which may be traced."""
    lr = schedule(settings["rate"], settings["warm_up"], steps)
    other = adamw(
        schedule(settings["other_rate"], settings["other_warm_up"], steps),
        settings["other_b1"],
        settings["other_b2"],
        OTHER_DECAY,
    )
    betas = {key: settings[key] for key in ("b1", "b2") if key in settings}
    decay, numbers = settings.get("decay"), arena.dimension_numbers
    base, *additions = [name] if ":" in name else name.split("+")
    given = lr, betas, decay, other, numbers
    if is_users(name):
        whole = own.build(name, *given)
    elif additions:
        whole = chains.build(base, additions, *given, steps)
    else:
        whole = _whole(name, *given)
    return optax.chain(optax.clip_by_global_norm(CLIP), whole)


def measured(name: str, params: Any, state: Any) -> Any:
    """The weights that are measured: those that are trained, or an average of them."""
    averaged = "+averaged" in name and not is_users(name)
    return om.evaluation_params(state, params) if averaged else params


def _whole(name, lr, betas, decay, other, numbers):
    if name == "adamw":
        parts = {"matrix": adamw(lr, **betas, decay=decay), "other": other}
        return optax.partition(parts, om.matrices.label_params(numbers))
    method = _method(name, other).replace(**betas, dimension_numbers=numbers)
    if base_of(name) == "poet":
        return method(lr)
    return method.replace(weight_decay=decay, other=other)(lr)


def _method(name, other):
    """The recipe of a name, which may set options; its matrices are small ones here."""
    base = base_of(name)
    factory = getattr(om, base)
    if base == "poet":
        return with_options(name, {base: orthogonal(factory, lambda _: other)})
    method = Method(factory, keywords(factory) | SMALL.get(base, {}))
    return with_options(name, {base: method})


def adamw(lr, b1, b2, decay):
    """AdamW that decays leaves with two axes or more."""
    mask = lambda params: jax.tree.map(
        lambda leaf: getattr(leaf, "ndim", 0) > 1, params
    )
    return optax.adamw(lr, b1=b1, b2=b2, weight_decay=decay, mask=mask)


def start(name: str, arena: Arena, params: Any, seed: int) -> Any:
    """Weights whose matrices have deviation 1 / sqrt(fan-in); POET has its own.

    Args:
        name: The method.
        arena: Of the task.
        params: Fresh weights; kernels are (..., in, out).
        seed: Of the run.
    """
    if base_of(name) == "poet":
        return _method(name, optax.identity()).start(params, seed)
    key = jax.random.fold_in(jax.random.key(KEY), seed)
    leaves, treedef = jax.tree.flatten(params)
    labels = jax.tree.leaves(om.matrices.label_params(arena.dimension_numbers)(params))

    def draw(index, x):
        normal = jax.random.normal(jax.random.fold_in(key, index), x.shape, x.dtype)
        return normal / (x.size / x.shape[-1]) ** 0.5

    new = [
        draw(index, x) if label == "matrix" else x
        for index, (x, label) in enumerate(zip(leaves, labels, strict=True))
    ]
    return treedef.unflatten(new)
