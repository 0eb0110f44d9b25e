"""The tiny LLaMA trained under FSDP or FSDP x TP, on one process or on many hosts.

    python -m examples.train_sharded --optimizer muoneq --mesh fsdp=4,tp=2

from the root of the repository; `--cpu-devices 8` tries it on a laptop. Every process
runs this same program and reads only its own rows of the batch; weights and optimizer
state are created sharded. Mesh and processes change the losses by rounding only.

TPU pods: run the same command on all hosts, as in `gcloud compute tpus tpu-vm ssh NAME
--zone ZONE --worker all --command "cd optax_matrix && python -m examples.train_sharded
--distributed --mesh fsdp=16"`; JAX finds the other hosts by itself.

GPU clusters: under SLURM, `srun --nodes 4 --ntasks-per-node 8 --gpus-per-node 8 python
-m examples.train_sharded --distributed --mesh fsdp=8,tp=4` starts one process for each
GPU, all of which must see all GPUs of their host (so without `--gpus-per-task`), and
JAX reads the rest from SLURM's variables. Without SLURM, start one process on each host
with `--coordinator HOST0:1234 --processes 4 --process I`: I counts the hosts from 0,
and HOST0 is the address of host 0, whose port all others must reach.

If a process is lost, the others end. With `--checkpoints` the same command continues,
also with fewer processes or on another mesh.
"""

import argparse
import contextlib
import dataclasses
import functools
import json
import math
import pathlib
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import grain
import jax
import numpy as np
import optax
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

import optax_matrix as om
from examples.pretrain.checkpoint import Checkpoints
from examples.pretrain.cli import at_least, positive_rate
from examples.pretrain.config import SIZES, ModelConfig
from examples.pretrain.data import BOOKS, TokenWindows, as_bytes, read_text, split
from examples.pretrain.directory import locked
from examples.pretrain.errors import Interrupted, UserError
from examples.pretrain.optimizers import OPTIMIZERS, Arena
from examples.pretrain.step import (
    CLIP,
    TrainState,
    cross_entropy,
    initial_weights,
    learning_rate,
    model_graph,
)
from examples.processes import preemption, together

RECIPES = [name for name in OPTIMIZERS if hasattr(om, name)]

# Seconds without a sign of life after which JAX gives up a process. Others that wait
# for it at a checkpoint learn of its end only then; in a step they do at once.
HEARTBEAT = 30

# The mesh axis that cuts an axis of the weights, by the name the model gives it.
# The mesh axis `data` cuts the batch alone.
RULES = {"embed": "fsdp", "heads": "tp", "kv_heads": "tp", "mlp": "tp", "vocab": "tp"}


def mesh_axes(text: str) -> dict[str, int]:
    """The axes of `fsdp=4,tp=2`."""
    pairs = [axis.split("=") for axis in text.split(",")]
    try:
        axes = {name: at_least(1)(size) for name, size in pairs}
    except (ValueError, argparse.ArgumentTypeError):
        axes = {}
    if len(axes) < len(pairs):
        raise argparse.ArgumentTypeError(
            f"must be different axes with sizes, as fsdp=4,tp=2, got {text!r}"
        )
    return axes


def rate(text: str) -> float:
    """A learning rate of the command line."""
    try:
        return positive_rate(text)
    except UserError as error:
        raise argparse.ArgumentTypeError(error) from None


def make_mesh(axes: dict[str, int] | None = None) -> Mesh:
    """A mesh of all devices of all processes; without axes, all of them are `fsdp`."""
    axes = axes or {"fsdp": jax.device_count()}
    if unknown := axes.keys() - {*RULES.values(), "data"}:
        raise SystemExit(
            f"error: --mesh must have axes of fsdp, tp and data, got {min(unknown)}."
        )
    if (count := math.prod(axes.values())) != jax.device_count():
        raise SystemExit(
            f"error: --mesh must use all {jax.device_count()} devices, got {count}."
        )
    auto = (AxisType.Auto,) * len(axes)
    return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=auto)


def sharding(weight: nnx.Variable, shape: tuple, mesh: Mesh, whole=()) -> NamedSharding:
    """Shards a weight by `RULES` where sizes divide, but not over axes in `whole`."""

    def cut(name, size):
        axis = RULES.get(name)
        cuts = axis in mesh.shape and axis not in whole and size % mesh.shape[axis] == 0
        return axis if cuts else None

    names = weight.get_metadata("out_sharding")[-len(shape) :]
    return NamedSharding(mesh, P(*map(cut, names, shape)))


def gathered_where_used(weights: nnx.State, mesh: Mesh) -> nnx.State:
    """FSDP: the model sees whole weights, each gathered when a layer reads it.

    The gradient is scattered at once, and a rematerialised layer gathers again. Left to
    itself, the partitioner may gather the activations instead; it would also do so to
    scatter the gradient of an embedding or head, which is therefore left whole.
    """
    constrain = jax.lax.with_sharding_constraint

    def gather(weight, value):
        whole = sharding(weight, value.shape, mesh, whole=("fsdp",))
        table = weight.get_metadata("out_sharding")[0] == "vocab"
        cut = whole if table else sharding(weight, value.shape, mesh)
        gathered = jax.custom_vjp(lambda value: constrain(value, whole))
        forward = lambda value: (gathered(value), None)
        gathered.defvjp(forward, lambda _, gradient: (constrain(gradient, cut),))
        return gathered(value)

    def hook(_, weight):
        weight = weight.replace(weight.get_raw_value())
        weight.set_metadata(on_get_value=gather)
        return weight

    return nnx.map_state(hook, weights)


class Program(NamedTuple):
    """What trains: compiled functions, and what they train.

    Attributes:
        init: Creates the state, sharded.
        step: The next state and the loss, from a state and windows of tokens.
        loss: The loss, from weights and windows.
        state: Shapes and shardings of the state.
    """

    init: Callable
    step: Any
    loss: Callable
    state: TrainState


def prepare(
    config: ModelConfig,
    mesh: Mesh,
    optimizer: str,
    peak: float,
    steps: int,
    clip: float | None = CLIP,
) -> Program:
    """The program; nothing runs yet. `clip` bounds the norm of all gradients."""
    abstract, shardings = weights_of(config, mesh)
    sides = "orientation" in OPTIMIZERS[optimizer].options  # Which side rotates.
    options = {"dimension_numbers": om.matrices.infer(abstract)} if sides else {}
    tx = getattr(om, optimizer)(
        learning_rate(peak, steps),
        weight_decay=Arena.weight_decay,
        placement=om.owners(mesh.axis_names, param_specs=shardings),
        **options,
    )
    if clip is not None:
        tx = optax.chain(optax.clip_by_global_norm(clip), tx)
    return program_of(config, mesh, tx)


def weights_of(config: ModelConfig, mesh: Mesh) -> tuple[nnx.State, nnx.State]:
    """Shapes of the weights, and their shardings."""
    abstract = jax.eval_shape(initial_weights, config, 0)
    place = lambda _, weight: weight.replace(sharding(weight, weight.shape, mesh))
    return abstract, nnx.map_state(place, abstract)


def program_of(
    config: ModelConfig, mesh: Mesh, tx: optax.GradientTransformation
) -> Program:
    """The program of any optimizer."""
    abstract, shardings = weights_of(config, mesh)
    specs = om.state_specs(tx, abstract, shardings)
    named = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)
    state_shardings = TrainState(shardings, named)

    def start():
        params = initial_weights(config, 0)
        return TrainState(params, tx.init(params))

    def loss(params, windows):
        whole = gathered_where_used(params, mesh)
        return cross_entropy(nnx.merge(model_graph(config), whole), windows)

    @functools.partial(jax.jit, donate_argnums=0, out_shardings=(state_shardings, None))
    def train_step(state, windows):
        value, grads = jax.value_and_grad(loss)(state.params, windows)
        updates, opt_state = tx.update(grads, state.opt_state, state.params)
        return TrainState(optax.apply_updates(state.params, updates), opt_state), value

    shaped = lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place)
    init = jax.jit(start, out_shardings=state_shardings)
    state = jax.tree.map(shaped, jax.eval_shape(start), state_shardings)
    return Program(init, train_step, jax.jit(loss), state)


def open_books(context: int) -> tuple[grain.MapDataset, ...]:
    """Endless shuffled windows of the two books: for training, and held out."""
    texts = [split(as_bytes(read_text(p))) for p in BOOKS]
    parts = (TokenWindows(part, context) for part in zip(*texts, strict=True))
    shuffled = lambda part: grain.MapDataset.source(part).seed(0).shuffle().repeat()
    return tuple(map(shuffled, parts))


def rows_of(mesh: Mesh) -> NamedSharding:
    """How the rows of a batch are sharded: over all mesh axes but `tp`."""
    return NamedSharding(mesh, P(tuple(a for a in mesh.axis_names if a != "tp")))


def load(windows: Any, number: int, batch: int, mesh: Mesh) -> jax.Array:
    """The batch of a given number, sharded over all mesh axes but `tp`.

    JAX asks each process for the rows of its own devices; no others are read.
    """
    rows = range(number * batch, (number + 1) * batch)
    read = lambda index: np.stack([windows[i] for i in rows[index[0]]])
    place = rows_of(mesh)
    return jax.make_array_from_callback((batch, len(windows[0])), place, read)


def train(args: argparse.Namespace) -> tuple[list[float], float]:
    """Trains; returns the loss of every step and the validation loss."""
    config = dataclasses.replace(SIZES[args.size], vocab=256)
    mesh = make_mesh(args.mesh)
    ways = math.prod(n for axis, n in mesh.shape.items() if axis != "tp")
    if args.batch % ways:
        raise SystemExit(f"error: --batch must be divisible by {ways}.")
    books, held_out = open_books(config.context)
    settings = (args.optimizer, args.learning_rate, args.steps)
    start, losses, every = 0, [], max(args.steps // 10, 1)
    with contextlib.ExitStack() as stack:
        checkpoints = args.checkpoints and open_checkpoints(args, config, stack)
        program = prepare(config, mesh, *settings)
        state = program.init()
        if checkpoints and checkpoints.exist():
            start, saved, losses = checkpoints.restore(portable(state))
            state = filled(state, saved)
        signal_at = stack.enter_context(preemption())
        for step in range(start + 1, args.steps + 1):
            windows = load(books, step - 1, args.batch, mesh)
            state, value = program.step(state, windows)
            losses.append(value)
            shown = step % 10 == 0 or step in (1, args.steps)
            if shown and jax.process_index() == 0:
                print(f"step {step} loss {value:.4f}", flush=True)
            stop = signal_at(step) if step < args.steps else None
            if checkpoints and (stop or step % every == 0 or step == args.steps):
                losses = [float(value) for value in losses]
                checkpoints.save(step, portable(state), losses)
            if stop:
                raise Interrupted(stop, f" at step {step}")
    batches = [load(held_out, number, args.batch, mesh) for number in range(8)]
    validation = np.mean(
        [float(program.loss(state.params, windows)) for windows in batches]
    )
    return [float(value) for value in losses], float(validation)


def portable(state: TrainState) -> TrainState:
    """The state as it is saved: the optimizer's by parameter, for meshes of any size.

    It passes through the memory of every host.
    """
    return TrainState(state.params, om.to_portable(state.opt_state, state.params))


def filled(state: TrainState, saved: TrainState) -> TrainState:
    """What was saved, as the state that this mesh has."""
    opt_state = om.from_portable(saved.opt_state, state.opt_state, state.params)
    return TrainState(saved.params, opt_state)


def open_checkpoints(args, config, stack) -> Checkpoints:
    """The checkpoints of this run, closed with the stack.

    Each one holds all losses so far. A run may be resumed on another mesh, on fewer
    devices or with fewer processes. The first process locks the directory.
    """
    flag = "--checkpoints"
    if jax.process_index() == 0:
        args.checkpoints.mkdir(parents=True, exist_ok=True)
        stack.enter_context(locked(args.checkpoints, flag))
    names = ("optimizer", "learning_rate", "steps", "batch")
    settings = {name: getattr(args, name) for name in names}
    settings["model"] = dataclasses.asdict(config)
    checkpoints = Checkpoints(args.checkpoints, settings, flag)

    def close(failure, *_):
        # Closing waits for all processes; what failed here may not fail on the others.
        if jax.process_count() == 1 or failure in (None, Interrupted):
            checkpoints.close()

    stack.push(close)
    return checkpoints


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.train_sharded")
    add = parser.add_argument
    add("--optimizer", choices=RECIPES, default="muoneq")
    add("--learning-rate", type=rate, default=5e-3)
    add("--mesh", type=mesh_axes, help="as fsdp=4,tp=2; default: all devices as fsdp")
    add("--size", choices=SIZES, default="tiny")
    add("--steps", type=at_least(1), default=100)
    windows = "windows per update, over all processes"
    add("--batch", type=at_least(1), default=16, help=windows)
    add("--losses", type=pathlib.Path, metavar="FILE", help="JSON of all losses")
    add("--checkpoints", type=pathlib.Path, metavar="DIR", help="seen by all processes")
    devices = "run on N devices made of the CPU"
    add("--cpu-devices", type=at_least(1), metavar="N", help=devices)
    add(
        "--distributed",
        action="store_true",
        help="many processes; see the module's docstring",
    )
    add("--coordinator", metavar="HOST:PORT", help="address of process 0")
    add("--processes", type=int, metavar="N")
    add("--process", type=int, metavar="I")
    args = parser.parse_args(arguments)
    if args.cpu_devices:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", args.cpu_devices)
    if (args.processes or args.process is not None) and not args.coordinator:
        parser.error("--processes and --process need --coordinator HOST:PORT")
    if args.coordinator and ":" not in args.coordinator:
        parser.error(f"--coordinator must be HOST:PORT, got {args.coordinator}")
    if args.losses and not args.losses.parent.is_dir():
        parser.error(f"--losses: there is no folder {args.losses.parent}; make it")
    if args.distributed or args.coordinator:
        jax.distributed.initialize(
            args.coordinator,
            args.processes,
            args.process,
            heartbeat_timeout_seconds=HEARTBEAT,
        )
    with together(
        f"they continue from the last checkpoint in {args.checkpoints}."
        if args.checkpoints
        else "they start over, as there is no --checkpoints."
    ):
        try:
            losses, validation = train(args)
        except (UserError, OSError) as error:
            raise SystemExit(f"error: {' '.join(str(error).split())}") from None
        except Interrupted as interruption:
            print(f"interrupted{interruption.where}", file=sys.stderr)
            raise SystemExit(128 + interruption.number) from None
    if jax.process_index() == 0:
        print(f"validation loss {validation:.4f}")
        if args.losses:
            record = {"losses": losses, "validation_loss": validation}
            args.losses.write_text(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
