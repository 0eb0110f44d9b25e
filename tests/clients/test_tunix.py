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
from optax_matrix.adapters import tunix

TOKENS = np.random.default_rng(0).integers(0, 11, (8, 6))
SCHEDULE = optax.linear_schedule(0.02, 0.0, 30)
INJECT = optax.inject_hyperparams


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
    monkeypatch.setattr(optax, "inject_hyperparams", INJECT)
    for name in [*RECIPES, "alice"]:  # To be gone from optax after the test.
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


@pytest.mark.usefixtures("registered")
def test_what_shapes_the_state_is_static():
    """A rank, an interval and a word of the command line; other numbers are state."""
    tunix.register("alice")
    tx = from_command_line("alice", rank=4, update_interval=2, side="in", scale=0.5)
    params = {"up": {"kernel": jnp.ones((8, 16))}}
    state = jax.jit(tx.init)(params)
    _, state = jax.jit(tx.update)(params, state, params)
    assert {4} <= {n for x in jax.tree.leaves(state) for n in x.shape}
    assert {"learning_rate", "scale"} <= set(state.hyperparams)
    assert not {"rank", "update_interval", "side"} & set(state.hyperparams)


@pytest.mark.usefixtures("registered")
def test_the_rule_of_a_model_reaches_the_command_line():
    params = {"up": {"kernel": np.ones((8, 16), "f")}}
    call = lambda p, x: jnp.tanh(x @ p["up"]["kernel"].T) @ p["up"]["kernel"]
    rule = om.matrices.by_use(
        call, params, np.ones((2, 16), "f"), numbers={"kernel": None}
    )
    for given, matrices in ((rule, False), (None, True)):
        tunix.register("muoneq", dimension_numbers=given)
        state = jax.eval_shape(from_command_line("muoneq").init, params)
        stacks = [x for x in jax.tree.leaves(state) if x.shape == (1, 16, 8)]
        assert bool(stacks) == matrices


@pytest.mark.usefixtures("registered")
def test_others_are_injected_as_before():
    tx = from_command_line("adamw", b1=0.8)
    want = INJECT(optax.adamw, hyperparam_dtype=jnp.float32)(SCHEDULE, b1=0.8)
    params = {"up": {"kernel": jnp.ones((8, 16))}}
    assert_close(tx.init(params), want.init(params))


@pytest.mark.usefixtures("registered")
def test_the_command_line_looks_up_as_the_stand_in_does(tmp_path):
    config = pytest.importorskip("tunix.cli.config")
    base = tmp_path / "base.yaml"
    base.write_text(
        "{model_config: {model_name: qwen3, model_source: internal},"
        " tokenizer_config: {tokenizer_type: sentencepiece, tokenizer_path: ''},"
        " optimizer_config: {opt_type: adamw, learning_rate: 1.0e-3}}"
    )
    tunix.register("alice")
    given = {"opt_type": "alice", "rank": 4, "side": "in", "learning_rate": 0.01}
    words = [f"optimizer_config.{key}={value}" for key, value in given.items()]
    settings = config.HyperParameters(["peft_main", str(base), *words])
    tx = settings.create_optimizer("optimizer_config")
    params = {"up": {"kernel": jnp.ones((8, 16))}}
    want = from_command_line("alice", rank=4, side="in").init(params)
    got = tx.init(params)
    assert jax.tree.structure(got.inner_state) == jax.tree.structure(want.inner_state)
    assert jax.tree.map(jnp.shape, got.inner_state) == jax.tree.map(
        jnp.shape, want.inner_state
    )


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
