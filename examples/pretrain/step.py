"""One update of the weights, compiled once for every learning rate and seed."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import optax_matrix as om
from examples.pretrain.config import ModelConfig
from examples.pretrain.errors import UserError
from examples.pretrain.model import Llama
from examples.pretrain.options import Method

CLIP = 1.0
WARM_UP = 0.1
FINAL = 0.1


class TrainState(NamedTuple):
    """Weights and optimizer state, which a checkpoint holds."""

    params: Any
    opt_state: Any


def learning_rate(peak, steps: int) -> optax.Schedule:
    """Warm-up over a tenth of the steps, then a cosine to a tenth of the peak."""
    warm_up = max(int(WARM_UP * steps), 1)
    shape = optax.warmup_cosine_decay_schedule(
        0.0, 1.0, warm_up, max(steps, warm_up + 1), FINAL
    )
    return lambda count: peak * shape(count)


def cross_entropy(model, windows):
    """Mean loss of predicting each token of `(batch, context + 1)`."""
    tokens = windows.astype(jnp.int32)
    logits = model(tokens[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


@functools.partial(jax.jit, static_argnums=0)
def initial_weights(config: ModelConfig, seed) -> nnx.State:
    """The weights of a fresh model; compiled once per model."""
    rngs = nnx.Rngs(jax.random.key(seed))
    return nnx.state(Llama(config, rngs=rngs), nnx.Param)


def matrices(config: ModelConfig, table: Any = None) -> om.matrices.UseRule:
    """Which weights are matrices, with which axes, read from the model.

    Args:
        config: The model.
        table: What the rule of a run before this one said; it counts.
    """
    params = jax.eval_shape(initial_weights, config, 0)
    windows = jax.ShapeDtypeStruct((1, config.context + 1), jnp.int32)
    graph = model_graph(config)
    loss = lambda params, windows: cross_entropy(nnx.merge(graph, params), windows)
    return om.matrices.by_use(loss, params, windows, table=table)


_matrices = functools.cache(matrices)  # Of a model without a table.


def model_graph(config: ModelConfig) -> nnx.GraphDef:
    """The model without its weights."""
    model = nnx.eval_shape(lambda: Llama(config, rngs=nnx.Rngs(0)))
    return nnx.graphdef(model)


@functools.partial(jax.jit, static_argnums=0)
def loss_and_gradient(config: ModelConfig, params, windows):
    """Loss and gradient of one micro-batch; compiled once per model."""
    graph = model_graph(config)
    loss = lambda params: cross_entropy(nnx.merge(graph, params), windows)
    return jax.value_and_grad(loss)(params)


class Trainer:
    """One model under one optimizer.

    The peak learning rate is an argument of the compiled update, so a sweep compiles
    once. The gradient is compiled apart from the optimizer, so a comparison compiles it
    once.

    Args:
        config: The model.
        build: Learning rate (here a schedule) to optimizer; a `Method`, or any
            function. A method gets the dimension numbers of the model.
        steps: Length of the schedule.
        accumulate: Micro-batches per update.
        measures: What `om.diagnostics.monitor` measures of the updates.
        table: The dimension numbers of an earlier run that this one resumes.

    Attributes:
        table: The dimension numbers as JSON, for a run that resumes this one.

    Raises:
        UserError: If the optimizer refuses the model, or the device, as Pallas does
            CPUs, or the table is of another model.
    """

    def __init__(
        self,
        config: ModelConfig,
        build: Any,
        steps: int,
        accumulate: int,
        measures: tuple[str, ...] = (),
        table: Any = None,
    ):
        try:
            rule = _matrices(config) if table is None else matrices(config, table)
        except ValueError as error:
            raise UserError(f"The table of matrices does not fit: {error}") from error
        self.table = rule.table()
        if isinstance(build, Method):
            build = build.with_numbers(rule)
        self._config, self._build, self._steps = config, build, steps
        self._accumulate, self._measures = accumulate, measures
        try:
            params = jax.eval_shape(initial_weights, config, 0)
            state = TrainState(params, jax.eval_shape(self._init, params))
            jax.eval_shape(self._apply, state, params, np.float32(0))
        except ValueError as error:
            raise UserError(f"The optimizer does not fit the model: {error}") from error

    def _optimizer(self, peak):
        tx = optax.chain(
            optax.clip_by_global_norm(CLIP),
            self._build(learning_rate(peak, self._steps)),
        )
        if self._measures:
            tx = om.diagnostics.monitor(tx, self._measures)
        if self._accumulate == 1:
            return tx
        return optax.MultiSteps(tx, self._accumulate).gradient_transformation()

    def init(self, seed: int) -> TrainState:
        """Fresh weights, and the optimizer's state.

        The weights are the same under every optimizer, except those that choose their
        own (POET, whose matrices keep their singular values).
        """
        params = initial_weights(self._config, seed)
        if start := getattr(self._build, "start", None):
            params = start(params, seed)
        return TrainState(params, self._init(params))

    @functools.partial(jax.jit, static_argnums=0)
    def _init(self, params):
        return self._optimizer(0.0).init(params)

    def update(self, state: TrainState, batch, peak):
        """One update from `(accumulate, micro_batch, context + 1)` tokens.

        Args:
            state: Weights and optimizer state; their buffers are donated.
            batch: The micro-batches.
            peak: Peak of the learning rate.

        Returns:
            The new state, and the mean loss before the update.
        """
        losses = []
        for windows in batch:
            loss, gradient = loss_and_gradient(self._config, state.params, windows)
            state = self._apply(state, gradient, peak)
            losses.append(loss)
        return state, sum(losses) / len(losses)

    @functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
    def _apply(self, state, gradient, peak):
        tx = self._optimizer(peak)
        updates, opt_state = tx.update(gradient, state.opt_state, state.params)
        return TrainState(optax.apply_updates(state.params, updates), opt_state)


@functools.partial(jax.jit, static_argnums=0)
def _mean_loss(config, params, batches):
    graph = model_graph(config)
    loss = lambda windows: cross_entropy(nnx.merge(graph, params), windows)
    return jax.lax.map(loss, batches).mean()


def evaluate(config: ModelConfig, params, batches) -> float:
    """Mean loss on `(batches, micro_batch, context + 1)` tokens.

    Compiled once per model, whatever the optimizer.
    """
    return float(_mean_loss(config, params, batches))


def state_bytes(state: Any) -> int:
    """Bytes of all arrays of a tree, also of an abstract one."""
    leaves = jax.tree.leaves(state)
    return sum(int(np.prod(x.shape)) * x.dtype.itemsize for x in leaves)
