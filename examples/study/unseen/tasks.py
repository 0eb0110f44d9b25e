"""The data and the losses of the six tasks."""

import functools
import gzip
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import optax_matrix as om
from examples.pretrain.data import DATA
from examples.pretrain.optimizers import Arena
from examples.study.bench import tasks as bench
from examples.study.bench.tasks import Task, parts_of
from examples.study.equal.sets import held_out as equal_sets
from examples.study.unseen import models

SPLIT = 4  # Seed of the division into training, validation and test sets.
NEIGHBOURS, NOISE = 8, 0.5


def _logits(logits, labels):
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def _next_character(model, windows):
    tokens = windows.astype(jnp.int32)
    return _logits(model(tokens[:, :-1]), tokens[:, 1:])


def _class(model, batch):
    return _logits(model(batch["pixels"].astype(jnp.float32)), batch["labels"])


def _clean(model, batch):
    return jnp.square(model(batch["noisy"]) - batch["pixels"]).mean()


def _visits(model, batch):
    """Half of Poisson's deviance, which is zero for a perfect prediction."""
    log_rate, visits = model(batch["rows"]), batch["visits"]
    least = visits - visits * jnp.log(jnp.maximum(visits, 1))
    return (jnp.exp(log_rate) - visits * log_rate - least).mean()


def _of_nodes(model, batch):
    graph = _graph()
    logits = model(graph["nodes"], graph["neighbours"])
    each = optax.softmax_cross_entropy_with_integer_labels(logits, graph["labels"])
    return (each * batch).sum() / batch.sum()


def _table(name):
    with gzip.open(DATA / name, "rt") as file:
        skip = 1 if name.startswith("doctor") else 0
        return np.loadtxt(file, delimiter=",", skiprows=skip, dtype=np.float32)


def _divided(count, shares):
    """Places of the training, validation and test sets."""
    order = np.random.default_rng(SPLIT).permutation(count)
    ends = (np.cumsum(shares) * count).astype(int)
    return np.split(order, ends[:-1])


@functools.cache
def _small_digits() -> dict[str, dict[str, np.ndarray]]:
    table = _table("small_digits.csv.gz")
    pixels = table[:, :-1].reshape(-1, 8, 8) / 16
    labels = table[:, -1].astype(np.int32)
    return _sets({"pixels": pixels, "labels": labels}, (2 / 3, 1 / 6, 1 / 6))


@functools.cache
def _doctor_visits() -> dict[str, dict[str, np.ndarray]]:
    table = _table("doctor_visits.csv.gz")
    rows = table[:, 1:]
    rows = (rows - rows.mean(0)) / rows.std(0)
    return _sets({"rows": rows, "visits": table[:, 0]}, (0.7, 0.15, 0.15))


def _sets(arrays, shares):
    places = _divided(len(next(iter(arrays.values()))), shares)
    names = "train", "validation", "test"
    return {
        name: {key: x[place] for key, x in arrays.items()}
        for name, place in zip(names, places, strict=True)
    }


@functools.cache
def _graph() -> dict[str, np.ndarray]:
    """The small digits, each with the eight that are nearest to it."""
    table = _table("small_digits.csv.gz")
    nodes = table[:, :-1] / 16
    squares = (nodes**2).sum(1)
    distances = squares[:, None] - 2 * nodes @ nodes.T + squares
    neighbours = np.argsort(distances, axis=1, kind="stable")[:, 1 : NEIGHBOURS + 1]
    labels = table[:, -1].astype(np.int32)
    return {"nodes": nodes, "neighbours": neighbours, "labels": labels}


def _masks() -> dict[str, np.ndarray]:
    count = len(_graph()["labels"])
    places = _divided(count, (0.1, 0.4, 0.5))
    names = "train", "validation", "test"
    return {
        name: np.isin(np.arange(count), place).astype(np.float32)
        for name, place in zip(names, places, strict=True)
    }


def _drawn(arrays, seed, steps, batch):
    """Batches, drawn with replacement."""
    count = len(next(iter(arrays.values())))
    which = np.random.default_rng((seed, 3)).integers(count, size=(steps, batch))
    return {name: x[which] for name, x in arrays.items()}


def _whole_parts(arrays, size):
    """Equal parts; what is left over at the end is not used."""
    return {
        name: parts_of(x[: len(x) // size * size], size) for name, x in arrays.items()
    }


def _images(seed, steps, batch):
    found = bench.TASKS["digits"].batches(seed, steps, batch)
    return found | {"pixels": found["pixels"].astype(np.float32) / 255}


def _noisy(seed, steps, batch):
    clean = _images(seed, steps, batch)["pixels"]
    return _with_noise(clean, np.random.default_rng((seed, 4)))


def _with_noise(pixels, random):
    noise = random.standard_normal(pixels.shape, np.float32)
    return {"pixels": pixels, "noisy": pixels + NOISE * noise}


def held_out(task: str, which: str) -> Any:
    """The ``validation`` or ``test`` set of a task, in equal parts."""
    if task == "gru":
        return equal_sets("shakespeare", which)
    if task in ("convnet", "unet"):
        images = equal_sets("digits", which)
        pixels = images["pixels"].astype(np.float32) / 255
        if task == "convnet":
            return images | {"pixels": pixels}
        return _with_noise(pixels, np.random.default_rng(5))
    if task == "graph":
        return _masks()[which][None]
    arrays = _small_digits() if task == "mixer" else _doctor_visits()
    return _whole_parts(arrays[which], 10 if task == "mixer" else 50)


# Name: title, model, loss, training batches, steps, size of a batch.
_TASKS = {
    "gru": (
        "GRU on the characters of Tiny Shakespeare",
        lambda rngs: models.CharGRU(65, 64, 128, rngs),
        _next_character,
        lambda *run: bench.TASKS["shakespeare"].batches(*run),
        *(300, 16),
    ),
    "mixer": (
        "MLP-mixer on 1,198 digits of 8 x 8 pixels",
        models.Mixer,
        _class,
        lambda *run: _drawn(_small_digits()["train"], *run),
        *(250, 64),
    ),
    "convnet": (
        "convolutional network on 4,000 images of MNIST",
        models.ConvNet,
        _class,
        _images,
        *(300, 32),
    ),
    "unet": (
        "U-Net that removes noise from images of MNIST",
        models.UNet,
        _clean,
        _noisy,
        *(300, 16),
    ),
    "graph": (
        "graph network on 1,797 digits, each joined to the nearest eight; 179 labels",
        lambda rngs: models.GraphNet(64, 64, 10, rngs),
        _of_nodes,
        lambda _, steps, __: np.stack([_masks()["train"]] * steps),
        *(200, 1),
    ),
    "tabular": (
        "MLP with residual blocks that predicts visits to a doctor from nine columns",
        lambda rngs: models.Tabular(9, 64, rngs),
        _visits,
        lambda *run: _drawn(_doctor_visits()["train"], *run),
        *(400, 128),
    ),
}
TASKS = {
    name: Task(
        title=title,
        model=model,
        loss=loss,
        batches=batches,
        held_out=functools.partial(held_out, name, "validation"),
        arena=Arena(),
        rate=4e-3,
        steps=steps,
        batch=batch,
    )
    for name, (title, model, loss, batches, steps, batch) in _TASKS.items()
}


@functools.cache
def rule(name: str) -> Any:
    """Which leaves are matrices, read from the model's own use of them."""
    task = TASKS[name]
    batch = jax.tree.map(lambda x: x[0], task.batches(0, 1, task.batch))
    model = task.model(nnx.Rngs(0))
    return om.matrices.by_use(task.loss, model, batch)
