"""Which rates the quick start uses, and what both optimizers reach on five seeds.

Each is tried at five rates, with the same weight decay and schedule. MuonEq uses the
best rate of AdamW for the biases. The rate with the smallest mean loss on the seeds
`CHOOSING` is the best; the printed losses are of other seeds.

Run it from the root of the repository: `python -m examples.quickstart_rates`.
"""

import jax
import optax
from flax import nnx

import optax_matrix as om
from examples.quickstart import autoencoder, batch, loss, rate as falling

ADAMW = 1e-2  # The best rate of AdamW, and that of the biases beside MuonEq.
RATES = {
    "AdamW": (3e-3, 1e-2, 2e-2, 3e-2, 6e-2),
    "MuonEq": tuple(factor * ADAMW for factor in (0.5, 1, 2, 4, 8)),
}
CHOOSING = 100, 101, 102, 103, 104
SEEDS = 0, 1, 2, 3, 4
METHODS = {
    "AdamW": lambda rate: optax.adamw(falling(rate), weight_decay=1e-4),
    "MuonEq": lambda rate: om.muoneq(
        falling(rate), other_learning_rate=falling(ADAMW), weight_decay=1e-4
    ),
}


def search(make, rates, seeds, steps=200):
    """The training of `quickstart.train` at some rates, for each seed."""
    held_out = batch(jax.random.key(10_000), 4096)
    return om.sweep(
        make,
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
        chosen = search(make, RATES[name], CHOOSING, steps)
        print(f"{name}\n{chosen}")
        found[name] = search(make, chosen.best, SEEDS, steps)
    for name, one in found.items():
        finals = one.finals[one.best]
        shown = " ".join(f"{loss:.5f}" for loss in finals)
        print(f"{name} at {one.best:g}: {shown}  mean {finals.mean():.5f}")
    return found


if __name__ == "__main__":
    main()
