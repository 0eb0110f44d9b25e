"""One run: a LLaMA of 10 million parameters on bytes, with all steps on the device."""

import concurrent.futures
import dataclasses
import math
import time
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from examples.pretrain.config import SIZES, ModelConfig
from examples.pretrain.optimizers import Arena
from examples.pretrain.step import (
    cross_entropy,
    initial_weights,
    model_graph,
    state_bytes,
)
from examples.study.bench.config import Result
from examples.study.bench.runs import LOST
from examples.study.equal import methods
from examples.study.equal.config import Config
from examples.study.equal.runs import settings_of
from examples.study.transfer.protocol import TUNING, Lengths, one_of_each

ARENA = Arena()


@dataclasses.dataclass(frozen=True)
class Size:
    """Model, batch and length.

    Attributes:
        model: The model.
        batch: Windows per update.
        block: Steps between two points of a curve, which run as one program.
        parts: Batches that a loss is measured on.
    """

    model: ModelConfig
    batch: int
    block: int
    parts: int

    @property
    def lengths(self) -> Lengths:
        return Lengths(5 * self.block, 20 * self.block)


LLAMA = ModelConfig(
    embed=512,
    mlp=1408,
    heads=8,
    kv_heads=8,
    layers=3,
    vocab=256,
    context=256,
    scan=False,
    attention="cudnn",
    one_hot=True,
)
FULL = Size(LLAMA, batch=256, block=151, parts=8)
TINY = Size(SIZES["tiny"], batch=4, block=2, parts=2)


class Text(NamedTuple):
    """The bytes to train on, on the device, and two sets of windows to measure on."""

    train: jax.Array
    validation: jax.Array
    test: jax.Array


def text(parts: Mapping[str, np.ndarray], size: Size) -> Text:
    """The text of `corpus.read` on the device."""
    held_out = {
        name: jnp.asarray(_spread(parts[name], size)) for name in ("validation", "test")
    }
    return Text(jnp.asarray(parts["train"]), **held_out)


def _spread(tokens, size):
    """Batches of windows `(parts, batch, context + 1)`, evenly spread over a text."""
    context = size.model.context
    last = len(tokens) - context - 1
    starts = np.linspace(0, last, size.parts * size.batch).astype(int)
    rows = tokens[starts[:, None] + np.arange(context + 1)]
    return rows.reshape(size.batch, size.parts, -1).swapaxes(0, 1)


def order(length: int, seed: int, steps: int, size: Size) -> np.ndarray:
    """Where the windows of each step start: `(steps, batch)`, none of them twice.

    Raises:
        ValueError: If the text is too short for that.
    """
    windows = (length - 1) // size.model.context
    if windows < steps * size.batch:
        raise ValueError(
            f"A text of {length} bytes has {windows} windows of {size.model.context}; "
            f"{steps} steps need {steps * size.batch}."
        )
    random = np.random.default_rng((seed, 1))
    chosen = random.permutation(windows)[: steps * size.batch]
    starts = size.model.context * chosen.astype(np.int32)
    return starts.reshape(steps, size.batch)


class Model:
    """The model's weights and losses."""

    def __init__(self, size: Size):
        self._size, self._graph = size, model_graph(size.model)
        self.shapes = jax.eval_shape(self._fresh, 0)

    def compiled(self) -> tuple[Any, Any]:
        """Seed to weights; weights and windows to their mean loss."""
        held_out = self._size.parts, self._size.batch, self._size.model.context + 1
        windows = jax.ShapeDtypeStruct(held_out, jnp.uint8)
        weights = _compiled(self._fresh, _number(jnp.int32))
        return weights, _compiled(self._mean_loss, self.shapes, windows)

    def _fresh(self, seed):
        params = initial_weights(self._size.model, seed)
        return methods.start("adamw", ARENA, params, seed)

    def loss(self, params, windows) -> jax.Array:
        return cross_entropy(nnx.merge(self._graph, params), windows)

    def _mean_loss(self, params, parts):
        return jax.lax.map(lambda rows: self.loss(params, rows), parts).mean()


class Programs:
    """What the runs of one method share, compiled when the object is made."""

    def __init__(self, config: Config, model: Model, size: Size, length: int):
        self._method, self._model = config.method, model
        self._places = jnp.arange(size.model.context + 1)
        settings = jax.tree.map(lambda _: _number(jnp.float32), settings_of(config))
        given = model.shapes, settings, _number(jnp.int32)
        state = jax.eval_shape(self._start, *given)
        train = jax.ShapeDtypeStruct((length,), jnp.uint8)
        rows = jax.ShapeDtypeStruct((size.block, size.batch), jnp.int32)
        several = given[0], state, train, rows, *given[1:]
        self.start = _compiled(self._start, *given)
        self.train = _compiled(self._train, *several, donate_argnums=(0, 1))

    def _start(self, params, settings, steps):
        return self._optimizer(settings, steps).init(params)

    def _optimizer(self, settings, steps):
        return methods.optimizer(self._method, settings, ARENA, steps)

    def _train(self, params, state, train, starts, settings, steps):
        """Several updates; also the mean of their losses."""
        tx = self._optimizer(settings, steps)

        def step(carry, starts):
            params, state = carry
            windows = train[starts[:, None] + self._places]
            loss, gradient = jax.value_and_grad(self._model.loss)(params, windows)
            updates, state = tx.update(gradient, state, params)
            return (optax.apply_updates(params, updates), state), loss

        (params, state), losses = jax.lax.scan(step, (params, state), starts)
        return params, state, losses.mean()


def _compiled(function, *shapes, **how):
    return jax.jit(function, **how).lower(*shapes).compile()


def _number(dtype):
    return jax.ShapeDtypeStruct((), dtype)


class Runner:
    """Runs configurations; other methods compile beside the first run.

    Args:
        text: What it trains on.
        size: Of the model.
    """

    def __init__(self, text: Text, size: Size):
        self._text, self._size, self._model = text, size, Model(size)
        # Two at a time: what the first run needs, then the other methods.
        self._pool = concurrent.futures.ThreadPoolExecutor(2)
        self._shared = self._pool.submit(self._model.compiled)
        self._programs: dict[str, concurrent.futures.Future[Programs]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _of(self, method: str) -> Programs:
        """The programs of a method; the first call asks for those of all, it first."""
        if not self._programs:
            every = one_of_each()
            for name in sorted(every, key=lambda name: name != method):
                given = every[name], self._model, self._size, len(self._text.train)
                self._programs[name] = self._pool.submit(Programs, *given)
        return self._programs[method].result()

    def run(self, config: Config) -> Result:
        """Trains once."""
        begin = time.perf_counter()
        programs, (weights, mean_loss) = self._of(config.method), self._shared.result()
        text, block = self._text, self._size.block
        held_out = text.validation if config.seed == TUNING else text.test
        starts = order(len(text.train), config.seed, config.steps, self._size)
        settings = jax.tree.map(np.float32, settings_of(config))
        steps = np.int32(config.steps)
        params = weights(np.int32(config.seed))
        state = programs.start(params, settings, steps)
        size = state_bytes(state)
        first = loss = float(mean_loss(params, held_out))
        curve, times = [[0, round(first, 5)]], []
        for end in range(block, config.steps + 1, block):
            rows = jnp.asarray(starts[end - block : end])
            clock = time.perf_counter()
            params, state, mean = programs.train(
                params, state, text.train, rows, settings, steps
            )
            mean.block_until_ready()
            times.append((time.perf_counter() - clock) / block)
            loss = float(mean_loss(params, held_out))
            if not loss < LOST * first:  # Also for NaN.
                break
            curve.append([end, round(loss, 5)])
        whole = curve[-1][0] == config.steps
        return Result(
            loss=round(loss, 5) if whole and math.isfinite(loss) else None,
            curve=curve,
            milliseconds=round(1e3 * float(np.median(times)), 3),
            state_bytes=size,
            seconds=round(time.perf_counter() - begin, 1),
        )
