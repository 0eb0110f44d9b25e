"""Training of a LLaMA of GPT-2 small's size for some seconds under each method.

Bytes of the two shipped books are tokens; windows are drawn on the device, the same for
all methods. Rates are the same, 1e-3, with a warm-up of 100 steps; Muon's update has
AdamW's size. It shows what a second of training costs, not which method is better.
"""

import dataclasses
import functools
import gzip
import pathlib
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import optax_matrix as om
from examples.pretrain.config import SIZES
from examples.pretrain.step import cross_entropy, initial_weights, model_graph
from examples.study.device import _programs
from examples.study.device._clock import columns, machine

DATA = pathlib.Path(__file__).parents[2] / "data"
BOOKS = DATA / "king_james.txt.gz", DATA / "moby_dick.txt.gz"
RATE, WARM_UP, CLIP = 1e-3, 100, 1.0
METHODS = {
    "adamw": functools.partial(optax.adamw, b2=0.95, weight_decay=0.1),
    "muon": functools.partial(om.muon, scaling="sqrt_max"),
    "muoneq": om.muoneq,
    "soap": om.soap,
    "aro": om.aro,
}
_GROUP = 10  # Steps between two looks at the clock.
_EVALUATIONS = 6


def jobs(args) -> list[dict[str, Any]]:
    """One run per method."""
    names = args.methods or list(METHODS)
    size = {"seconds": 1.0 if args.tiny else args.seconds, "tiny": args.tiny}
    return [{"name": name, **size} for name in names]


def tokens() -> tuple[np.ndarray, np.ndarray]:
    """Nine tenths of each book to train on, and the rest."""
    books = [np.frombuffer(gzip.decompress(p.read_bytes()), np.uint8) for p in BOOKS]
    cuts = [len(book) * 9 // 10 for book in books]
    first = [book[:cut] for book, cut in zip(books, cuts, strict=True)]
    rest = [book[cut:] for book, cut in zip(books, cuts, strict=True)]
    return np.concatenate(first), np.concatenate(rest)


def compiled(job: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    """Compiles a training step and an evaluation; returns what runs them."""
    config, batch = SIZES["tiny"], 4
    if not job["tiny"]:
        large = {"vocab": 256, "context": 512, "scan": False}
        config, batch = dataclasses.replace(SIZES["130m"], **large), 32
    warm_up = optax.linear_schedule(0.0, RATE, WARM_UP)
    tx = optax.chain(optax.clip_by_global_norm(CLIP), METHODS[job["name"]](warm_up))
    graph, width = model_graph(config), config.context + 1

    def windows(text, key):
        starts = jax.random.randint(key, (batch,), 0, len(text) - width)
        return text[starts[:, None] + jnp.arange(width)]

    def loss_of(params, rows):
        return cross_entropy(nnx.merge(graph, params), rows)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params, state, text, count):
        rows = windows(text, jax.random.fold_in(jax.random.key(0), count))
        loss, grads = jax.value_and_grad(loss_of)(params, rows)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    @jax.jit
    def evaluate(params, text):
        rows = jax.vmap(lambda i: windows(text, jax.random.key(i)))(jnp.arange(4))
        return jax.lax.map(lambda x: loss_of(params, x), rows).mean()

    params = jax.eval_shape(initial_weights, config, 0)
    state = jax.eval_shape(tx.init, params)
    train, held_out = tokens()
    shape = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype)
    number = jax.ShapeDtypeStruct((), jnp.int32)
    weights = jax.jit(functools.partial(initial_weights, config))
    make = functools.partial(_programs.compiled, job)
    programs = (
        make("weights", weights, number),
        make("init", jax.jit(tx.init), params),
        make("step", step, params, state, shape(train), number),
        make("evaluate", evaluate, params, shape(held_out)),
    )

    def run() -> dict[str, Any]:
        return _run(job["seconds"], *programs, train, held_out)

    size = sum(x.size for x in jax.tree.leaves(params))
    shown = {"parameters": size, "batch": batch, "context": config.context}
    return lambda: {"machine": machine(), **shown, **run()}


def _run(seconds, weights, init, step, evaluate, train, held_out) -> dict[str, Any]:
    params = weights(jnp.int32(0))
    state = init(params)
    train, held_out = jnp.asarray(train), jnp.asarray(held_out)
    curve, held, count = [], [], 0
    passed = 0.0  # Seconds of training, without those of the evaluations.
    while passed < seconds or len(curve) < 2:  # A curve has two points at least.
        start = time.perf_counter()
        for _ in range(_GROUP):
            params, state, loss = step(params, state, train, jnp.int32(count))
            count += 1
        loss = float(jax.block_until_ready(loss))
        passed += time.perf_counter() - start
        curve.append((count, round(passed, 3), loss))
        if passed >= seconds * (len(held) + 1) / _EVALUATIONS:
            held.append((count, round(passed, 3), float(evaluate(params, held_out))))
    groups = np.diff([0.0, *(t for _, t, _ in curve)])
    return {
        "ms": 1e3 * float(np.median(groups)) / _GROUP,
        "steps": count,
        "curve": curve,
        "held_out": held,
        "loss": held[-1][2],
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Time and loss of each method; the losses on held-out text as they fell."""
    good = [row for row in rows if "error" not in row]
    lines = [f"{r['name']}: {r['error'][:200]}" for r in rows if "error" in r]
    if not good:
        return "\n".join(lines)
    first = good[0]
    lines.append(
        f"{first['machine']}: {first['parameters'] / 1e6:.0f}M parameters, batches of "
        f"{first['batch']} x {first['context']} bytes, {first['seconds']:.0f} seconds"
    )
    fastest = min(row["ms"] for row in good)
    cells = [
        (
            row["name"],
            row["ms"],
            row["ms"] / fastest,
            row["steps"],
            row["loss"],
            " ".join(f"{t:.0f}s {x:.3f}" for _, t, x in row["held_out"]),
        )
        for row in good
    ]
    titles = ("method", "ms a step", "/ fastest", "steps", "held out", "over time")
    return "\n".join([*lines, columns(titles, cells)])
