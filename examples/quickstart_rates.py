"""Which rates the quick start uses, and what both optimizers reach on five seeds.

Both have five rates, and the same weight decay and schedule. MuonEq has the best rate
of AdamW for the biases. The rate with the smallest mean loss on the seeds `CHOOSING` is
the best; the printed losses are of other seeds.

Run it from the root of the repository: `python -m examples.quickstart_rates`.
"""

import jax
import jax.numpy as jnp
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


def losses(make, rates, seeds, steps=200):
    """Final losses `(rates, seeds)` of `quickstart.train`, in one program."""

    def train(rate, seed):
        graph, params = nnx.split(autoencoder(nnx.Rngs(jax.random.key(seed))))
        of = lambda params, x: loss(nnx.merge(graph, params), x)
        tx = make(rate)

        def step(carry, key):
            params, state = carry
            updates, state = tx.update(jax.grad(of)(params, batch(key)), state, params)
            return (optax.apply_updates(params, updates), state), None

        keys = jax.random.split(jax.random.key(seed), steps)
        (params, _), _ = jax.lax.scan(step, (params, tx.init(params)), keys)
        return of(params, batch(jax.random.key(10_000), 4096))

    every = jax.vmap(jax.vmap(train, (None, 0)), (0, None))
    return jax.jit(every)(jnp.array(rates), jnp.array(seeds))


def main(steps: int = 200) -> dict[str, tuple[float, list[float]]]:
    """Prints, and returns, the best rate and the losses of each method."""
    found = {}
    for name, make in METHODS.items():
        rates = RATES[name]
        means = losses(make, rates, CHOOSING, steps).mean(1)
        best = rates[int(jnp.argmin(means))]
        tried = ", ".join(
            f"{rate:g}: {m:.5f}" for rate, m in zip(rates, means, strict=True)
        )
        print(f"{name}  {tried}; best {best:g}")
        found[name] = best, losses(make, [best], SEEDS, steps)[0].tolist()
    for name, (best, each) in found.items():
        shown = " ".join(f"{value:.5f}" for value in each)
        print(f"{name} at {best:g}: {shown}  mean {sum(each) / len(each):.5f}")
    return found


if __name__ == "__main__":
    main()
