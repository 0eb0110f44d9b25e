"""The device's rates: copies, and products of matrices at each precision."""

import argparse
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np

from examples.study.device._clock import columns, machine, milliseconds

_PRESETS = jax.lax.DotAlgorithmPreset
# The operands' dtype and the precision of each kind of product.
KINDS = {
    "float32, HIGHEST": (jnp.float32, jax.lax.Precision.HIGHEST),
    "float32, TF32 x 3": (jnp.float32, _PRESETS.TF32_TF32_F32_X3),
    "float32, bfloat16 x 6": (jnp.float32, _PRESETS.BF16_BF16_F32_X6),
    "float32, bfloat16 x 3": (jnp.float32, _PRESETS.BF16_BF16_F32_X3),
    "float32, TF32": (jnp.float32, _PRESETS.TF32_TF32_F32),
    "float32, DEFAULT": (jnp.float32, jax.lax.Precision.DEFAULT),
    "bfloat16": (jnp.bfloat16, None),
}


def product(precision):
    """A compiled product that accumulates in float32."""
    wide = {"preferred_element_type": jnp.float32}
    return jax.jit(lambda a, b: jnp.matmul(a, b, precision=precision, **wide))


def measure(side: int, error_side: int, copy_bytes: int) -> dict:
    """Rates in TB/s and TFLOP/s, and relative errors against float64."""
    x = jnp.ones(copy_bytes // 4, jnp.float32)
    copy = milliseconds(jax.jit(lambda x: x + 1), x)
    result = {"machine": machine(), "copy TB/s": 2 * x.nbytes / copy / 1e9}
    del x
    keys = jax.random.split(jax.random.key(0))
    rows = []
    for name, (dtype, precision) in KINDS.items():
        f = product(precision)
        try:
            a, b = (jax.random.normal(k, (side, side), dtype) for k in keys)
            ms = milliseconds(f, a, b)
            a, b = (jax.random.normal(k, (error_side,) * 2, dtype) for k in keys)
            exact = np.asarray(a, np.float64) @ np.asarray(b, np.float64)
            error = np.linalg.norm(np.asarray(f(a, b)) - exact) / np.linalg.norm(exact)
            row = {"tflops": 2 * side**3 / ms / 1e9, "error": float(error)}
        except (ValueError, RuntimeError) as problem:
            row = {"problem": str(problem)[:80]}
        rows.append({"name": name, **row})
    return {**result, "side": side, "products": rows}


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    found = measure(*((256, 128, 2**22) if args.tiny else (8192, 1024, 2**32)))
    (args.out / "products.json").write_text(json.dumps(found, indent=1))
    print(f"{found['machine']}: copies {found['copy TB/s']:.2f} TB/s (read and write)")
    rows = [
        (r["name"], r.get("tflops"), r.get("error"), r.get("problem", ""))
        for r in found["products"]
    ]
    print(columns((f"product of side {found['side']}", "TFLOP/s", "error", ""), rows))


if __name__ == "__main__":
    main()
