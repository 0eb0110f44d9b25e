"""State in the memory of the host: where it lies, what a step needs, and how long.

    python -m examples.study host-memory
    python -m examples.study host-memory --tiny

compares ``sharding.as_sharded(memory="pinned_host")`` with state on the device, for
`muoneq` on the kernels of GPT-2 small, also in four bits: bytes of the state in each
memory between steps, bytes that the compiled step takes on the device, and its time. It
fails if the state is elsewhere, or if two steps differ in any bit. No device has run
it; on a CPU (``--tiny``) both memories are the same RAM.
"""

import argparse
import math
from collections.abc import Sequence

import jax
import numpy as np

import optax_matrix as om
from examples.offload import bytes_by_memory
from examples.study.device._clock import columns, machine, milliseconds

SIZES = {"small": (12, 768, 3072), "tiny": (1, 64, 128)}


def kernels(layers: int, width: int, hidden: int) -> dict[str, jax.Array]:
    """Kernels ``(in, out)`` of a transformer, drawn from normal numbers."""
    rng = np.random.default_rng(0)
    sides = {"query": (width, width), "out": (width, width)}
    sides |= {"up": (width, hidden), "down": (hidden, width)}
    draw = lambda shape: jax.numpy.asarray(rng.standard_normal(shape), np.float32)
    every = range(layers)
    return {f"{i}/{k}": draw(shape) for i in every for k, shape in sides.items()}


def measured(params: dict[str, jax.Array], memory: str, bits: int) -> tuple[list, dict]:
    """A row of the table, and the updates of the second step."""
    placement = om.sharding.as_sharded(memory=memory)
    if bits < 32:
        placement = om.quantized(placement, bits=bits)
    names = om.matrices.by_names
    tx = om.muoneq(1e-3, placement=placement, dimension_numbers=names)
    state = jax.jit(tx.init)(params)
    step = jax.jit(tx.update)
    for _ in range(2):
        updates, state = step(params, state, params)
    held = bytes_by_memory(state.inner_state)
    if held.get(memory, 0) < 0.9 * sum(held.values()):
        raise SystemExit(f"the state must be in {memory}, but lies in {held}")
    needs = step.lower(params, state, params).compile().memory_analysis()
    device = needs.argument_size_in_bytes + needs.output_size_in_bytes
    device += needs.temp_size_in_bytes - needs.alias_size_in_bytes
    time = milliseconds(step, params, state, params)
    mib = [held.get(kind, 0) / 2**20 for kind in ("device", "pinned_host")]
    return [f"{bits} bits, {memory}", *mib, device / 2**20, time], updates


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the table; SystemExit if something is not as it should be."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.study host-memory",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--tiny", action="store_true", help="a size for CPUs")
    params = kernels(*SIZES["tiny" if parser.parse_args(argv).tiny else "small"])
    count = sum(math.prod(x.shape) for x in params.values())
    rows = []
    for bits in (32, 4):
        both = [measured(params, memory, bits) for memory in ("device", "pinned_host")]
        rows += [row for row, _ in both]
        same = jax.tree.map(np.array_equal, both[0][1], both[1][1])
        if not all(jax.tree.leaves(same)):
            raise SystemExit(f"steps with {bits} bits differ by where their state lies")
    print(f"{machine()}: {count / 1e6:.3g}M weights")
    titles = ["state", "on device", "in host", "step's MiB", "ms"]
    print(columns(titles, rows))
    return 0
