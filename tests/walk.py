"""Follows one call through the package: how often does it change files?

python tests/walk.py

For each method one traced `init` and `update` of a tree of three leaves, in calls that
really happen: calls, files, moves from one file to another, and returns to a file that
was left before. Few returns mean that a reader goes forward.
"""

import collections
import os
import sys
import warnings
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
sys.path.insert(0, str(Path(__file__).parents[1]))

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import optax_matrix as om

ROOT = str(Path(om.__file__).parent) + os.sep
PARAMS = {
    "up": {"kernel": jnp.ones((8, 16))},
    "down": {"kernel": jnp.ones((16, 8)), "bias": jnp.ones(8)},
}


def walk(f):
    """The files of the calls into the package, in order, and the value."""
    files = []

    def note(frame, event, _):
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(ROOT):
            files.append(name.removeprefix(ROOT))

    sys.setprofile(note)
    try:
        value = f()
    finally:
        sys.setprofile(None)
    return files, value


def line(name, files):
    """A line of the table."""
    visits = collections.Counter()
    for before, file in zip(["", *files], files, strict=False):
        visits[file] += file != before
    moves = sum(visits.values()) - 1
    most = ", ".join(f"{file} {n}" for file, n in visits.most_common(4))
    numbers = (len(files), len(visits), moves, moves + 1 - len(visits))
    return f"{name:24s}" + "".join(f"{n:9,d}" for n in numbers) + f"   {most}"


def sharded():
    """The same tree on four devices."""
    mesh = jax.make_mesh((4,), ("fsdp",), (AxisType.Explicit,))
    put = lambda x: jax.device_put(x, NamedSharding(mesh, P("fsdp")))
    return jax.tree.map(put, PARAMS)


def methods():
    """For each method of the table how it is made, and its parameters."""
    owners = lambda: om.muoneq(3e-3, placement=om.owners("fsdp"))
    return {
        "muoneq": (lambda: om.muoneq(3e-3), PARAMS),
        "alice": (lambda: om.alice(1e-3, rank=4, leading=1), PARAMS),
        "poet": (lambda: om.poet(1e-3, block=4, merge_interval=3), PARAMS),
        "muoneq with owners": (owners, sharded()),
    }


def update(make, params):
    """The files of one traced `update`."""
    tx = make()
    state = jax.jit(tx.init)(params)
    return walk(lambda: jax.jit(tx.update)(params, state, params))[0]


def counts(files):
    """The numbers of files, and of returns to a file that was left before."""
    changes = zip(["", *files], files, strict=False)
    visits = sum(before != file for before, file in changes)
    return len(set(files)), visits - len(set(files))


def main():
    """Prints the table."""
    warnings.simplefilter("ignore")
    print(f"{'call':24s}{'calls':>9s}{'files':>9s}{'moves':>9s}{'returns':>9s}")
    for name, (make, params) in methods().items():
        tx = make()
        files, state = walk(lambda: jax.jit(tx.init)(params))  # noqa: B023
        print(line(f"{name}, init", files))
        print(line(f"{name}, update", update(make, params)))
        if name == "muoneq":
            files, saved = walk(lambda: om.to_portable(state, params))  # noqa: B023
            print(line("to_portable", files))
            fresh = tx.init(params)
            files, _ = walk(lambda: om.from_portable(saved, fresh, params))  # noqa: B023
            print(line("from_portable", files))


if __name__ == "__main__":
    main()
