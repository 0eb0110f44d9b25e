"""The tasks: a model, its data, and the settings that all methods share."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import optax_matrix as om
from examples.pretrain.config import SIZES
from examples.pretrain.data import DATA, TokenWindows, as_bytes, read_text, split
from examples.pretrain.model import Llama
from examples.pretrain.optimizers import Arena
from examples.study.bench.gpt import GPT, Transformer
from examples.study.bench.vit import SIDE, ViT
from examples.study.rotation import mnist

WARM_UP, FINAL, CLIP = 0.05, 0.1, 1.0
SEARCHED = 1024  # Windows of the validation set of a search.
MAIN = "shakespeare", "books", "digits"  # Every method runs on these.


@dataclasses.dataclass(frozen=True)
class Task:
    """One problem on which optimizers are compared.

    Attributes:
        title: What it is, for tables.
        model: Function from `nnx.Rngs` to the model.
        loss: Mean loss of a model on a batch.
        batches: `batches(seed, steps, batch)`, the training data of a run: arrays with
            the axes of steps and of a batch in front.
        held_out: Function without arguments to the validation set: arrays with an axis
            of equal parts in front, each spread over the whole set; every eighth part
            makes the points of a curve.
        arena: The settings of AdamW, and which leaves are matrices.
        rate: AdamW's learning rate, where every search for a matched method begins.
        steps: Updates of the weights.
        batch: Windows or images per update.
    """

    title: str
    model: Callable[[nnx.Rngs], nnx.Module]
    loss: Callable[[Any, Any], jax.Array]
    batches: Callable[[int, int, int], Any]
    held_out: Callable[[], Any]
    arena: Arena
    rate: float
    steps: int
    batch: int

    def init(self, seed) -> nnx.State:
        """The weights of a fresh model."""
        return nnx.state(self.model(nnx.Rngs(jax.random.key(seed))), nnx.Param)

    @functools.cached_property
    def graph(self) -> nnx.GraphDef:
        """The model without its weights."""
        return nnx.graphdef(nnx.eval_shape(lambda: self.model(nnx.Rngs(0))))

    def mean_loss(self, params, batch) -> jax.Array:
        return self.loss(nnx.merge(self.graph, params), batch)


def schedule(peak, steps: int, warm_up: float = WARM_UP) -> optax.Schedule:
    """Warm-up over a share of the steps, then a cosine to a tenth of the peak."""
    first = max(int(warm_up * steps), 1)
    shape = optax.warmup_cosine_decay_schedule(0.0, 1.0, first, steps, FINAL)
    return lambda count: peak * shape(count + 1)


def _next_token(model, windows):
    """Mean loss of predicting each token of `(batch, context + 1)`."""
    tokens = windows.astype(jnp.int32)
    logits = model(tokens[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


def parts_of(rows: np.ndarray, size: int) -> np.ndarray:
    """Parts of some rows each; every part is spread over all of them."""
    return rows.reshape(size, -1, *rows.shape[1:]).swapaxes(0, 1)


class Text:
    """Windows of texts: at random places for training, side by side for validation.

    Args:
        texts: Tokens of each text; the last tenth of each is held out.
        context: Tokens that one window predicts.
        count: Windows of the validation set, spread evenly.
    """

    def __init__(self, texts: list[np.ndarray], context: int, count: int):
        parts, rest = zip(*map(split, texts), strict=True)
        self._context, self._tokens = context, np.concatenate(parts)
        ends = np.cumsum([len(part) for part in parts])
        pairs = zip((0, *ends), ends, strict=False)
        self._starts = np.concatenate([np.arange(a, b - context) for a, b in pairs])
        self._windows = TokenWindows(rest, context)
        self.held_out = parts_of(self.windows(count), 64)

    def windows(self, count: int) -> np.ndarray:
        """Windows `(count, context + 1)` that are held out, spread evenly, in order."""
        index = np.linspace(0, len(self._windows) - 1, count).astype(int)
        return np.stack([self._windows[i] for i in index])

    def batches(self, seed: int, steps: int, batch: int) -> np.ndarray:
        """Windows `(steps, batch, context + 1)`, drawn with replacement."""
        random = np.random.default_rng((seed, 1))
        starts = random.choice(self._starts, (steps, batch, 1))
        return self._tokens[starts + np.arange(self._context + 1)]


@functools.cache
def _shakespeare(search: bool = False) -> Text:
    """Tiny Shakespeare; tokens are its 65 characters in alphabetic order."""
    text = as_bytes(read_text(DATA / "tiny_shakespeare.txt.gz"))
    _, tokens = np.unique(text, return_inverse=True)
    return _text([tokens.astype(np.uint8)], 64, 1728, search)


@functools.cache
def _books(search: bool = False) -> Text:
    names = "king_james", "moby_dick"
    texts = [as_bytes(read_text(DATA / f"{name}.txt.gz")) for name in names]
    return _text(texts, SIZES["tiny"].context, 1600, search)


def _text(texts, context, count, search):
    """A text, or for a search the part of it that others train on, split again."""
    if not search:
        return Text(texts, context, count)
    return Text([split(text)[0] for text in texts], context, SEARCHED)


@functools.cache
def _digits(name: str) -> mnist.Digits:
    return mnist.load(DATA / f"{name}-images-idx3-ubyte.gz")


def _images(seed: int, steps: int, batch: int) -> dict[str, np.ndarray]:
    """Images of MNIST, moved by up to two pixels."""
    random = np.random.default_rng((seed, 2))
    digits = _digits("mnist")
    which = random.integers(len(digits.labels), size=(steps, batch))
    down, right = random.integers(-2, 3, size=(2, steps, batch, 1, 1))
    rows, columns = np.arange(SIDE)[:, None], np.arange(SIDE)
    images = (digits.pixels * 255).astype(np.uint8).reshape(-1, SIDE, SIDE)
    rows, columns = (rows + down) % SIDE, (columns + right) % SIDE
    return {
        "pixels": images[which[..., None, None], rows, columns],
        "labels": digits.labels[which],
    }


def held_out_images(first: int = 0) -> dict[str, np.ndarray]:
    """Every fourth of MNIST's test images."""
    digits = _digits("t10k")
    pixels = (digits.pixels * 255).astype(np.uint8).reshape(-1, SIDE, SIDE)
    parts = {"pixels": pixels[first::4], "labels": digits.labels[first::4]}
    return {name: parts_of(x, 125) for name, x in parts.items()}


def _classify(model, batch):
    logits = model(batch["pixels"].astype(jnp.float32) / 255)
    labels = batch["labels"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def _gpt(title: str, sizes: Transformer, steps: int, search: bool = False) -> Task:
    return Task(
        title=title,
        model=lambda rngs: GPT(sizes, 65, 64, rngs),
        loss=_next_token,
        batches=lambda *run: _shakespeare(search).batches(*run),
        held_out=lambda: _shakespeare(search).held_out,
        arena=Arena(b2=0.99, dimension_numbers=sizes.dimension_numbers()),
        rate=1e-3,
        steps=steps,
        batch=12,
    )


def _llama(title: str, search: bool = False) -> Task:
    return Task(
        title=title,
        model=lambda rngs: Llama(_TINY, rngs=rngs),
        loss=_next_token,
        batches=lambda *run: _books(search).batches(*run),
        held_out=lambda: _books(search).held_out,
        arena=Arena(),
        rate=4e-3,
        steps=400,
        batch=16,
    )


TEXTS = {"shakespeare": _shakespeare, "books": _books}
_TINY, _VIT = SIZES["tiny"], Transformer(64, 4, 2, is_causal=False)
_PLACES = om.MatrixDimensionNumbers(-2, -1)  # One matrix per place of a window.

TASKS = {
    "shakespeare": _gpt(
        "GPT-2 of nanoGPT's CPU configuration on Tiny Shakespeare",
        Transformer(128, 4, 4),
        steps=500,
    ),
    "books": _llama("tiny LLaMA on bytes of two books"),
    "digits": Task(
        title="vision transformer with convolutions on 4000 images of MNIST",
        model=lambda rngs: ViT(_VIT, rngs),
        loss=_classify,
        batches=_images,
        held_out=held_out_images,
        arena=Arena(dimension_numbers=_VIT.dimension_numbers(patches=_PLACES)),
        rate=2e-3,
        steps=300,
        batch=32,
    ),
    "large": _gpt(
        "the GPT-2 of width 256 with 6 layers on Tiny Shakespeare",
        Transformer(256, 4, 6),
        steps=400,
    ),
    # The search for chains sees nothing of what confirms them.
    "shakespeare/search": _gpt(
        "shakespeare, without its validation text",
        Transformer(128, 4, 4),
        steps=500,
        search=True,
    ),
    "books/search": _llama("books, without their validation text", search=True),
}
