"""Speed of POET's maps to orthogonal blocks, over that of the map as first written.

    python -m examples.study orthogonal [--blocks 16] [--side 256] [--repeats 15]

Table 10 of POET gives a speed-up of 1.5 to the Neumann series in place of the inverse,
1.3 to the skew kernel (Q made from its triangle) and 3.8 to both, for a whole training
step of a 1.3B LLaMA on eight H100. (The product of the two factors is 1.95.) The first
table here is of the blocks alone, with their gradients: `full` are parameters A of
b x b with Q = A - A', `triangle` are b (b - 1) / 2 each. The second one is of an update
of `om.poet` for the kernels of one layer, with the exact map and with the series.

All run in one process and take turns call by call, so that other work on the machine
affects all alike. Times are medians; ratios are speed-ups over the first line. On a CPU
that does other work, set OPENBLAS_NUM_THREADS=1: the threads of LAPACK wait for one
another. Compiling the updates of the second table takes most of the time.
"""

import argparse
import functools
import statistics
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp

import optax_matrix as om
from examples.study.benchmarks.step import Contestant, kernels
from optax_matrix.linalg import (
    cayley,
    cayley_neumann,
    cayley_taylor,
    from_skew,
    to_skew,
)

Blocks = Callable[[jax.Array], jax.Array]


def by_inverse(q: jax.Array) -> jax.Array:
    """(I + Q) times the inverse of (I - Q), as in Eq. 6."""
    eye = jnp.eye(q.shape[-1], dtype=q.dtype)
    return (eye + q) @ jnp.linalg.inv(eye - q)


MAPS: dict[str, Blocks] = {
    "inverse": by_inverse,
    "solve": cayley,
    "neumann k=5": functools.partial(cayley_neumann, terms=5),
    "neumann k=4": functools.partial(cayley_neumann, terms=4),
    "taylor k=4": functools.partial(cayley_taylor, terms=4),
}


def contestants(blocks: int, side: int) -> dict[str, tuple[Blocks, jax.Array]]:
    """Maps to orthogonal blocks by name, each with its parameters; all of one Q."""
    draw = jax.random.normal(jax.random.key(0), (blocks, side, side))
    a = jnp.triu(draw, 1) * 0.1 / side**0.5  # A norm of Q of about 0.2.
    v = from_skew(a)
    full = lambda make: lambda a: make(a - a.mT)
    triangle = lambda make: lambda v: make(to_skew(v, side))
    return {f"{name}, full": (full(make), a) for name, make in MAPS.items()} | {
        f"{name}, triangle": (triangle(make), v) for name, make in MAPS.items()
    }


def medians(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Milliseconds of each call; one call of each in turn, the first round apart."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats + 1):
        for name, call in calls.items():
            start = time.perf_counter()
            jax.block_until_ready(call())
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(t[1:]) * 1e3 for name, t in times.items()}


def compare_blocks(blocks: int, side: int, repeats: int) -> None:
    """Prints the table of the blocks: values, and values with their gradients."""
    cotangent = jax.random.normal(jax.random.key(1), (blocks, side, side))

    def gradient(make: Blocks) -> Callable:
        return jax.jit(jax.value_and_grad(lambda p: jnp.vdot(make(p), cotangent)))

    entries = contestants(blocks, side)
    values, gradients = (
        medians({n: functools.partial(f(m), p) for n, (m, p) in entries.items()}, r)
        for f, r in ((jax.jit, repeats), (gradient, repeats))
    )
    print(f"\n{blocks} blocks of {side} x {side}, float32")
    print(f"{'':24}{'value ms':>10}{'ratio':>8}{'+ gradient ms':>15}{'ratio':>8}")
    first = next(iter(entries))
    for name in entries:
        v, g = values[name], gradients[name]
        ratios = values[first] / v, gradients[first] / g
        print(f"{name:24}{v:10.2f}{ratios[0]:8.2f}{g:15.2f}{ratios[1]:8.2f}")


def compare_updates(width: int, side: int, repeats: int) -> None:
    """Prints the table of whole updates of POET for one layer of seven kernels."""
    grads = kernels(1, width, jnp.float32)
    maps = {name: MAPS[name] for name in ("solve", "neumann k=4")}
    updates = [
        Contestant(name, om.poet(1e-3, block=side, orthogonal=kernel), grads)
        for name, kernel in maps.items()
    ]
    for _ in range(repeats + 1):
        for contestant in updates:
            contestant.run()
    print(f"\nupdate of om.poet, 7 kernels of width {width}, block {side}")
    print(f"{'':24}{'update ms':>10}{'ratio':>8}")
    for contestant in updates:
        step = contestant.row()[2]
        print(f"{contestant.name:24}{step:10.2f}{updates[0].row()[2] / step:8.2f}")


def main(arguments: list[str] | None = None) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.study orthogonal",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--blocks", type=int, default=16)
    parser.add_argument("--side", type=int, default=256)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=15)
    args = parser.parse_args(arguments)
    device = jax.devices()[0]
    print(f"jax {jax.__version__} on {device.device_kind} ({jax.default_backend()})")
    compare_blocks(args.blocks, args.side, args.repeats)
    compare_updates(args.width, args.side, args.repeats)
