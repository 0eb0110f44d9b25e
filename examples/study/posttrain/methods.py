"""The optimizers: those of the comparison with equal budgets, and three on adapters."""

import dataclasses
import functools
from typing import Any

import jax
import optax

import optax_matrix as om
from examples import catalogue_pairs
from examples.study.bench.tasks import CLIP, TASKS
from examples.study.equal import methods, protocol, table
from examples.study.equal.config import Config as Pretraining
from examples.study.equal.protocol import Entry
from examples.study.posttrain.changes import CHANGES
from examples.study.posttrain.protocol import ADAPTERS, Config
from optax_matrix.weights import Adapter, apply_adapter, extract_adapter

RANK = 8
# The optimizer of pretraining that has the rate and the momenta of an adapter's.
LIKE = {name: name.partition(":")[2].replace("pair", "muon") for name in ADAPTERS}


@functools.cache
def pretraining(change: str, method: str) -> Pretraining:
    """The tuned settings of a method in the first training."""
    entry = Entry(change, LIKE.get(method, method), CHANGES[change].length)
    return protocol.tuned(entry, table.read())


def optimizer(config: Config, settings: Any) -> optax.GradientTransformation:
    """The optimizer of a run.

    Args:
        config: The run; of its numbers only those that set the form are read.
        settings: Its numbers by name, which may be traced.
    """
    first, steps = pretraining(config.change, config.method), config.steps
    if config.method in ADAPTERS:
        return _on_adapters(config, first, settings)
    given = {
        "rate": settings["multiple"] * first.rate,
        "warm_up": settings["warm_up"],
        "other_rate": settings["other"] * first.other_rate,
        "other_warm_up": settings["warm_up"],
        "other_b1": first.other_b1,
        "other_b2": first.other_b2,
    }
    given |= {k: v for k in ("b1", "b2") if (v := getattr(first, k)) is not None}
    if first.decay is not None:
        given["decay"] = settings["decay"] * first.decay
    return methods.optimizer(config.method, given, TASKS[config.change].arena, steps)


def _on_adapters(config, first, settings):
    rate = settings["multiple"] * first.rate
    lr = methods.schedule(rate, settings["warm_up"], config.steps)
    every = om.matrices.by_path(include="lora_[ab]")
    name = config.method.partition(":")[2]
    if name == "adamw":
        tx = optax.adamw(lr, b1=first.b1, b2=first.b2, weight_decay=0.0)
    elif name == "pair":
        kernel = catalogue_pairs.lora_muon(first.b1)
        tx = optax.chain(kernel, optax.scale_by_learning_rate(lr))
    else:
        recipe = getattr(om, name)
        tx = recipe(lr, b1=first.b1, weight_decay=0.0, dimension_numbers=every)
    return optax.chain(optax.clip_by_global_norm(CLIP), tx)


def factors(change: str, params: Any, seed: Any) -> dict[str, dict[str, jax.Array]]:
    """Adapters of all matrices: A is normal over the root of its inputs, B is zero."""
    numbers = TASKS[change].arena.dimension_numbers
    zero = extract_adapter(params, params, RANK, dimension_numbers=numbers)
    keys = jax.random.split(jax.random.fold_in(jax.random.key(8), seed), len(zero))

    def one(key, pair):
        a = jax.random.normal(key, pair.a.shape) / pair.a.shape[-2] ** 0.5
        return {"lora_a": a, "lora_b": pair.b}

    return {
        path.replace("/", "."): one(key, pair)
        for key, (path, pair) in zip(keys, zero.items(), strict=True)
    }


def merged(change: str, params: Any, trained: Any) -> Any:
    """The weights with their adapters."""
    pairs = {
        path.replace(".", "/"): Adapter(pair["lora_a"], pair["lora_b"])
        for path, pair in trained.items()
    }
    numbers = TASKS[change].arena.dimension_numbers
    return apply_adapter(params, pairs, dimension_numbers=numbers)


def numbers_of(config: Config) -> dict[str, float]:
    """The numbers of a run that do not change its program."""
    found = dataclasses.asdict(config)
    names = "multiple", "warm_up", "decay", "other"
    return {name: found[name] for name in names if found[name] is not None}
