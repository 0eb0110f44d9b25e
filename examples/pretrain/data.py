"""Text as shuffled batches of tokens.

A training batch has the shape `(accumulate, batch / accumulate, context + 1)`: one
micro-batch after the other, each window with the token that follows it. The order
depends on the seed only. The iterator's `get_state()` is small and can be saved as
JSON. Texts that fit in memory are cut here; `streaming` has those that do not.
"""

import dataclasses
import gzip
import hashlib
import pathlib
import zlib
from collections.abc import Callable, Sequence

import grain
import numpy as np

from examples.pretrain.errors import UserError

DATA = pathlib.Path(__file__).parents[1] / "data"
BOOKS = DATA / "king_james.txt.gz", DATA / "moby_dick.txt.gz"
VALIDATION_SHARE = 0.1


@dataclasses.dataclass(frozen=True)
class Windows:
    """How the text is cut into batches.

    Attributes:
        context: Tokens that one window predicts.
        batch: Windows in one update of the weights.
        accumulate: Micro-batches that share one update.
        validation: Windows on which every run is evaluated.
        seed: Seed of the order of the windows.
    """

    context: int
    batch: int
    accumulate: int = 1
    validation: int = 128
    seed: int = 0

    def __post_init__(self):
        if self.batch % self.accumulate:
            raise UserError(
                f"--batch {self.batch} cannot be split into --accumulate "
                f"{self.accumulate} micro-batches; choose a multiple."
            )

    @property
    def micro_batch(self) -> int:
        return self.batch // self.accumulate


@dataclasses.dataclass(frozen=True)
class Data:
    """An endless stream of training batches, and a fixed validation set.

    Attributes:
        train: Dataset of batches `(accumulate, batch / accumulate, context + 1)`.
        validation: Tokens `(batches, micro_batch, context + 1)`.
        vocab: Number of tokens of the encoding.
        checksum: SHA-256 of the encoded text; of a stream, of the validation set.
    """

    train: grain.IterDataset
    validation: np.ndarray
    vocab: int
    checksum: str


def open_data(name: str, windows: Windows, tokenizer: str | None = None) -> Data:
    """The data that `--data` and `--tokenizer` name.

    Args:
        name: `books`, `c4`, or the path of a text file (`.gz` allowed).
        windows: How to cut the text into batches.
        tokenizer: Name or file of a Hugging Face tokenizer. None for bytes, or, with
            `c4`, for LLaMA's tokenizer.

    Returns:
        The batches and the validation set.
    """
    from examples.pretrain import streaming  # It has its batches from here.

    if name == "c4":
        return streaming.c4(windows, tokenizer)
    paths = BOOKS if name == "books" else [pathlib.Path(name)]
    texts = [read_text(path) for path in paths]
    if tokenizer is None:
        return from_texts(texts, windows)
    encoding = streaming.load_tokenizer(tokenizer)
    encode = lambda text: encoding.encode(text.decode("utf-8", "replace"))
    return from_texts(texts, windows, encode=encode, vocab=encoding.vocab)


class TokenWindows:
    """Windows of `context + 1` tokens that cover several texts, one after the other."""

    def __init__(self, texts: Sequence[np.ndarray], context: int):
        self._texts, self._context = texts, context
        counts = [max(0, (len(text) - 1) // context) for text in texts]
        self._ends = np.cumsum(counts)

    def __len__(self):
        return int(self._ends[-1])

    def __getitem__(self, index):
        which = int(np.searchsorted(self._ends, index, side="right"))
        start = int(index - (self._ends[which - 1] if which else 0)) * self._context
        return self._texts[which][start : start + self._context + 1]


def read_text(path: pathlib.Path) -> bytes:
    """The bytes of a text file, decompressed if it ends in `.gz`."""
    try:
        if path.suffix == ".gz":
            return gzip.decompress(path.read_bytes())
        return path.read_bytes()
    except FileNotFoundError:
        raise UserError(
            f"There is no file {path}; give --data a text file, `books` or `c4`."
        ) from None
    except (OSError, EOFError, zlib.error) as error:
        message = f"Cannot read {path} ({error}); give --data a text file."
        raise UserError(message) from None


def as_bytes(text: bytes) -> np.ndarray:
    """One token per byte."""
    return np.frombuffer(text, np.uint8)


def split(tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first nine tenths for training, the rest for validation."""
    border = len(tokens) - int(len(tokens) * VALIDATION_SHARE)
    return tokens[:border], tokens[border:]


def from_texts(
    texts: Sequence[bytes],
    windows: Windows,
    *,
    encode: Callable[[bytes], np.ndarray] = as_bytes,
    vocab: int = 256,
) -> Data:
    """Batches of texts that fit in memory.

    Args:
        texts: Raw texts; each one is split into training and validation.
        windows: How to cut them into batches.
        encode: Text to tokens.
        vocab: Number of different tokens of `encode`.

    Returns:
        The batches and the validation set.

    Raises:
        UserError: If the text is too short for a batch of training or validation.
    """
    tokens = [encode(text) for text in texts]
    parts = [split(text) for text in tokens]
    train = TokenWindows([part[0] for part in parts], windows.context)
    held_out = TokenWindows([part[1] for part in parts], windows.context)
    _check_length(train, held_out, windows)
    dataset = (
        grain.MapDataset.source(train)
        .seed(windows.seed)
        .shuffle()
        .repeat()
        .batch(windows.micro_batch, drop_remainder=True)
        .batch(windows.accumulate, drop_remainder=True)
    )
    options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)
    rows = _spread(held_out, windows)
    return Data(dataset.to_iter_dataset(options), rows, vocab, checksum(tokens))


def checksum(tokens: Sequence[np.ndarray]) -> str:
    """SHA-256 of several arrays of tokens, as a hexadecimal number."""
    digest = hashlib.sha256()
    for array in tokens:
        digest.update(str((array.shape, array.dtype.str)).encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _check_length(train, held_out, windows):
    if len(train) >= windows.batch and len(held_out) >= windows.micro_batch:
        return
    need = max(
        windows.batch / (1 - VALIDATION_SHARE), windows.micro_batch / VALIDATION_SHARE
    )
    raise UserError(
        f"The text is too short: {len(train)} training and {len(held_out)} validation "
        f"windows of {windows.context} tokens for a batch of {windows.batch}; give "
        f"about {int(need + 2) * windows.context:,} tokens or more, or a smaller "
        f"--batch or --context."
    )


def _spread(held_out, windows):
    """Evenly spaced validation windows, in whole micro-batches."""
    count = min(windows.validation, len(held_out))
    count = max(count // windows.micro_batch, 1) * windows.micro_batch
    index = np.linspace(0, len(held_out) - 1, count).astype(int)
    rows = np.stack([held_out[i] for i in index])
    return rows.reshape(-1, windows.micro_batch, windows.context + 1)
