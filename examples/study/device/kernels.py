"""Newton-Schulz and its products, by XLA and by the package's own kernels."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from examples.study.benchmarks.kernels import cases
from examples.study.device._clock import columns, machine, milliseconds
from examples.study.device.products import product


def jobs(args) -> list[dict[str, Any]]:
    """One for each form of each case."""
    return [
        {"case": i, "name": name, "form": form, "tiny": args.tiny}
        for i, (name, _, forms, _) in enumerate(cases(small=args.tiny))
        for form in forms
        if name.startswith(args.case or "")
    ]


def compiled(job: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    """Compiles one form; returns what times it and compares it with XLA's."""
    name, shape, forms, flops = list(cases(small=job["tiny"]))[job["case"]]
    whole, one = (
        jax.ShapeDtypeStruct((count, *shape[1:]), jnp.bfloat16)
        for count in (shape[0], 1)
    )
    program = jax.jit(forms[job["form"]]).lower(whole).compile()
    reference = jax.jit(forms["xla"]).lower(one).compile()

    def run() -> dict[str, Any]:
        key = jax.random.key(0)
        x = jax.random.normal(key, shape, jnp.float32)
        x = x / jnp.linalg.norm(x, axis=(-2, -1), keepdims=True)
        x = (x @ x.mT if name.startswith("quadratic") else x).astype(jnp.bfloat16)
        numbers = lambda y: np.asarray(y[:1], np.float32)
        mine, theirs = numbers(program(x)), numbers(reference(x[:1]))
        difference = np.linalg.norm(mine - theirs) / np.linalg.norm(theirs)
        ms = milliseconds(program, x)
        side = 256 if job["tiny"] else 8192
        square = jax.random.normal(key, (side, side), jnp.bfloat16)
        peak = 2 * side**3 / milliseconds(product(None), square, square) / 1e9
        rate = flops / ms / 1e9
        return {
            "machine": machine(),
            "ms": ms,
            "tflops": rate,
            "share": rate / peak,
            "difference": float(difference),
        }

    return run


def table(rows: list[dict[str, Any]]) -> str:
    """Times, rates and shares of the rate of one large product, and agreement."""
    keys = ("ms", "tflops", "share", "difference", "error")
    cells = [(r["name"], r["form"], *(r.get(key) for key in keys)) for r in rows]
    titles = ("", "form", "ms", "TFLOP/s", "of one product", "difference", "")
    machines = [row["machine"] for row in rows if "machine" in row]
    return "\n".join([*machines[:1], columns(titles, cells)])
