"""The device's rates: copies, and products of matrices at each precision."""

from collections.abc import Callable
from typing import Any

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


def jobs(args) -> list[dict[str, Any]]:
    """One job."""
    return [{"sizes": (256, 128, 2**22) if args.tiny else (8192, 1024, 2**32)}]


def compiled(job: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    """What measures; it compiles as it goes."""
    return lambda: measure(*job["sizes"])


def table(rows: list[dict[str, Any]]) -> str:
    """The rates."""
    (found,) = rows
    if "error" in found:
        return found["error"]
    keys = ("tflops", "error", "problem")
    cells = [(r["name"], *(r.get(key) for key in keys)) for r in found["products"]]
    head = f"{found['machine']}: copies {found['copy TB/s']:.2f} TB/s (read and write)"
    side = f"product of side {found['side']}"
    return "\n".join([head, columns((side, "TFLOP/s", "error", ""), cells)])
