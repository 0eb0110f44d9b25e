"""Tunix: its trainer, and the lookup of its command line.

The trainer is Tunix's own where it is installed. The lookup is a stand-in that follows
`create_optimizer` in `tunix/cli/config.py` of google/tunix: a name in optax, in
`optax.inject_hyperparams` with float32.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from clients._training import RECIPES, assert_close
from flax import nnx

import optax_matrix as om
from examples.adapters import tunix

TOKENS = np.random.default_rng(0).integers(0, 11, (8, 6))
SCHEDULE = optax.linear_schedule(0.02, 0.0, 30)


class Model(nnx.Module):
    def __init__(self, rngs):
        self.embedder = nnx.Embed(11, 8, rngs=rngs)
        self.up, self.down = nnx.Linear(8, 16, rngs=rngs), nnx.Linear(16, 8, rngs=rngs)
        self.lm_head = nnx.Linear(8, 11, rngs=rngs)

    def __call__(self, tokens):
        x = self.embedder(tokens)
        return self.lm_head(x + self.down(jax.nn.gelu(self.up(x))))


def loss(model, input_tokens):
    logits = model(input_tokens)
    each = optax.softmax_cross_entropy_with_integer_labels(logits, input_tokens)
    return jnp.mean(each)


def weights(model):
    return nnx.to_pure_dict(nnx.state(model, nnx.Param))


def trained(tx, steps):
    model = Model(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer):
        optimizer.update(model, nnx.grad(loss)(model, TOKENS))

    for _ in range(steps):
        step(model, optimizer)
    return weights(model)


@pytest.fixture
def registered(monkeypatch):
    for name in RECIPES:  # To be gone from optax after the test.
        monkeypatch.setattr(optax, name, getattr(om, name), raising=False)
        monkeypatch.delattr(optax, name)
    tunix.register(*RECIPES)


def from_command_line(opt_type, **arguments):
    found = getattr(optax, opt_type.lower())
    inject = optax.inject_hyperparams(found, hyperparam_dtype=jnp.float32)
    return inject(learning_rate=SCHEDULE, **arguments)


@pytest.mark.broad
@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(("name", "options"), RECIPES.items(), ids=RECIPES)
def test_the_command_line_gives_the_recipe(name, options):
    got = trained(from_command_line(name, **options), 3)
    assert_close(got, trained(getattr(om, name)(SCHEDULE, **options), 3))


def test_a_name_of_optax_is_kept():
    with pytest.raises(ValueError, match="new to optax, got 'adamw'"):
        tunix.register("adamw")


@pytest.mark.broad
@pytest.mark.usefixtures("registered")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("name", "options"), RECIPES.items(), ids=RECIPES)
def test_the_trainer_takes_the_steps_of_the_recipe(name, options):
    trainers = pytest.importorskip("tunix.sft.peft_trainer")
    model, steps = Model(nnx.Rngs(0)), 5
    config = trainers.TrainingConfig(eval_every_n_steps=100, max_steps=steps)
    tx = from_command_line(name, **options)
    trainer = trainers.PeftTrainer(model, tx, config).with_loss_fn(loss)
    trainer = trainer.with_gen_model_input_fn(
        lambda batch: {"input_tokens": batch.input_tokens}
    )
    mask = np.ones_like(TOKENS)
    batch = trainers.TrainingInput(input_tokens=TOKENS, input_mask=mask)
    trainer.train([batch] * steps)
    want = trained(getattr(om, name)(SCHEDULE, **options), steps)
    assert_close(weights(model), want)
