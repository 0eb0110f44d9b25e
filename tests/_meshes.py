"""Meshes of eight CPU devices, leaves split in every way, what a program sends."""

import math
import re
from collections import Counter

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

MESHES = {
    "fsdp8": {"fsdp": 8},
    "fsdp4-tp2": {"fsdp": 4, "tp": 2},
    "fsdp2-expert4": {"fsdp": 2, "expert": 4},
}
KINDS = {"explicit": AxisType.Explicit, "auto": AxisType.Auto}

# Leaf layout: shape, and its spec on each mesh. Kernels are (..., in, out).
LAYOUTS = {
    "rows": (
        (4, 8),
        {
            "fsdp8": P(None, "fsdp"),
            "fsdp4-tp2": P(None, ("fsdp", "tp")),
            "fsdp2-expert4": P(None, ("expert", "fsdp")),
        },
    ),
    "columns": (
        (8, 4),
        {
            "fsdp8": P("fsdp", None),
            "fsdp4-tp2": P(("fsdp", "tp"), None),
            "fsdp2-expert4": P(("fsdp", "expert"), None),
        },
    ),
    # With a single mesh axis both sides cannot be split; its columns are.
    "both": (
        (8, 12),
        {
            "fsdp8": P("fsdp", None),
            "fsdp4-tp2": P("tp", "fsdp"),
            "fsdp2-expert4": P("fsdp", "expert"),
        },
    ),
    "layers": (
        (8, 4, 6),
        {
            "fsdp8": P("fsdp", None, None),
            "fsdp4-tp2": P(("tp", "fsdp"), None, None),
            "fsdp2-expert4": P(("fsdp", "expert"), None, None),
        },
    ),
    "experts": (
        (4, 6, 8),
        {
            "fsdp8": P(None, None, "fsdp"),
            "fsdp4-tp2": P("fsdp", "tp", None),
            "fsdp2-expert4": P("expert", None, "fsdp"),
        },
    ),
}
# Number of leaves: "divides" fills eight owners evenly on every mesh.
COUNTS = {
    "divides": {"rows": 8, "columns": 8, "both": 8, "layers": 1, "experts": 2},
    "rest": {"rows": 3, "columns": 1, "both": 9, "layers": 2, "experts": 3},
}


def make_mesh(name, kind, devices):
    """The mesh of this name, all axes of this kind."""
    axes = MESHES[name]
    types = (KINDS[kind],) * len(axes)
    return jax.make_mesh(
        tuple(axes.values()), tuple(axes), axis_types=types, devices=devices
    )


def leaves_of(counts):
    """Paths to leaf layouts: ``{"rows/0": "rows", ...}``."""
    return {f"{name}/{i}": name for name, n in COUNTS[counts].items() for i in range(n)}


def draw(counts, seed):
    """A flat tree of normal numbers, one leaf per path."""
    rng = np.random.default_rng(seed)
    return {
        path: rng.standard_normal(LAYOUTS[name][0]).astype(np.float32)
        for path, name in leaves_of(counts).items()
    }


def shardings(counts, mesh_name, mesh):
    """The named sharding of each path, written as `jit` writes those of outputs."""
    explicit = AxisType.Explicit in mesh.axis_types

    def trimmed(spec):
        last = max(i for i, axes in enumerate(spec) if axes is not None)
        return spec if explicit else P(*spec[: last + 1])

    return {
        path: NamedSharding(mesh, trimmed(LAYOUTS[name][1][mesh_name]))
        for path, name in leaves_of(counts).items()
    }


def put(tree, sharding):
    """The tree on the mesh."""
    return jax.tree.map(jax.device_put, tree, sharding)


_OPS = re.compile(
    r"= .*?\b(all-to-all|all-gather|all-reduce|reduce-scatter|collective-permute"
    r"|collective-broadcast|ragged-all-to-all)(?:-start)?\("
)


def collectives(compiled):
    """How many collectives of each kind the compiled program has."""
    return Counter(_OPS.findall(compiled.as_text()))


def owned_per_device(name, count, mesh_name, owners):
    """Matrices per device of `count` leaves of a layout, fillers included.

    Written down apart from the library: mesh axes of the batch axis already divide the
    matrices, all other owner axes divide what is left, rounded up.
    """
    shape, specs = LAYOUTS[name]
    sizes, spec = MESHES[mesh_name], specs[mesh_name]
    flat = lambda e: () if e is None else (e,) if isinstance(e, str) else tuple(e)
    batch = flat(spec[0]) if len(shape) == 3 else ()
    matrices = count * (shape[0] if len(shape) == 3 else 1)
    held = matrices // math.prod(sizes[x] for x in batch)
    return math.ceil(held / math.prod(sizes[x] for x in owners if x not in batch))
