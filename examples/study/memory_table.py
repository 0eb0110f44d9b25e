"""Memory of weights and optimizer state for LLaMA models of 60M to 7B parameters.

    python -m examples.study memory-table 130M 1.3B

In GiB, counted from the shapes of the real states as in the papers: weights and state,
two bytes per element, with the last layer trained by the method or by Adam.
"""

import argparse
import functools
import warnings
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

import optax_matrix as om
from optax_matrix.diagnostics import StateBytes, state_bytes


class Size(NamedTuple):
    """A LLaMA: width, hidden width of the MLP, layers, and the rank used for it.

    The sizes are those of GaLore, which other papers on low-rank methods use as well.
    """

    width: int
    hidden: int
    layers: int
    rank: int


SIZES = {
    "60M": Size(512, 1376, 8, 128),
    "130M": Size(768, 2048, 12, 256),
    "350M": Size(1024, 2736, 24, 256),
    "1.3B": Size(2048, 5461, 24, 512),
    "7B": Size(4096, 11008, 32, 1024),
}
VOCABULARY = 32000
BYTES = 2
WITH_HEAD = om.matrices.by_path(include="lm_head")


def _adamw(rank, **options):
    """AdamW treats all leaves alike, so the head is trained by Adam in either case."""
    del rank, options
    return optax.adamw(1e-3)


def _full(recipe):
    return lambda _, **options: recipe(1e-3, **options)


def _low_rank(recipe):
    return lambda rank, **options: recipe(1e-3, rank=rank, **options)


METHODS = {
    "adamw": _adamw,
    "shampoo": _full(om.shampoo),
    "soap": _full(functools.partial(om.soap, max_dim=None)),
    "eigen_adam": _full(om.eigen_adam),
    "racs": _full(om.racs),
    "galore": _low_rank(om.galore),
    "fira": _low_rank(om.fira),
    "apollo": _low_rank(om.apollo),
    "apollo_mini": _full(om.apollo_mini),
    "apollo_svd": _low_rank(om.apollo_svd),
    "alice": _low_rank(om.alice),
    "alice_0": _low_rank(om.alice_0),
    "sumo": _low_rank(om.sumo),
}


def shapes(size: Size):
    """The parameters of a model, as shapes; layers are stacked."""
    stack = lambda *shape: {"kernel": _shape(size.layers, *shape)}
    d, f = size.width, size.hidden
    norms = {"scale": _shape(size.layers, d)}
    return {
        "embed": {"embedding": _shape(VOCABULARY, d)},
        "layers": {
            "attn": {name: stack(d, d) for name in ("q", "k", "v", "o")},
            "mlp": {"gate": stack(d, f), "up": stack(d, f), "down": stack(f, d)},
            "attn_norm": norms,
            "mlp_norm": norms,
        },
        "norm": {"scale": _shape(d)},
        "lm_head": {"kernel": _shape(d, VOCABULARY)},
    }


def count(method: str, size: Size, with_head: bool = False) -> StateBytes:
    """The state of a method, with the head among the matrices or trained by Adam."""
    options = {"dimension_numbers": WITH_HEAD} if with_head else {}
    with warnings.catch_warnings():
        # Papers count Shampoo's factors of the head, too.
        warnings.filterwarnings("ignore", "The square matrices of a side")
        return state_bytes(METHODS[method](size.rank, **options), shapes(size))


def gib(counted: StateBytes) -> float:
    """Weights and state in GiB, without the O(1) scalars of each matrix."""
    return BYTES * (counted.parameters + counted.elements) / 2**30


def table(names) -> str:
    """Lines of methods, two columns for each size: head by the method, by Adam."""
    sizes = "".join(f"{name:>17}" for name in names)
    lines = ["GiB, head by the method / by Adam", f"{'':12}{sizes}"]
    for method in METHODS:
        cells = [
            [gib(count(method, SIZES[n], h)) for h in (True, False)] for n in names
        ]
        line = "".join(f"{a:10.2f} /{b:5.2f}" for a, b in cells)
        lines.append(f"{method:12}{line}")
    return "\n".join(lines)


def _shape(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m examples.study memory-table",
        description=__doc__.splitlines()[0],
    )
    known = f"one or more of {', '.join(SIZES)}; default: all"
    parser.add_argument("sizes", nargs="*", metavar="SIZE", help=known)
    names = parser.parse_args(arguments).sizes or list(SIZES)
    if unknown := [name for name in names if name not in SIZES]:
        parser.error(f"sizes must be among {', '.join(SIZES)}, got {unknown[0]!r}")
    print(table(names))
