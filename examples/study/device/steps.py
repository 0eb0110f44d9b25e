"""One optimizer step of each method: its time beside AdamW's."""

import ast
import collections
import functools
import inspect
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.experimental.layout import Format, Layout

import optax_matrix as om
from examples.study.benchmarks._compile import recipe_names
from examples.study.device import _programs
from examples.study.device._clock import columns, machine
from examples.study.device._profile import of_kernels

ADAMW, MUON = "optax.adamw", "optax.contrib.muon"
SIZES = {"small": (12, 768, 3072), "medium": (16, 1024, 4096), "tiny": (1, 16, 32)}
AUTO = "+layouts"  # After a name: the compiler chooses the layout of the state.
_STEPS, _SECONDS = 24, 1.0


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
    recipe = getattr(om, name)
    if "rank" in inspect.signature(recipe).parameters:
        options = {"rank": 0.25, **options}
    return recipe(1e-3, **options)


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
    params = kernels(job["model"], lambda _, s: jax.ShapeDtypeStruct(s, jnp.float32))
    programs = _compiled(job, params)
    if job.get("ahead"):
        return dict
    memory: Any = programs.step.memory_analysis()
    weights = sum(x.size * 4 for x in jax.tree.leaves(params))
    used = memory.argument_size_in_bytes + memory.output_size_in_bytes
    used += memory.temp_size_in_bytes - memory.alias_size_in_bytes
    shown = {"memory": used / weights}
    profile = job.get("profile", False)
    return lambda: shown | {"machine": machine()} | _timed(programs, profile)


def _compiled(job: dict[str, Any], params: Any) -> "_Programs":
    tx = optimizer(job["name"].removesuffix(AUTO))
    state = jax.eval_shape(tx.init, params)
    make = functools.partial(_programs.compiled, job)
    make_for_all = functools.partial(_programs.compiled, job | {"name": None})

    def step(params, state, grads):
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    @jax.jit
    def draw(seed):
        # One call per shape: a call for each matrix takes a minute to compile.
        shapes = collections.Counter(x.shape for x in jax.tree.leaves(params))
        normal = lambda n, s: 0.02 * jax.random.normal(jax.random.key(seed), (n, *s))
        stacks = {shape: iter(normal(n, shape)) for shape, n in shapes.items()}
        return jax.tree.map(lambda x: next(stacks[x.shape]), params)

    @jax.jit
    def finite(params):
        return jnp.array([jnp.isfinite(x).all() for x in jax.tree.leaves(params)]).all()

    layouts = formats = None
    if job["name"].endswith(AUTO):
        place = _programs.sharding(job.get("ahead") or _programs.HERE)
        layouts = jax.tree.map(lambda _: Format(Layout.AUTO, place), state)
    given = {"in_shardings": (None, layouts, None), "out_shardings": (None, layouts)}
    step = jax.jit(step, donate_argnums=(0, 1), **given)
    program = make("step", step, params, state, params)
    if layouts is not None:
        formats = program.input_formats[0][1]
    return _Programs(
        draw=make_for_all("draw", draw, jax.ShapeDtypeStruct((), jnp.int32)),
        init=make("init", jax.jit(tx.init, out_shardings=formats), params),
        step=program,
        finite=make_for_all("finite", finite, params),
    )


class _Programs(NamedTuple):
    """What a job runs."""

    draw: Any
    init: Any
    step: Any
    finite: Any


def _timed(programs: _Programs, profile: bool) -> dict[str, Any]:
    params, grads = programs.draw(jnp.int32(0)), programs.draw(jnp.int32(1))
    state = programs.init(params)
    singles, batches, begun = [], [], time.perf_counter()
    while len(singles) < _STEPS and time.perf_counter() - begun < _SECONDS:
        jax.block_until_ready(state)
        start = time.perf_counter()
        params, state = programs.step(params, state, grads)
        jax.block_until_ready((params, state))
        singles.append(time.perf_counter() - start)
    singles = singles[2:] or singles  # The first ones load the program.
    count = max(1, min(10, round(_SECONDS / 5 / statistics.median(singles))))
    for _ in range(5 if count > 1 else 1):
        start = time.perf_counter()
        for _ in range(count):
            params, state = programs.step(params, state, grads)
        jax.block_until_ready((params, state))
        batches.append((time.perf_counter() - start) / count)
    result = {
        "ms": statistics.median(batches) * 1e3,
        "single_ms": statistics.median(singles) * 1e3,
        "slowest_ms": max(singles) * 1e3,
        "finite": bool(programs.finite(params)),
    }
    if profile:
        step = lambda: programs.step(params, state, grads)[0]
        result["profile"] = of_kernels(step)
    return result


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
