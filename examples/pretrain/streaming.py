"""Hugging Face datasets, streamed and tokenised: for text that does not fit on a disk.

Needs `pip install '.[hf]'`. Documents are encoded, each followed by the
tokenizer's end-of-text token, concatenated, and cut into windows. C4's files are
already shuffled, so they are read in order. The position in the data is the stream's
`state_dict()` and the tokens that are left over from the last document.
"""

import base64
import dataclasses
import itertools
import pathlib
from collections.abc import Callable, Iterable

import grain
import numpy as np

from examples.pretrain.data import Data, Windows, checksum
from examples.pretrain.errors import UserError, first_line

DEFAULT_TOKENIZER = "hf-internal-testing/llama-tokenizer"  # LLaMA's, 32000 tokens


@dataclasses.dataclass(frozen=True)
class Encoding:
    """Text to tokens.

    Attributes:
        encode: Text to a list of token ids, as an int32 array.
        vocab: Number of tokens.
    """

    encode: Callable[[str], np.ndarray]
    vocab: int


def load_tokenizer(name: str) -> Encoding:
    """A `tokenizers` tokenizer from a JSON file or from the Hugging Face hub."""
    tokenizers = _require("tokenizers")
    try:
        if pathlib.Path(name).is_file():
            tokenizer = tokenizers.Tokenizer.from_file(name)
        else:
            tokenizer = tokenizers.Tokenizer.from_pretrained(name)
    except Exception as error:  # The library raises plain `Exception`.
        raise UserError(
            f"Cannot load the tokenizer {name!r} ({first_line(error)}); give "
            f"--tokenizer a tokenizer.json or the name of one on the hub."
        ) from None
    ends = ("</s>", "<|endoftext|>", "[SEP]")
    end = [i for i in map(tokenizer.token_to_id, ends) if i is not None][:1]

    def encode(text):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        return np.asarray(ids + end, np.int32)

    return Encoding(encode, tokenizer.get_vocab_size())


def _require(name):
    """An optional library, or the command that installs it."""
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError:
        raise UserError(
            f"This needs the library `{name}`; run pip install '.[hf]'."
        ) from None


class StreamWindows(grain.IterDataset):
    """Windows of `context + 1` tokens cut from a stream of documents.

    Args:
        open_stream: Opens the stream at its start: an iterable of documents that may
            have `state_dict` and `load_state_dict`, as those of Hugging Face do.
        encode: Document to tokens.
        context: Tokens that one window predicts.
    """

    def __init__(self, open_stream: Callable[[], Iterable], encode, context: int):
        super().__init__()
        self.open_stream, self.encode, self.context = open_stream, encode, context

    def __iter__(self):
        return _StreamIterator(self)


class _StreamIterator(grain.DatasetIterator):
    """Starts over at the end of the stream; a saved position is always exact."""

    def __init__(self, owner: StreamWindows):
        super().__init__()
        self._owner = owner
        self._rest = np.zeros(0, np.int32)
        self._open(None)

    def _open(self, position):
        self._stream = self._owner.open_stream()
        self._taken = 0
        skip = 0
        if position is not None and hasattr(self._stream, "load_state_dict"):
            self._stream.load_state_dict(position["stream"])
            self._taken = position["taken"]
        elif position is not None:
            skip = self._taken = position["taken"]
        self._documents = itertools.islice(iter(self._stream), skip, None)

    def _next_document(self):
        document = next(self._documents, None)
        if document is None:
            if not self._taken:
                raise UserError("The stream holds no documents; choose other --data.")
            self._open(None)
            return self._next_document()
        self._taken += 1
        return document

    def __next__(self):
        context, parts, have = self._owner.context, [self._rest], len(self._rest)
        while have < context + 1:
            parts.append(self._owner.encode(self._next_document()))
            have += len(parts[-1])
        tokens = np.concatenate(parts)
        self._rest = tokens[context:]
        return tokens[: context + 1]

    def get_state(self):
        state = {"taken": self._taken, "rest": _pack(self._rest)}
        if hasattr(self._stream, "state_dict"):
            state["stream"] = self._stream.state_dict()
        return state

    def set_state(self, state):
        self._rest = _unpack(state["rest"])
        self._open(state)


def _pack(tokens):
    return base64.b64encode(tokens.astype("<i4").tobytes()).decode("ascii")


def _unpack(text):
    return np.frombuffer(base64.b64decode(text), "<i4")


def from_streams(open_train, open_validation, encoding: Encoding, windows: Windows):
    """Batches of two streams of documents.

    Args:
        open_train: Opens the training stream at its start.
        open_validation: Opens the validation stream; its first windows are used.
        encoding: Text to tokens.
        windows: How to cut the streams.

    Returns:
        The batches and the validation set.
    """
    cut = lambda stream: StreamWindows(stream, encoding.encode, windows.context)
    train = cut(open_train).batch(windows.micro_batch).batch(windows.accumulate)
    count = max(windows.validation // windows.micro_batch, 1) * windows.micro_batch
    rows = np.stack(list(itertools.islice(iter(cut(open_validation)), count)))
    rows = rows.reshape(-1, windows.micro_batch, windows.context + 1)
    return Data(train, rows, encoding.vocab, checksum([rows]))


def hugging_face(split: str, *name, **options):
    """A function that opens the `text` of a Hugging Face dataset as a stream."""
    datasets = _require("datasets")

    def open_stream():
        try:
            stream = datasets.load_dataset(
                *name, split=split, streaming=True, **options
            )
        except Exception as error:  # Network, hub and builder raise different ones.
            raise UserError(
                f"Cannot open the dataset {name[0]!r} ({first_line(error)}); check "
                f"the network, or give --data a text file or `books`."
            ) from None
        return _TextOf(stream)

    return open_stream


class _TextOf:
    """The `text` column of a stream, with the stream's position."""

    def __init__(self, stream):
        self._stream = stream
        self.state_dict, self.load_state_dict = (
            stream.state_dict,
            stream.load_state_dict,
        )

    def __iter__(self):
        return (row["text"] for row in self._stream)


def c4(windows: Windows, tokenizer: str | None = None) -> Data:
    """The English part of C4, streamed from the Hugging Face hub."""
    streams = [
        hugging_face(part, "allenai/c4", "en") for part in ("train", "validation")
    ]
    return from_streams(
        *streams, load_tokenizer(tokenizer or DEFAULT_TOKENIZER), windows
    )
