"""Averages of the weights in place of a decay of the learning rate, with Muon.

    python -m examples.averages

trains the autoencoder of the quick start by Muon with a learning rate that falls to
zero, with a constant one, and with averages for evaluation: `om.average_weights` and
schedule-free. Each has the best of seven rates on other seeds (`CHOOSING`) than those
whose mean loss is printed. It takes a minute on two cores.
"""

import argparse
import functools

import jax
import jax.numpy as jnp
import optax
from flax import nnx

import optax_matrix as om
from examples.pretrain.cli import at_least
from examples.quickstart import autoencoder, batch, loss
from examples.quickstart_rates import CHOOSING, SEEDS

RATES = 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32
OTHERS = 3e-3  # The rate of the biases.
muon = functools.partial(om.muon, other_learning_rate=OTHERS)


def linear(rate, steps):
    """To zero at the last step, for the biases, too."""
    fall = lambda rate: optax.linear_schedule(rate, 0.0, steps)
    return om.muon(fall(rate), other_learning_rate=fall(OTHERS))


def constant(rate, steps):
    """The weights of the last step."""
    del steps
    return muon(rate)


def average(rate, steps):
    """The average of about a tenth of the steps."""
    return om.average_weights(muon(rate), 1 - 10 / steps)


def schedule_free(rate, steps):
    """With a warm-up in a twentieth of the steps."""
    rates = lambda count: rate * jnp.minimum(1, 20 * count / steps)
    return optax.contrib.schedule_free(muon(rates, b1=0.0), rates, b1=0.9)


METHODS = {
    "linear decay": linear,
    "constant": constant,
    "average": average,
    "schedule-free": schedule_free,
}


def losses(name, rates, seeds, steps=200):
    """Losses on new data after training, ``(rates, seeds)``, in one program."""

    def train(rate, seed):
        graph, params = nnx.split(autoencoder(nnx.Rngs(jax.random.key(seed))))
        of = lambda params, x: loss(nnx.merge(graph, params), x)
        tx = METHODS[name](rate, steps)

        def step(carry, key):
            params, state = carry
            updates, state = tx.update(jax.grad(of)(params, batch(key)), state, params)
            return (optax.apply_updates(params, updates), state), None

        keys = jax.random.split(jax.random.key(seed), steps)
        (params, state), _ = jax.lax.scan(step, (params, tx.init(params)), keys)
        if name in ("average", "schedule-free"):
            params = om.evaluation_params(state, params)
        return of(params, batch(jax.random.key(10_000), 4096))

    every = jax.vmap(jax.vmap(train, (None, 0)), (0, None))
    return jax.jit(every)(jnp.array(rates), jnp.array(seeds))


def main(steps=200):
    """Prints, and returns, the rate and the losses of each method."""
    found = {}
    print("method        ", *(f"{rate:<6g}" for rate in RATES), " best   loss")
    for name in METHODS:
        tried = losses(name, RATES, CHOOSING, steps).mean(1)
        rate = RATES[int(jnp.argmin(tried))]
        each = losses(name, [rate], SEEDS, steps)[0]
        found[name] = rate, each.tolist()
        shown = " ".join(f"{x:.4f}" for x in tried)
        print(f"{name:<14} {shown}  {rate:<6g} {each.mean():.4f}")
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        "examples.averages", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--steps", type=at_least(1), default=200)
    main(parser.parse_args().steps)
