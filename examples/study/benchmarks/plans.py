"""Bytes that `owners` send in a step of large models on 64 to 4,096 devices.

python -m examples.study plans [--models ...] [--devices ...]

Nothing is compiled: these are the numbers of `optax_matrix.sharding.plan` for Muon with
row equilibration, owners on all axes, and gradients and updates in bfloat16. "work" is
that of the busiest device over an even split, and all sizes are MiB of a device.
"apart" is what it would send if each group of equal matrices had collectives of its
own. "state" is what it holds, "pooled" with ``pool_state=True``, and "even" if all
devices held equally much. "collectives" are their numbers, apart and as they are.
"""

import argparse
from typing import Any

import jax.numpy as jnp

import optax_matrix as om
from examples.study.benchmarks._trees import MESHES, MODELS
from optax_matrix.sharding._pools import Pool, numbers_sent, pools_of
from optax_matrix.sharding._state_specs import recorded

MIB = 2**20
HEADER = (
    *("devices", "groups", "work", "apart", "sent", "least"),
    *("state", "pooled", "even", "collectives"),
)


def row(name: str, devices: int) -> list[str]:
    """The line of a model on so many devices."""
    params = MODELS[name].params(devices)
    specs = {path: x.sharding for path, x in params.items()}
    mesh = next(iter(specs.values())).mesh
    tx, pooled = (_optimizer(mesh, specs, pool_state=x) for x in (False, True))
    plan = om.sharding.plan(tx, params, specs)
    state = om.sharding.plan(pooled, params, specs).state_bytes
    _, _, found = recorded(tx, params, specs)
    moved = [b.exchange for layout, _ in found.layouts for b in layout.bundles]
    moved = [x for x in moved if x.axes]
    kinds = [jnp.bfloat16] * len(moved)
    apart = 2 * sum(numbers_sent(moved, kinds, pooled=False))
    pools = pools_of(moved, kinds)
    together = len(moved) + sum(map(_more, pools))
    sizes = apart, plan.sent, plan.least_sent
    sizes += plan.state_bytes, state, plan.even_state_bytes
    counts = f"{2 * len(moved)} -> {2 * together}"
    mib = [f"{size / MIB:.0f}" for size in sizes]
    return [str(devices), str(len(plan.groups)), f"{plan.work:.2f}", *mib, counts]


def _optimizer(mesh: Any, specs: Any, **options: Any) -> Any:
    """Muon with row equilibration, and owners on all axes."""
    options |= {"param_specs": specs, "wire_dtype": jnp.bfloat16}
    placement = om.owners(mesh.axis_names, **options)
    rule = om.matrices.by_names
    return om.muoneq(1e-3, placement=placement, dimension_numbers=rule)


def _more(pool: Pool) -> int:
    """How many more collectives one way there are with a pool than without."""
    full = [x.ownership.matrices_per_owner > 1 for x in pool.exchanges]
    return sum(full) + 1 - (pool.carried is not None) - len(full)


def main(arguments: list[str] | None = None) -> None:
    """Prints a table for each model."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.study plans",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument(
        "--devices", nargs="+", type=int, choices=MESHES, default=list(MESHES)
    )
    given = parser.parse_args(arguments)
    for name in given.models:
        print(name)
        print("  ".join(f"{word:>11}" for word in HEADER))
        for devices in given.devices:
            print("  ".join(f"{x:>11}" for x in row(name, devices)), flush=True)


if __name__ == "__main__":
    main()
