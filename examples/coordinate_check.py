"""Which forms of `scale_by_shape` let learning rates transfer to wider models.

    python -m examples.coordinate_check

trains a network of three layers for a few steps at widths of 64 to 1024 and prints how
far the activations of each layer moved (root mean square, averages over seeds). If that
does not depend on the width, neither does the best learning rate. The last column is
the slope of its logarithm over that of the width: 0 where the rate transfers.

An update of `muon` is a semi-orthogonal matrix times a factor. With the factor
sqrt(out/in), ``"unclipped"``, it changes a layer's outputs by as much as its inputs are
large, both as root mean squares: its RMS-to-RMS operator norm is one, the condition of
`A Spectral Condition for Feature Learning <https://arxiv.org/abs/2310.17813>`_ (Yang,
Simon and Bernstein, 2023). ``"out/in"`` differs from it only in matrices with fewer
outputs than inputs. All runs start from weights that meet the condition, too.
"""

import argparse
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax

import optax_matrix as om
from examples.pretrain.cli import at_least

INPUTS, OUTPUTS, BATCH = 32, 8, 16
RULES = ("unclipped", "out/in", "max", "none")
LAYERS = ("input", "hidden", "output")


def initial(key: jax.Array, width: int) -> dict[str, jax.Array]:
    """Kernels ``(in, out)`` of spectral norms of about sqrt(out / in)."""
    sides = (INPUTS, width, width, OUTPUTS)
    params = {}
    for i, name in enumerate(LAYERS):
        rows, cols = sides[i : i + 2]
        kernel = jax.random.normal(jax.random.fold_in(key, i), (rows, cols))
        norm = rows**0.5 + cols**0.5  # Of such a matrix, to a few percent.
        params[name] = kernel * (cols / rows) ** 0.5 / norm
    return params


def activations(params: dict[str, jax.Array], x: jax.Array) -> dict[str, jax.Array]:
    """The outputs of every layer, before the nonlinearity."""
    found = {}
    for name in LAYERS:
        x = found[name] = x @ params[name]
        x = jnp.tanh(x)
    return found


def movement(
    rule: str, width: int, seeds: int = 3, rate: float = 0.1, steps: int = 4
) -> dict[str, float]:
    """How far the activations of a fixed batch move in a few steps.

    Args:
        rule: The rule of `scale_by_shape`.
        width: Width of the hidden layers.
        seeds: Number of seeds of weights and data, which run as one program.
        rate: Learning rate.
        steps: Number of steps.

    Returns:
        The root mean square of the change, by layer.
    """
    # By use, the last layer would be AdamW's; here all three are Muon's.
    numbers = om.matrices.by_names
    tx = om.muon(rate, scaling=rule, dimension_numbers=numbers)

    def run(key):
        keys = jax.random.split(key, 3)
        x = jax.random.normal(keys[0], (BATCH, INPUTS))
        y = jax.random.normal(keys[1], (BATCH, OUTPUTS))
        start = initial(keys[2], width)

        def loss(params):
            return jnp.mean((activations(params, x)["output"] - y) ** 2)

        def train_step(carry, _):
            params, state = carry
            updates, state = tx.update(jax.grad(loss)(params), state, params)
            return (optax.apply_updates(params, updates), state), None

        carry = start, tx.init(start)
        (params, _), _ = jax.lax.scan(train_step, carry, length=steps)
        before, after = activations(start, x), activations(params, x)
        return {k: jnp.sqrt(jnp.mean((after[k] - before[k]) ** 2)) for k in LAYERS}

    moved = jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(0), seeds))
    return {layer: float(x.mean()) for layer, x in moved.items()}


def check(
    rule: str, widths: Sequence[int], seeds: int = 3
) -> dict[str, tuple[list[float], float]]:
    """The movement at every width, and its slope, by layer."""
    runs = [movement(rule, width, seeds) for width in widths]
    found = {}
    for layer in LAYERS:
        moved = [run[layer] for run in runs]
        slope, _ = np.polyfit(np.log(widths), np.log(moved), 1)
        found[layer] = moved, float(slope)
    return found


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    widths = (64, 128, 256, 512, 1024)
    parser.add_argument("--widths", type=at_least(1), nargs="+", default=widths)
    parser.add_argument("--seeds", type=at_least(1), default=3)
    options = parser.parse_args()
    if len(set(options.widths)) < 2:
        parser.error("--widths must be two or more: the slope is between them")
    print("rule       layer   ", *(f"{w:>8}" for w in options.widths), "   slope")
    for rule in RULES:
        found = check(rule, options.widths, options.seeds)
        for layer, (moved, slope) in found.items():
            numbers = " ".join(f"{x:8.4f}" for x in moved)
            print(f"{rule:<10} {layer:<8} {numbers} {slope:+8.2f}")


if __name__ == "__main__":
    main()
