"""Compile and step time of the matrix side, against `optax.contrib.muon`.

    python -m examples.study step [--layers 48 96] [--width 256] [--steps 15]
    python -m examples.study step --contestants aro aro-one-pass muon
    python -m examples.study step --contestants alice alice:renewed optax.adamw

All run in one process, with the same Newton-Schulz coefficients and iterations; ratios
are to the last contestant. Every layer has seven kernels (q, k, v, o of width x width;
gate, up, down of width x 2.69 width). Compiling is in processor seconds. Times of steps
are medians; the contestants take turns, so that other work on the machine affects all
alike. Low-rank methods have a rank of a quarter of the shorter side; those called
`:renewed` compute a basis at every step, so that the difference is the cost of a
renewal. `:monitored` adds `diagnostics.monitor` with its default measures. On a GPU the
same is run in bfloat16, and the polar kernel's share of the device's matmul rate is
measured.
"""

import argparse
import functools
import statistics
import time

import jax
import jax.numpy as jnp
import optax

import optax_matrix as om
from examples.pretrain.optimizers import SMALL

BF16 = functools.partial(om.linalg.newton_schulz, compute_dtype=jnp.bfloat16)


def kernels(layers: int, width: int, dtype) -> dict:
    """A tree of random kernels, seven a layer, in Flax orientation (in, out)."""
    wide = round(width * 2.6875)
    shapes = {name: (width, width) for name in "qkvo"}
    shapes |= {"gate": (width, wide), "up": (width, wide), "down": (wide, width)}
    keys = iter(jax.random.split(jax.random.key(0), 7 * layers))
    return {
        f"layer_{i}": {
            n: jax.random.normal(next(keys), s, dtype) for n, s in shapes.items()
        }
        for i in range(layers)
    }


class Contestant:
    """One optimizer, compiled ahead of time for a tree of gradients."""

    def __init__(self, name: str, tx: optax.GradientTransformation, grads: dict):
        self.name, self.grads, self.times = name, grads, []
        self.state = jax.block_until_ready(tx.init(grads))
        step = jax.jit(tx.update, donate_argnums=1)
        start = time.process_time()  # Others may use the machine, too.
        self.step = step.lower(grads, self.state, grads).compile()
        self.compile_s = time.process_time() - start
        self.text_bytes = len(self.step.as_text())
        self.temp_bytes = self.step.memory_analysis().temp_size_in_bytes

    def run(self) -> None:
        """One timed step."""
        start = time.perf_counter()
        updates, self.state = self.step(self.grads, self.state, self.grads)
        jax.block_until_ready((updates, self.state))
        self.times.append(time.perf_counter() - start)

    def row(self) -> tuple[float, float, float, float]:
        """Compile seconds, text MB, step ms, temporary MiB."""
        step = statistics.median(self.times[1:])
        return (
            self.compile_s,
            self.text_bytes / 1e6,
            step * 1e3,
            self.temp_bytes / 2**20,
        )


def optimizer(name: str, dtype) -> optax.GradientTransformation:
    """A recipe of ours, one of its variants, or optax's Muon, by name."""
    name, _, variant = name.partition(":")
    if variant == "monitored":
        return om.diagnostics.monitor(optimizer(name, dtype))
    if name == "optax.contrib.muon":
        return optax.contrib.muon(1e-3)
    if name == "optax.adamw":
        return optax.adamw(1e-3)
    if name in SMALL:
        every = {"update_interval": 1} if variant == "renewed" else {}
        return getattr(om, name)(1e-3, rank=0.25, **every)
    if name == "aro-householder":
        return om.aro(1e-3, qr=om.linalg.qr_householder)
    if name == "aro-one-pass":  # One pass, with our relative shift.
        return om.aro(1e-3, qr=functools.partial(om.linalg.cholesky_qr, passes=1))
    if name == "muon" and dtype != jnp.float32:
        return om.muon(1e-3, polar=BF16)
    return getattr(om, name)(1e-3)


def compare(names: list[str], layers: int, width: int, steps: int, dtype) -> None:
    """Prints one table for one depth, and ratios to the last contestant."""
    grads = kernels(layers, width, dtype)
    contestants = [Contestant(name, optimizer(name, dtype), grads) for name in names]
    for _ in range(steps + 1):
        for contestant in contestants:
            contestant.run()
    print(f"\n{layers} layers x 7 kernels, width {width}, {jnp.dtype(dtype).name}")
    print(f"{'':28}{'compile s':>12}{'text MB':>12}{'step ms':>12}{'temp MiB':>12}")
    for c in contestants:
        print(f"{c.name:28}" + "".join(f"{x:12.2f}" for x in c.row()))
    *others, last = contestants
    for c in others:
        ratios = [a / b for a, b in zip(c.row(), last.row(), strict=True)]
        print(f"{c.name + ' ratio':28}" + "".join(f"{x:12.2f}" for x in ratios))


def utilisation(rows: int, cols: int, repeats: int = 20) -> None:
    """Prints the share of the measured bf16 matmul rate that five steps reach."""

    def rate(f, flops, *args):
        f = jax.jit(f)
        jax.block_until_ready(f(*args))
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            jax.block_until_ready(f(*args))
            times.append(time.perf_counter() - start)
        return flops / statistics.median(times)

    a = jax.random.normal(jax.random.key(0), (8192, 8192), jnp.bfloat16)
    peak = rate(lambda a: a @ a, 2 * 8192**3, a)
    batch = max(1, 2**26 // (rows * cols))
    x = jax.random.normal(jax.random.key(1), (batch, rows, cols), jnp.bfloat16)
    flops = batch * 5 * (4 * rows**2 * cols + 2 * rows**3)
    reached = rate(BF16, flops, x)
    print(
        f"newton_schulz bf16 {batch} x {rows} x {cols}: {reached / 1e12:.0f} TFLOP/s, "
        f"{reached / peak:.0%} of a matmul 8192^3 ({peak / 1e12:.0f})"
    )


def main(arguments: list[str] | None = None) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.study step", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--layers", type=int, nargs="+", default=[48, 96])
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--steps", type=int, default=15)
    names = ["muon", "optax.contrib.muon"]
    parser.add_argument("--contestants", nargs="+", default=names, metavar="NAME")
    args = parser.parse_args(arguments)
    device = jax.devices()[0]
    print(f"jax {jax.__version__} on {device.device_kind} ({jax.default_backend()})")
    for layers in args.layers:
        compare(args.contestants, layers, args.width, args.steps, jnp.float32)
    if jax.default_backend() == "gpu":
        compare(args.contestants, args.layers[0], args.width, args.steps, jnp.bfloat16)
        utilisation(2048, 2048)
        utilisation(4096, 14336)
