"""Which rates the quick start uses, and what both optimizers reach on five seeds.

Both have the same five rates, weight decay and schedule. The rate with the smallest
mean loss on the seeds `CHOOSING` is the best; the printed losses are of other seeds.

Run it from the root of the repository: `python -m examples.quickstart_rates`.
"""

import jax
import optax
from flax import nnx

import optax_matrix as om
from examples.quickstart import autoencoder, batch, loss

RATES = 3e-3, 1e-2, 2e-2, 3e-2, 6e-2
CHOOSING = 100, 101, 102, 103, 104
SEEDS = 0, 1, 2, 3, 4
METHODS = {"AdamW": optax.adamw, "MuonEq": om.muoneq}


def search(make, rates, seeds, steps=200):
    """The training of `quickstart.train` at some rates, for each seed."""
    falling = lambda rate: optax.linear_schedule(rate, 0.0, steps)
    held_out = batch(jax.random.key(10_000), 4096)
    return om.sweep(
        lambda rate: make(falling(rate), weight_decay=1e-4),
        lambda model, key: loss(model, batch(key)),
        lambda seed: autoencoder(nnx.Rngs(seed)),
        lambda seed: jax.random.split(jax.random.key(seed), steps),
        evaluate=lambda model: loss(model, held_out),
        rates=rates,
        seeds=seeds,
        widen=0,
    )


def main(steps: int = 200) -> dict[str, om.tuning.Sweep]:
    """Prints, and returns, what each method reaches at its best rate."""
    found = {}
    for name, make in METHODS.items():
        chosen = search(make, RATES, CHOOSING, steps)
        print(f"{name}\n{chosen}")
        found[name] = search(make, chosen.best, SEEDS, steps)
    for name, one in found.items():
        finals = one.finals[one.best]
        shown = " ".join(f"{loss:.5f}" for loss in finals)
        print(f"{name} at {one.best:g}: {shown}  mean {finals.mean():.5f}")
    return found


if __name__ == "__main__":
    main()
