"""Optimizer state in the memory of the host, which the device reads once a step.

    python -m examples.offload

`state_specs` says how the state is sharded; the same shardings with
``memory_kind="pinned_host"`` say where it lies. The step fetches the state and updates
the weights, and its ``out_shardings`` send the state back; XLA overlaps these copies
with other work where it can. The program prints how many bytes of the state lie in each
memory between two steps, by counting its arrays, and the losses, which are those
without offload.

On CPU (from JAX 0.10 on) both memories are the same RAM, so this shows the mechanism
and saves nothing there. On GPU and TPU the state leaves the device's memory between
steps; during a step the part that is in use is there, too.
"""

import argparse
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

import optax_matrix as om
from examples.pretrain.cli import at_least


def placed(specs: Any, mesh: Mesh, memory: str) -> Any:
    """The specs of a state as shardings in one kind of memory."""
    place = lambda spec: NamedSharding(mesh, spec, memory_kind=memory)
    return jax.tree.map(place, specs, is_leaf=lambda x: isinstance(x, P))


def bytes_by_memory(tree: Any) -> dict[str, int]:
    """Bytes of the arrays of a tree on this host, by kind of memory."""
    found = Counter()
    for x in jax.tree.leaves(tree):
        found[x.sharding.memory_kind] += sum(
            s.data.nbytes for s in x.addressable_shards
        )
    return dict(found)


def main(steps: int = 5, memory: str = "pinned_host") -> tuple[list[float], Any]:
    """Trains, and returns the losses and the state."""
    mesh = jax.make_mesh((jax.device_count(),), ("fsdp",), (AxisType.Explicit,))
    sharding = NamedSharding(mesh, P("fsdp"))
    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.standard_normal(shape) / 16, jnp.float32)
    weights = {"up": draw(64, 256), "down": draw(256, 64), "bias": draw(64)}
    params = jax.device_put(weights, sharding)
    # Names tell enough: both kernels are (in, out), the last layer a matrix, too.
    tx = om.muoneq(3e-3, dimension_numbers=om.matrices.by_names)

    specs = om.state_specs(tx, params)
    at_rest, in_use = placed(specs, mesh, memory), placed(specs, mesh, "device")
    state = jax.jit(tx.init, out_shardings=at_rest)(params)

    def loss(params, x):
        hidden = jax.nn.gelu(x @ params["up"])
        return jnp.mean((hidden @ params["down"] + params["bias"] - x) ** 2)

    def train_step(params, state, x):
        value, grads = jax.value_and_grad(loss)(params, x)
        state = jax.device_put(state, in_use)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    kept = jax.tree.map(lambda x: x.sharding, params)
    train_step = jax.jit(
        train_step, out_shardings=(kept, at_rest, None), donate_argnums=(0, 1)
    )
    losses = []
    for step in range(steps):
        x = jax.random.normal(jax.random.key(step), (32, 64))
        params, state, value = train_step(params, state, x)
        losses.append(float(value))
    return losses, state


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        "examples.offload", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--steps", type=at_least(1), default=5)
    losses, state = main(parser.parse_args().steps)
    print("bytes of the state:", bytes_by_memory(state))
    print("losses:", " ".join(f"{x:.3f}" for x in losses))
