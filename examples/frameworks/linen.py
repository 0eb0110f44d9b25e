"""Flax Linen: `TrainState`, logical axes, Orbax, as in Flax's example `lm1b`.

The optimizer's line is `om.muoneq(1e-2, placement=om.owners(("fsdp", "tp")))`; the
owners' axes are rules of their own, ``("fsdp", "fsdp")`` and ``("tp", "tp")``.
"""

import pathlib

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
import orbax.checkpoint as ocp
from flax.training.train_state import TrainState
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import optax_matrix as om
from examples.frameworks import _trial

VOCABULARY, WIDTH, BATCH, LENGTH = 64, 32, 8, 16
LAYERS = 8  # As many as there are devices, so that owners pad nothing.
RULES = (
    ("batch", "fsdp"),
    ("embed", "fsdp"),
    ("mlp", "tp"),
    ("kv", "tp"),
    ("vocab", "tp"),
    ("fsdp", "fsdp"),
    ("tp", "tp"),
)

TABLE = {
    "embed/embedding": "other",
    "layers/attention/key/kernel": "1 -> 2, 3",
    "layers/attention/out/kernel": "1, 2 -> 3",
    "layers/attention/query/kernel": "1 -> 2, 3",
    "layers/attention/value/kernel": "1 -> 2, 3",
    "layers/down/bias": "other",
    "layers/down/kernel": "1 -> 2",
    "layers/norm/scale": "other",
    "layers/up/bias": "other",
    "layers/up/kernel": "1 -> 2",
    "norm/scale": "other",
    "head/kernel": "other",
}


def _split(*names):
    init = nn.initializers.variance_scaling(1.0, "fan_avg", "uniform")
    return nn.with_logical_partitioning(init, names)


class Layer(nn.Module):
    """Attention and two dense layers behind one norm."""

    @nn.compact
    def __call__(self, x, _):
        """The layer's output, as `nn.scan` wants it."""
        y = nn.RMSNorm(name="norm")(x)
        # Two names, as in lm1b: the attention's kernels are initialised flat.
        attention = nn.MultiHeadDotProductAttention(
            4,
            use_bias=False,
            kernel_init=_split("embed", "kv"),
            out_kernel_init=_split("kv", "embed"),
            name="attention",
        )
        y = y + attention(y, mask=nn.make_causal_mask(x[..., 0]))
        h = nn.Dense(4 * WIDTH, kernel_init=_split("embed", "mlp"), name="up")(y)
        h = nn.with_logical_constraint(nn.gelu(h), ("batch", None, "mlp"))
        h = nn.Dense(WIDTH, kernel_init=_split("mlp", "embed"), name="down")(h)
        return x + h, None


class Model(nn.Module):
    """A decoder of scanned layers."""

    @nn.compact
    def __call__(self, tokens):
        """Logits."""
        init = nn.with_logical_partitioning(
            nn.initializers.normal(1.0), ("vocab", "embed")
        )
        x = nn.Embed(VOCABULARY, WIDTH, embedding_init=init, name="embed")(tokens)
        scanned = nn.scan(
            Layer,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            length=LAYERS,
            metadata_params={nn.PARTITION_NAME: "layers"},
        )
        x, _ = scanned(name="layers")(x, None)
        x = nn.RMSNorm(name="norm")(x)
        init = _split("embed", "vocab")
        return nn.Dense(VOCABULARY, use_bias=False, kernel_init=init, name="head")(x)


def train(method: str, steps: int, folder: pathlib.Path | None) -> _trial.Run:
    """The loop of lm1b."""
    mesh = jax.make_mesh((4, 2), ("fsdp", "tp"), axis_types=(AxisType.Auto,) * 2)
    model = Model()

    def variables(key):
        return model.init(key, jnp.zeros((BATCH, LENGTH), int))["params"]

    def loss(params, tokens):
        logits = model.apply({"params": params}, tokens[:, :-1])
        each = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
        return each.mean()

    def step(state, tokens):
        value, grads = jax.value_and_grad(loss)(state.params, tokens)
        return state.apply_gradients(grads=grads), value

    with jax.set_mesh(mesh), nn.logical_axis_rules(RULES):
        key = jax.random.key(0)
        names = nn.get_partition_spec(jax.eval_shape(variables, key))
        specs = nn.logical_to_mesh(names)
        tx = _optimizer(method, specs)

        def create(key):
            params = variables(key)
            return TrainState.create(apply_fn=model.apply, params=params, tx=tx)

        names = nn.get_partition_spec(jax.eval_shape(create, key))
        shardings = nn.logical_to_mesh_sharding(names, mesh, RULES)
        state = nn.unbox(jax.jit(create, out_shardings=shardings)(key))
        if folder and folder.exists():
            with ocp.StandardCheckpointer() as saved:
                state = saved.restore(folder, state)
        step = jax.jit(step, out_shardings=(shardings, None), donate_argnums=0)
        batches = NamedSharding(mesh, P("fsdp"))
        losses = []
        while int(state.step) < steps:
            tokens = _trial.tokens(int(state.step), BATCH, LENGTH + 1, VOCABULARY)
            state, value = step(state, jax.device_put(tokens, batches))
            losses.append(float(value))
        if folder and not folder.exists():
            with ocp.StandardCheckpointer() as saved:
                saved.save(folder, state)
    return _trial.Run(losses, state.opt_state, state.params)


def _optimizer(method, specs):
    if method == "adamw":
        return optax.adamw(_trial.METHODS[method])
    placement = om.owners(("fsdp", "tp"), param_specs=specs)
    return _trial.recipe(method, placement=placement)


def used() -> _trial.Used:
    """The model by `apply`, without its boxes; on its own, their logical names."""
    tokens = _trial.tokens(0, BATCH, LENGTH, VOCABULARY)
    boxed = jax.eval_shape(Model().init, jax.random.key(0), tokens)["params"]
    params = nn.unbox(boxed)
    call = lambda params, tokens: Model().apply({"params": params}, tokens)
    rule = om.matrices.by_use(call, params, tokens)
    return _trial.Used(rule, params, om.matrices.infer(boxed))


if __name__ == "__main__":
    _trial.main(train, TABLE, used)
