"""How far POET takes the singular values of a matrix, with the bound on Q and without.

    python -m examples.study poet-spectrum

One square matrix with rows of norm one, one block, the paper's learning rate and merge
interval; the gradients are noise, or always the same.
"""

import argparse

import jax
import jax.numpy as jnp
import optax

import optax_matrix as om


def trained(w: jax.Array, rate: float, interval: int, steps: int, **options):
    """The weights after updates by noise, or by one gradient."""
    steady = options.pop("steady")
    tx = om.poet(rate, block=len(w), merge_interval=interval, **options)

    def step(carry, key):
        params, state = carry
        grads = {"kernel": jax.random.normal(key, w.shape)}
        updates, state = tx.update(grads, state, params)
        return (optax.apply_updates(params, updates), state), None

    keys = jax.random.split(jax.random.key(1), steps)
    keys = jnp.broadcast_to(keys[:1], keys.shape) if steady else keys
    params = {"kernel": w}
    start = params, tx.init(params)
    return jax.jit(lambda s, k: jax.lax.scan(step, s, k))(start, keys)[0][0]["kernel"]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m examples.study poet-spectrum",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--side", type=int, default=64)
    parser.add_argument("--rate", type=float, default=4e-3)
    parser.add_argument("--merge-interval", type=int, default=400)
    parser.add_argument("--steps", type=int, default=800)
    args = parser.parse_args(arguments)
    w = jax.random.normal(jax.random.key(0), (args.side, args.side))
    w = w / jnp.linalg.norm(w, axis=1, keepdims=True)
    values = jnp.linalg.svd(w)[1]
    print("gradients  max_norm  kernel          change of a singular value  of W")
    for steady in (False, True):
        for max_norm, kernel in (
            (None, om.linalg.cayley_neumann),
            (0.7, om.linalg.cayley_neumann),
            (0.5, om.linalg.cayley_neumann),
            (0.3, om.linalg.cayley_neumann),
            (None, om.linalg.cayley),
        ):
            options = {"max_norm": max_norm, "orthogonal": kernel, "steady": steady}
            new = trained(w, args.rate, args.merge_interval, args.steps, **options)
            change = jnp.max(jnp.abs(jnp.linalg.svd(new)[1] / values - 1))
            moved = jnp.linalg.norm(new - w) / jnp.linalg.norm(w)
            print(
                f"{'steady' if steady else 'noise':9s}  {max_norm!s:8s}  "
                f"{kernel.__name__:14s}  {float(change):26.1e}  {float(moved):.2g}"
            )
