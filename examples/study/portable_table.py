"""What it takes to save and to restore the optimizer state of a LLaMA by parameter.

    python -m examples.study portable-table 1.3B --devices 64

For every recipe in float32, with matrices owned by all devices, in GiB:

- portable: the portable form, which a checkpoint and the memory of every host hold;
- gathered: what `om.to_portable` gathers on every device, a piece at a time, and how
  many pieces these are;
- largest: the largest of these, for which every device needs memory;
- placed: what `om.from_portable` sends from the host to each device; devices send
  nothing to each other then.

Counted in shapes; nothing is allocated and no time measured.
"""

import argparse
import inspect
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

import optax_matrix as om
from examples.study.memory_table import SIZES, Size, shapes
from optax_matrix._thresholds import Thresholds
from optax_matrix.checkpoint.gathering import pieces
from optax_matrix.recipes import METHODS

RECIPES = {recipe.__name__: recipe for group in METHODS.values() for recipe in group}
HEAD = "| recipe | portable | gathered | pieces | largest | placed |"


class Cost(NamedTuple):
    """Bytes of the portable form and, on each device, of what moves.

    Attributes:
        portable: The portable form.
        gathered: What `om.to_portable` gathers.
        pieces: The number of its all-gathers.
        largest: The largest of them.
        placed: What a device gets from its host.
    """

    portable: int
    gathered: int
    pieces: int
    largest: int
    placed: int


def build(name: str, size: Size, **options) -> optax.GradientTransformation:
    """The recipe, with the rank of the papers if it has one."""
    if "rank" in inspect.signature(RECIPES[name]).parameters:
        options["rank"] = size.rank
    return RECIPES[name](1e-3, **options)


def placed(size: Size, mesh: Mesh) -> dict[str, Any]:
    """The parameters in float32, each cut along an axis that the devices divide."""
    count = mesh.shape["fsdp"]

    def place(keys, x):
        layers = keys[0].key == "layers"
        cuts = [i for i, n in enumerate(x.shape) if i >= layers and n % count == 0]
        spec = P(*(None,) * cuts[0], "fsdp") if cuts else P()
        named = NamedSharding(mesh, spec)
        return jax.ShapeDtypeStruct(x.shape, jnp.float32, sharding=named)

    return jax.tree.map_with_path(place, shapes(size))


def arrays(state: optax.OptState) -> list[jax.ShapeDtypeStruct]:
    """Of an abstract state, the arrays of its portable form but for its origin."""
    named = jax.tree.leaves_with_path(state)
    labels = ("method", "manifest", "sides")
    origin = {jax.tree_util.GetAttrKey(name) for name in labels}
    return [raw(x) for keys, x in named if origin.isdisjoint(keys)]


def raw(x: Any) -> Any:
    """An abstract array; of random keys, that of their numbers."""
    is_key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    return jax.eval_shape(jax.random.key_data, x) if is_key else x


def cost(
    name: str, size: Size, mesh: Mesh, limit: int = Thresholds.gathered_bytes
) -> Cost:
    """What moves the state of a recipe with owners on all devices of the mesh."""
    params = placed(size, mesh)
    at = jax.tree.map(lambda x: x.sharding, params)
    tx = build(name, size, placement=om.owners("fsdp", param_specs=at))

    def abstract(x, spec):
        x, sharding = raw(x), NamedSharding(mesh, spec)
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    state, specs = jax.eval_shape(tx.init, params), om.state_specs(tx, params, at)
    moved = jax.tree.leaves(jax.tree.map(abstract, state, specs))
    split = [x for x in moved if not x.sharding.is_fully_replicated]
    plans = [pieces(x.shape, x.dtype, x.sharding, limit) for x in split]
    counts = [len(list(plan.starts())) for plan in plans]
    parts = [math.prod(x.sharding.shard_shape(x.shape)) for x in moved]
    return Cost(
        # Without owners no stack has padding, which the portable form leaves out.
        sum(map(nbytes, arrays(jax.eval_shape(build(name, size).init, params)))),
        sum(n * plan.nbytes for n, plan in zip(counts, plans, strict=True)),
        sum(counts),
        max(plan.nbytes for plan in plans),
        sum(n * x.dtype.itemsize for n, x in zip(parts, moved, strict=True)),
    )


def nbytes(x: Any) -> int:
    """Bytes of an abstract array."""
    return x.size * x.dtype.itemsize


def table(size: Size, mesh: Mesh, names=tuple(RECIPES)) -> str:
    """The costs in GiB, one line for each recipe, as Markdown."""
    lines = [HEAD, "|---|---|---|---|---|---|"]
    for name in names:
        found = cost(name, size, mesh)
        gathered = f"{gib(found.gathered)} | {found.pieces}"
        rest = f"{gib(found.largest)} | {gib(found.placed)}"
        lines.append(f"| `{name}` | {gib(found.portable)} | {gathered} | {rest} |")
    return "\n".join(lines)


def gib(count: int) -> str:
    return f"{count / 2**30:.2f}"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.study portable-table")
    parser.add_argument("size", choices=SIZES, nargs="?", default="1.3B")
    parser.add_argument("--devices", type=int, default=64)
    args = parser.parse_args(arguments)
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", args.devices)
    mesh = jax.make_mesh((args.devices,), ("fsdp",), (AxisType.Auto,))
    print(table(SIZES[args.size], mesh))
