"""Memory of a training step under POET and AdamW, by the compiler.

    python -m examples.study poet-memory --size 350m --batch 1

Compiles the whole step (loss, gradient, update, merge) of the LLaMA with scanned and
rematerialised layers, without running it, for: AdamW; POET as an optax transformation;
POET reparameterised, with all weights made before the forward pass; with each layer's
made inside the scan; and so with the merge left to a program of its own. Nothing is
allocated: a laptop can do it. The numbers are the compiler's for this platform, not a
profile's.
"""

import argparse
import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

import optax_matrix as om
from examples.pretrain.config import SIZES, ModelConfig
from examples.pretrain.model import Llama

ADAM = optax.scale_by_adam(0.9, 0.999, 1e-6)
STEP = optax.scale_by_learning_rate(1e-3)


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes of a compiled step.

    Attributes:
        trainable: Bytes of the parameters that have gradients.
        arguments: Bytes of weights and state, which the step takes and returns.
        temporary: Bytes of everything else that the step needs, including results that
            do not reuse the memory of an argument.
    """

    trainable: int
    arguments: int
    temporary: int

    @property
    def peak(self) -> int:
        return self.arguments + self.temporary


def head_loss(model: Llama, hidden, tokens):
    """Cross-entropy of next tokens from what the layers made."""
    logits = model.lm_head(model.norm(hidden)).astype(jnp.float32)
    return optax.softmax_cross_entropy_with_integer_labels(
        logits[:, :-1], tokens[:, 1:]
    ).mean()


class Setup:
    """The model's parts: a shell without layers, and the layers, stacked."""

    def __init__(self, config: ModelConfig, poet: om.weights.Reparameterization):
        self.config, self.poet = config, poet
        model = nnx.eval_shape(lambda: Llama(config, rngs=nnx.Rngs(0)))
        graph, params = nnx.split(model, nnx.Param)
        self.graph, self.params = graph, params
        self.block = nnx.graphdef(model.layers)

    def loss(self, params, tokens, make: Callable[[Any], Any], layers: Any):
        """The loss, with one layer after the other made by `make` from a slice."""

        @jax.checkpoint
        def body(x, layer):
            return nnx.merge(self.block, make(layer))(x), None

        model = nnx.merge(self.graph, params)
        hidden = jax.lax.scan(body, model.embed(tokens), layers)[0]
        return head_loss(model, hidden, tokens)


def adamw_step(setup: Setup):
    """Weights and AdamW."""
    tx = optax.chain(ADAM, optax.add_decayed_weights(0.01), STEP)
    return plain_step(setup, tx)


def optax_step(setup: Setup):
    """Weights and `poet`, which holds W_0 as well."""
    primitives = setup.poet.primitives
    options = {"variant": primitives.variant, "block": dict(primitives.sides)}
    return plain_step(setup, om.poet(1e-3, **options))


def plain_step(setup: Setup, tx: optax.GradientTransformation):
    """A step of weights, its abstract arguments, and what is trained."""

    def step(params, state, tokens):
        loss = lambda p: setup.loss(p, tokens, lambda layer: layer, p["layers"])
        updates, state = tx.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    state = jax.eval_shape(tx.init, setup.params)
    return step, (setup.params, state), setup.params


def reparameterized_step(setup: Setup, in_scan: bool, program: str = "both"):
    """A step of rotations and other leaves: update and merge, or one of them."""
    poet = setup.poet
    tx = poet.optimizer(optax.chain(ADAM, STEP), optax.chain(ADAM, STEP))
    frozen, trainable = jax.eval_shape(poet.split, setup.params)

    def whole(trainable, frozen, tokens):
        params = poet.materialize(frozen, trainable)
        return setup.loss(params, tokens, lambda layer: layer, params["layers"])

    def layer_by_layer(trainable, frozen, tokens):
        """Slices of the parts, under the paths that they have within a layer."""
        inside = lambda tree: {
            path.removeprefix("layers/"): leaf for path, leaf in tree.items()
        }
        slices = (
            frozen.weights["layers"],
            inside(frozen.perms),
            om.weights.Trainable(
                inside(trainable.rotations), trainable.others["layers"]
            ),
        )

        def make(parts):
            weights, perms, own = parts
            return poet.materialize(frozen._replace(weights=weights, perms=perms), own)

        return setup.loss(trainable.others, tokens, make, slices)

    def step(frozen, trainable, state, tokens):
        if program == "merge":
            return poet.merge(frozen, trainable, state, tx)
        loss = layer_by_layer if in_scan else whole
        gradient = jax.grad(loss)(trainable, frozen, tokens)
        updates, state = tx.update(gradient, state, trainable)
        trainable = optax.apply_updates(trainable, updates)
        if program == "update":
            return frozen, trainable, state
        return poet.merge_if_due(frozen, trainable, state, tx)

    state = jax.eval_shape(tx.init, trainable)
    return step, (frozen, trainable, state), trainable


STEPS = {
    "AdamW": adamw_step,
    "POET, optax": optax_step,
    "POET, weights before the pass": lambda s: reparameterized_step(s, False),
    "POET, weights in the scan": lambda s: reparameterized_step(s, True),
    "the same without the merge": lambda s: reparameterized_step(s, True, "update"),
    "the merge alone": lambda s: reparameterized_step(s, True, "merge"),
}


def measure(name: str, setup: Setup, batch: int) -> Memory:
    """Compiles a step and reads its memory from the compiler."""
    step, parts, trained = STEPS[name](setup)
    tokens = jax.ShapeDtypeStruct((batch, setup.config.context), jnp.int32)
    donated = tuple(range(len(parts)))
    compiled = jax.jit(step, donate_argnums=donated).lower(*parts, tokens).compile()
    found: Any = compiled.memory_analysis()
    return Memory(
        trainable=sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(trained)),
        arguments=found.argument_size_in_bytes,
        temporary=found.temp_size_in_bytes
        + found.output_size_in_bytes
        - found.alias_size_in_bytes,
    )


def main(arguments=None) -> dict[str, Memory]:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.study poet-memory", description=__doc__.splitlines()[0]
    )
    add = parser.add_argument
    add("--size", choices=SIZES, default="350m")
    add("--batch", type=int, default=1, help="windows of the size's context")
    add("--variant", choices=("block", "full"), default="block")
    add("--block", type=float, default=256, help="side, or with full a fraction")
    args = parser.parse_args(arguments)
    block = args.block if args.block < 1 else int(args.block)
    config = dataclasses.replace(SIZES[args.size], scan=True, remat=False)
    poet = om.reparameterize(variant=args.variant, block=block)
    setup, rows = Setup(config, poet), {}
    print(f"{'MiB':30} trainable  arguments  temporary       peak")
    for name in STEPS:
        rows[name] = row = measure(name, setup, args.batch)
        numbers = (row.trainable, row.arguments, row.temporary, row.peak)
        print(f"{name:30}" + "".join(f"{x / 2**20:11.0f}" for x in numbers), flush=True)
    return rows
