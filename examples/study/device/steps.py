"""One optimizer step of each method: its time beside AdamW's."""

import ast
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

import optax_matrix as om
from examples.study.benchmarks._compile import recipe_names
from examples.study.device._clock import columns, machine

ADAMW, MUON = "optax.adamw", "optax.contrib.muon"
SIZES = {"small": (12, 768, 3072), "medium": (16, 1024, 4096), "tiny": (1, 16, 32)}
LOW_RANK = ("galore", "alice", "alice_0", "sumo", "fira", "fira_plus", "ldadam", "dion")
LOW_RANK += ("apollo", "apollo_svd")
_STEPS, _SECONDS = 24, 2.0


def jobs(args) -> list[dict[str, Any]]:
    """Every method on every model, AdamW first; then those of another checkout."""
    names = args.names or [MUON, *recipe_names(), "poet"]
    models = ["tiny"] if args.tiny else args.models
    rows = [{"model": m, "name": name} for m in models for name in (ADAMW, *names)]
    for name in (args.before_names or names) if args.before else ():
        rows += [{"model": m, "name": name, "root": args.before} for m in models]
    return rows


def optimizer(text: str) -> optax.GradientTransformation:
    """An optimizer by name, with options as in ``soap:precision=exact``."""
    name, _, given = text.partition(":")
    options = dict(part.split("=", 1) for part in given.split(",") if part)
    options = {key: _value(x) for key, x in options.items()}
    if name in (ADAMW, MUON):
        return {ADAMW: optax.adamw, MUON: optax.contrib.muon}[name](1e-3, **options)
    if name in LOW_RANK:
        options = {"rank": 0.25, **options}
    return getattr(om, name)(1e-3, **options)


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def kernels(model: str, draw: Callable[..., Any]) -> dict[str, Any]:
    """A tree of kernels ``(in, out)``, seven a layer."""
    layers, width, hidden = SIZES[model]
    shapes = dict.fromkeys(("q", "k", "v", "o"), (width, width))
    shapes |= {"gate": (width, hidden), "up": (width, hidden), "down": (hidden, width)}
    names = [f"layers/{i}/{n}" for i in range(layers) for n in shapes]
    return {
        name: {"kernel": draw(i, shapes[name.rsplit("/", 1)[1]])}
        for i, name in enumerate(names)
    }


def compiled(job: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    """Compiles `init`, `update` and `apply_updates`; returns what times them."""
    tx = optimizer(job["name"])
    params = kernels(job["model"], lambda _, s: jax.ShapeDtypeStruct(s, jnp.float32))

    def step(params, state, grads):
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    init = jax.jit(tx.init).lower(params).compile()
    state = jax.eval_shape(tx.init, params)
    program = jax.jit(step, donate_argnums=(0, 1)).lower(params, state, params)
    program = program.compile()
    memory: Any = program.memory_analysis()
    weights = sum(x.size * 4 for x in jax.tree.leaves(params))
    used = memory.argument_size_in_bytes + memory.output_size_in_bytes
    used += memory.temp_size_in_bytes - memory.alias_size_in_bytes
    shown = {"memory": used / weights, "machine": machine()}
    return lambda: shown | _timed(job["model"], init, program)


def _timed(model: str, init: Any, step: Any) -> dict[str, Any]:
    key = jax.random.key(0)
    draw = lambda i, s: 0.02 * jax.random.normal(jax.random.fold_in(key, i), s)
    params = kernels(model, draw)
    grads = kernels(model, lambda i, s: draw(i + 10_000, s))
    state = init(params)
    singles, batches, begun = [], [], time.perf_counter()
    while len(singles) < _STEPS and time.perf_counter() - begun < _SECONDS:
        jax.block_until_ready(state)
        start = time.perf_counter()
        params, state = step(params, state, grads)
        jax.block_until_ready((params, state))
        singles.append(time.perf_counter() - start)
    singles = singles[2:] or singles  # The first ones load the program.
    count = max(1, min(10, round(_SECONDS / 5 / statistics.median(singles))))
    for _ in range(5 if count > 1 else 1):
        start = time.perf_counter()
        for _ in range(count):
            params, state = step(params, state, grads)
        jax.block_until_ready((params, state))
        batches.append((time.perf_counter() - start) / count)
    finite = all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(params))
    return {
        "ms": statistics.median(batches) * 1e3,
        "single_ms": statistics.median(singles) * 1e3,
        "slowest_ms": max(singles) * 1e3,
        "finite": finite,
    }


def table(rows: list[dict[str, Any]]) -> str:
    """The measurements, by model."""
    models = dict.fromkeys(row["model"] for row in rows)
    tables = [_table([row for row in rows if row["model"] == m]) for m in models]
    machines = [row["machine"] for row in rows if "machine" in row]
    return "\n\n".join([*machines[:1], *tables])


def _table(rows: list[dict[str, Any]]) -> str:
    times = {row["name"]: row.get("ms") for row in rows if "root" not in row}
    cells = []
    for row in rows:
        name = row["name"] + (" (before)" if "root" in row else "")
        if "error" in row:
            cells.append((name, *[None] * 6, row["error"][:90]))
            continue
        ratios = [row["ms"] / x if (x := times.get(n)) else None for n in (ADAMW, MUON)]
        numbers = row["ms"], row["slowest_ms"], *ratios, row["memory"], row["compile_s"]
        cells.append((name, *numbers, "" if row["finite"] else "not finite"))
    titles = ("ms a step", "slowest", "/ adamw", "/ optax muon", "memory", "compile s")
    size = "{} x {}/{}".format(*SIZES[rows[0]["model"]])
    return columns((size, *titles, ""), cells)
