"""Newton-Schulz and its products, by XLA and by the package's own kernels."""

import argparse
import json
import pathlib
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from examples.study.benchmarks.kernels import cases
from examples.study.device._clock import columns, machine, milliseconds
from examples.study.device.products import product


def measure(tiny: bool) -> Iterator[dict]:
    """Times, rates and shares of the rate of one large product, and agreement."""
    side = 256 if tiny else 8192
    key = jax.random.key(0)
    square = jax.random.normal(key, (side, side), jnp.bfloat16)
    peak = 2 * side**3 / milliseconds(product(None), square, square) / 1e9
    yield {"machine": machine(), "peak": peak}
    for name, shape, forms, flops in cases(small=tiny):
        x = jax.random.normal(key, shape, jnp.float32)
        x = x / jnp.linalg.norm(x, axis=(-2, -1), keepdims=True)
        x = (x @ x.mT if name.startswith("quadratic") else x).astype(jnp.bfloat16)
        results = {}
        for form, f in forms.items():
            row = {"name": name, "form": form}
            try:
                f = jax.jit(f)
                ms = milliseconds(f, x)
                results[form] = np.asarray(f(x)[:1], np.float32)
                rate = flops / ms / 1e9
                row |= {"ms": ms, "tflops": rate, "share": rate / peak}
                first = next(iter(results.values()))
                gap = np.linalg.norm(results[form] - first) / np.linalg.norm(first)
                row["difference"] = float(gap)
            except Exception as error:  # A kernel that fails is a finding.
                row["error"] = " ".join(str(error).split())[:200]
            yield row


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    found = []
    for row in measure(args.tiny):
        found.append(row)
        (args.out / "kernels.json").write_text(json.dumps(found, indent=1))
    head, *rows = found
    print(f"{head['machine']}; one bfloat16 product: {head['peak']:.0f} TFLOP/s")
    keys = ("ms", "tflops", "share", "difference")
    cells = [
        (r["name"], r["form"], *(r.get(k) for k in keys), r.get("error", ""))
        for r in rows
    ]
    print(columns(("", "form", "ms", "TFLOP/s", "share", "difference", ""), cells))


if __name__ == "__main__":
    main()
