"""Streams of documents: cut, resumed, and read through Hugging Face `datasets`."""

import importlib.util
import itertools
import json
import sys

import numpy as np
import pytest

from examples.pretrain import streaming
from examples.pretrain.data import Windows, open_data
from examples.pretrain.errors import UserError
from examples.pretrain.streaming import Encoding, StreamWindows, from_streams

DOCUMENTS = ["one", "two words", "", "and a third, longer document", "end"]
WINDOWS = Windows(context=4, batch=2, validation=4)


def encode(text):
    """Bytes, ended by a zero."""
    return np.frombuffer(text.encode() + b"\0", np.uint8).astype(np.int32)


ENCODING = Encoding(encode, 256)
ENDLESS = np.concatenate([encode(text) for text in DOCUMENTS] * 20)


class Resumable:
    """A stream with a position of its own, as `datasets` has."""

    def __init__(self):
        self.position = 0

    def __iter__(self):
        while self.position < len(DOCUMENTS):
            self.position += 1
            yield DOCUMENTS[self.position - 1]

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


STREAMS = {"plain": lambda: DOCUMENTS, "resumable": Resumable}


@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS)
def test_windows_overlap_by_one_and_start_over_at_the_end(stream):
    got = list(itertools.islice(StreamWindows(stream, encode, 4), 40))
    want = [ENDLESS[4 * i : 4 * i + 5] for i in range(40)]
    np.testing.assert_array_equal(got, want)
    assert 3 * len(ENDLESS) / 20 < 4 * 40  # several epochs


@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS)
@pytest.mark.parametrize("taken", [0, 1, 5, 17])
def test_position_is_resumed_through_json(stream, taken):
    data = from_streams(stream, stream, ENCODING, WINDOWS)
    first = iter(data.train)
    for _ in range(taken):
        next(first)
    second = iter(data.train)
    second.set_state(json.loads(json.dumps(first.get_state())))
    for _ in range(9):
        np.testing.assert_array_equal(next(first), next(second))


def test_batches_and_validation_have_the_agreed_shapes():
    data = from_streams(lambda: DOCUMENTS, lambda: DOCUMENTS, ENCODING, WINDOWS)
    assert next(iter(data.train)).shape == (1, 2, 5)
    np.testing.assert_array_equal(
        data.validation.reshape(-1, 5), [ENDLESS[4 * i : 4 * i + 5] for i in range(4)]
    )


def test_empty_stream_is_refused():
    with pytest.raises(UserError, match="no documents"):
        from_streams(list, list, ENCODING, WINDOWS)


@pytest.mark.parametrize("library", ["datasets", "tokenizers"])
def test_missing_library_names_the_extra(monkeypatch, library):
    monkeypatch.setattr(streaming, "load_tokenizer", lambda _: ENCODING)
    if library == "tokenizers":
        monkeypatch.undo()
        monkeypatch.setattr(streaming, "hugging_face", lambda *_: DOCUMENTS)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(UserError, match=f"`{library}`.*'.\\[hf\\]'"):
        open_data("c4", WINDOWS)


def needs(library):
    found = importlib.util.find_spec(library) is not None
    return pytest.mark.skipif(not found, reason=f"{library} is not installed")


@needs("tokenizers")
def test_tokenizer_file(tmp_path):
    import tokenizers

    words = {"[UNK]": 0, "one": 1, "two": 2, "words": 3, "</s>": 4}
    model = tokenizers.models.WordLevel(words, unk_token="[UNK]")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    encoding = streaming.load_tokenizer(str(path))
    assert encoding.vocab == 5
    np.testing.assert_array_equal(encoding.encode("two words one"), [2, 3, 1, 4])
    text = tmp_path / "text.txt"
    text.write_text("one two words " * 40)
    data = open_data(str(text), WINDOWS, tokenizer=str(path))
    assert data.vocab == 5
    assert set(np.unique(data.validation)) == {1, 2, 3}


@needs("datasets")
@pytest.mark.filterwarnings("default")
def test_datasets_stream(tmp_path):
    path = tmp_path / "documents.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in DOCUMENTS))
    stream = streaming.hugging_face("train", "json", data_files=str(path))
    data = from_streams(stream, stream, ENCODING, WINDOWS)
    first = iter(data.train)
    got = np.concatenate([next(first).reshape(-1, 5) for _ in range(13)])
    want = [ENDLESS[4 * i : 4 * i + 5] for i in range(26)]
    np.testing.assert_array_equal(got, want)
    second = iter(data.train)
    second.set_state(json.loads(json.dumps(first.get_state())))
    for _ in range(15):
        np.testing.assert_array_equal(next(first), next(second))
    with pytest.raises(UserError, match="Cannot open the dataset"):
        streaming.hugging_face("train", "json", data_files="/nowhere.jsonl")()
