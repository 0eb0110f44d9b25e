"""Experts without tokens: what ``zero_gradient`` does to the loss of a small mixture.

    python -m examples.experts

trains a layer of 16 experts, of which a router picks one for each token, by Muon. With
8 tokens per step more than half of the experts get none; their gradients are zero. The
learning rate of each policy is the best of six on other seeds (`CHOOSING`) than those
whose losses on new data are printed. It takes a minute on two cores.
"""

import argparse
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from flax import nnx

import optax_matrix as om
from examples.pretrain.cli import at_least

Policy = Literal["fade", "skip", "follow"]
POLICIES: tuple[Policy, ...] = ("fade", "skip", "follow")
TOKENS, STEPS = 8, 2000  # Tokens of each step.
RATES = 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08
CHOOSING = 100, 101, 102
SEEDS = 0, 1, 2
EXPERTS, SIZE, HIDDEN, KINDS = 16, 16, 32, 16


class Mixture(nnx.Module):
    """A layer whose tokens each go to the expert of the largest probability."""

    def __init__(self, rngs: nnx.Rngs):
        draw = jax.nn.initializers.lecun_normal(batch_axis=0)
        self.router = nnx.Linear(SIZE, EXPERTS, rngs=rngs)
        # One matrix per expert, (in, out) as in Flax.
        self.experts = nnx.Dict(
            up=nnx.Param(draw(rngs.params(), (EXPERTS, SIZE, HIDDEN))),
            down=nnx.Param(draw(rngs.params(), (EXPERTS, HIDDEN, SIZE))),
        )

    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Outputs of tokens ``(n, size)``, and how uneven the routing is."""
        odds = jax.nn.softmax(self.router(x))
        chosen = jnp.argmax(odds, -1)
        up, down = self.experts.up[chosen], self.experts.down[chosen]
        y = jnp.einsum("nh,nho->no", jax.nn.gelu(jnp.einsum("ni,nih->nh", x, up)), down)
        share = jax.nn.one_hot(chosen, EXPERTS).mean(0)
        uneven = EXPERTS * jnp.sum(share * odds.mean(0))  # That of Switch.
        return y * jnp.max(odds, -1, keepdims=True), uneven


def batch(key: jax.Array, n: int) -> tuple[jax.Array, jax.Array]:
    """Tokens of kinds, the k-th as frequent as 1 / k, and a function of each kind."""
    centers, maps = (
        jax.random.normal(jax.random.key(i), (KINDS, *shape))
        for i, shape in enumerate([(SIZE,), (SIZE, SIZE)])
    )
    of_kind, of_noise = jax.random.split(key)
    kind = jax.random.categorical(
        of_kind, -jnp.log(jnp.arange(1, KINDS + 1)), shape=(n,)
    )
    x = centers[kind] + 0.5 * jax.random.normal(of_noise, (n, SIZE))
    return x, jnp.tanh(jnp.einsum("ni,nio->no", x, maps[kind]) / SIZE**0.5)


def losses(
    policy: Policy, tokens: int, rates: Any, seeds: Any, steps: int = STEPS
) -> tuple[jax.Array, jax.Array]:
    """Losses on new data, and shares of experts without tokens: ``(rates, seeds)``."""

    def train(rate, seed):
        graph, params = nnx.split(Mixture(nnx.Rngs(jax.random.key(seed))))
        tx = om.muon(
            optax.linear_schedule(rate, 0.0, steps),
            other_learning_rate=optax.linear_schedule(3e-3, 0.0, steps),
            zero_gradient=policy,
            # By use, the experts' `down` would be the last layer, and AdamW's.
            dimension_numbers=om.matrices.by_names,
        )

        def errors(params, data):
            y, uneven = nnx.merge(graph, params)(data[0])
            error = jnp.mean((y - data[1]) ** 2)
            return error + 0.01 * uneven, error

        def step(carry, key):
            params, state = carry
            grads, _ = jax.grad(errors, has_aux=True)(params, batch(key, tokens))
            updates, state = tx.update(grads, state, params)
            live = jnp.any(grads["experts"]["up"][...], (1, 2))
            return (optax.apply_updates(params, updates), state), jnp.mean(~live)

        keys = jax.random.split(jax.random.key(seed), steps)
        (params, _), empty = jax.lax.scan(step, (params, tx.init(params)), keys)
        new = batch(jax.random.key(10_000), 8192)
        return errors(params, new)[1], empty.mean()

    every = jax.vmap(jax.vmap(train, (None, 0)), (0, None))
    return jax.jit(every)(jnp.array(rates), jnp.array(seeds))


def main(
    tokens: int = TOKENS, steps: int = STEPS
) -> dict[Policy, tuple[float, list[float]]]:
    """Prints, and returns, the rate and the losses of each policy."""
    found = {}
    print(
        f"{tokens} tokens per step, {EXPERTS} experts; means at the rates tried, then"
    )
    print("the losses at the best, their mean, and the share of experts without tokens")
    print("policy ", *(f"{rate:<6g}" for rate in RATES))
    for policy in POLICIES:
        tried = losses(policy, tokens, RATES, CHOOSING, steps)[0].mean(1)
        rate = RATES[int(jnp.argmin(tried))]
        (each,), empty = losses(policy, tokens, [rate], SEEDS, steps)
        found[policy] = rate, each.tolist()
        means, shown = (" ".join(f"{x:.4f}" for x in xs) for xs in (tried, each))
        end = f"{each.mean():.4f}  {empty.mean():.0%}"
        print(f"{policy:<7} {means}  at {rate:<6g} {shown}  {end}")
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser("examples.experts")
    parser.add_argument("--tokens", type=at_least(1), default=TOKENS)
    parser.add_argument("--steps", type=at_least(1), default=STEPS)
    options = parser.parse_args()
    main(options.tokens, options.steps)
