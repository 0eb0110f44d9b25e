"""Fine-tunes a tiny LLaMA on a second book and compares the memory and the loss.

    python -m examples.finetune --steps 200

The model of `examples.pretrain` is trained on the King James Bible, then fine-tuned on
Moby Dick, where only the matrices of its layers are trained: by AdamW, by GaLore and
SUMO within a subspace, as LoRA's factors beside frozen weights, or rotated by POET and
OFT. Every method gets the same batches; the best of a few learning rates is shown.
"""

import argparse
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from examples.finetune_methods import METHODS, Method
from examples.pretrain.cli import at_least
from examples.pretrain.config import SIZES, ModelConfig
from examples.pretrain.data import DATA, Windows, from_texts, read_text
from examples.pretrain.optimizers import find
from examples.pretrain.step import (
    CLIP,
    Trainer,
    cross_entropy,
    evaluate,
    learning_rate,
    loss_and_gradient,
    model_graph,
)
from optax_matrix.diagnostics import state_bytes
from optax_matrix.weights import Adapter, apply_adapter, extract_adapter

PRETRAIN_RATE = 3e-3


@dataclasses.dataclass(frozen=True)
class Settings:
    """Everything that decides the outcome."""

    model: ModelConfig
    pretrain_steps: int
    steps: int
    batch: int
    ranks: tuple[int, ...]
    methods: tuple[str, ...]
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class Result:
    """One line of the table: a method at its best learning rate.

    Attributes:
        method: Its name.
        rank: Its rank; None for AdamW.
        rate: That learning rate.
        state: Bytes of the optimizer's state.
        added: Bytes of the weights that the method adds to the model.
        loss: Validation loss on the second book.
        first: Validation loss on the first book.
        captured: Share of the squared norm of the weights' change that the best
            adapters of this rank capture.
    """

    method: str
    rank: int | None
    rate: float
    state: int
    added: int
    loss: float
    first: float
    captured: float


def book(name: str, settings: Settings):
    """Batches and validation set of a book."""
    windows = Windows(settings.model.context, settings.batch, seed=settings.seed)
    return from_texts([read_text(DATA / f"{name}.txt.gz")], windows)


def pretrain(settings: Settings, data) -> nnx.State:
    """Weights after `pretrain_steps` steps on a book."""
    trainer = Trainer(settings.model, find("muon"), settings.pretrain_steps, 1)
    state, batches = trainer.init(settings.seed), iter(data.train)
    for _ in range(settings.pretrain_steps):
        state, _ = trainer.update(state, next(batches), np.float32(PRETRAIN_RATE))
    return state.params


def lora_start(params, rank: int, seed: int) -> dict[str, Adapter]:
    """Factors for every matrix: the first normal, the second zero."""
    keys = iter(jax.random.split(jax.random.key(seed), 1000))
    draw = lambda shape: jax.random.normal(next(keys), shape) / shape[-2] ** 0.5
    zero = extract_adapter(params, params, rank)
    return {path: Adapter(draw(x.a.shape), x.b) for path, x in zero.items()}


def tune(settings: Settings, method: Method, rank: int, params, data):
    """The weights after fine-tuning at each learning rate, one compilation for all."""
    start = lora_start(params, rank, settings.seed) if method.factors else params
    gradient = of_factors if method.factors else of_weights

    def optimizer(peak):
        rate = learning_rate(peak, settings.steps)
        clip = optax.clip_by_global_norm(CLIP)
        return optax.chain(clip, method.optimizer(rank, rate))

    @jax.jit
    def move(trained, state, grads, peak):
        updates, state = optimizer(peak).update(grads, state, trained)
        return optax.apply_updates(trained, updates), state

    init = jax.jit(optimizer(0.0).init)
    for peak in method.rates:
        trained, state, batches = start, init(start), iter(data.train)
        for _ in range(settings.steps):
            (windows,) = next(batches)
            grads = gradient(settings.model, trained, params, windows)
            trained, state = move(trained, state, grads, np.float32(peak))
        yield peak, apply_adapter(params, trained) if method.factors else trained


def of_weights(config: ModelConfig, trained, _, windows):
    """The gradient of the loss with respect to the weights."""
    return loss_and_gradient(config, trained, windows)[1]


@functools.partial(jax.jit, static_argnums=0)
def of_factors(config: ModelConfig, trained, params, windows):
    """The gradient of the loss with respect to factors beside the weights."""
    graph = model_graph(config)
    model = lambda factors: nnx.merge(graph, apply_adapter(params, factors))
    return jax.grad(lambda factors: cross_entropy(model(factors), windows))(trained)


def measure(settings: Settings, name: str, rank: int | None, params, books) -> Result:
    """One method at its best learning rate."""
    method, size = METHODS[name], rank or max(settings.ranks)
    first, second = books
    tuned = [
        (evaluate(settings.model, new, second.validation), peak, new)
        for peak, new in tune(settings, method, size, params, second)
    ]
    loss, peak, new = min(tuned, key=lambda run: run[0])
    start = lora_start(params, size, 0) if method.factors else params
    added = sum(x.nbytes for x in jax.tree.leaves(start)) if method.factors else 0
    return Result(
        method=name,
        rank=rank,
        rate=peak,
        state=state_bytes(method.optimizer(size, peak), start).bytes,
        added=added,
        loss=loss,
        first=evaluate(settings.model, new, first.validation),
        captured=captured(params, new, size),
    )


def captured(before, after, rank: int) -> float:
    """Share of the change's squared norm that the best adapters of a rank capture."""
    adapters = extract_adapter(before, after, rank).values()
    held = sum(float(jnp.sum(jnp.square(x.a @ x.b))) for x in adapters)
    return held / float(optax.tree.norm(optax.tree.sub(after, before), squared=True))


def compare(settings: Settings) -> list[Result]:
    """A result for each method and rank, each printed when it is known."""
    books = [book(name, settings) for name in ("king_james", "moby_dick")]
    params = pretrain(settings, books[0])
    losses = [evaluate(settings.model, params, data.validation) for data in books]
    print(
        f"pretrained: {losses[0]:.4f} on the first book, {losses[1]:.4f} on the second"
    )
    results = []
    for name in settings.methods:
        for rank in (None,) if name == "adamw" else settings.ranks:
            results += [measure(settings, name, rank, params, books)]
            print(line(results[-1]), flush=True)
    return results


HEADER = "method  rank     rate  state KiB  added KiB    loss  on first  in adapter"


def line(x: Result) -> str:
    """A result as a line of the table under `HEADER`."""
    return (
        f"{x.method:8}{x.rank or '-':>4}{x.rate:9g}{x.state / 1024:11.1f}"
        f"{x.added / 1024:11.1f}{x.loss:8.4f}{x.first:10.4f}{x.captured:12.0%}"
    )


def main(arguments=None) -> list[Result]:
    """Runs the comparison that the command line describes; prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pretrain-steps", type=at_least(1), default=400)
    # The first step of the warm-up has the rate zero.
    parser.add_argument("--steps", type=at_least(2), default=200)
    parser.add_argument("--batch", type=at_least(1), default=16)
    parser.add_argument("--ranks", type=at_least(1), nargs="+", default=[4, 8])
    parser.add_argument("--methods", nargs="+", default=[*METHODS], choices=METHODS)
    given = vars(parser.parse_args(arguments))
    model = SIZES["tiny"]
    narrowest = model.kv_heads * model.head_dim
    if (largest := max(given["ranks"])) > narrowest:
        parser.error(f"--ranks must be at most {narrowest}, got {largest}")
    given |= {name: tuple(given[name]) for name in ("ranks", "methods")}
    print(HEADER)
    return compare(Settings(model, **given))


if __name__ == "__main__":
    main()
