"""Windows of text: what is in them, in which order, from where again."""

import dataclasses
import gzip

import numpy as np
import pytest

from examples.pretrain.data import (
    DATA,
    TokenWindows,
    Windows,
    from_texts,
    open_data,
    split,
)
from examples.pretrain.errors import UserError

WINDOWS = Windows(context=8, batch=4, accumulate=2, validation=6)
TEXT = bytes(range(256)) * 4


def take(iterator, count):
    return np.stack([next(iterator) for _ in range(count)])


def test_windows_lie_side_by_side_within_their_text():
    texts = [np.arange(0, 20), np.arange(100, 117), np.arange(3)]
    windows = TokenWindows(texts, 8)
    got = [list(windows[i]) for i in range(len(windows))]
    assert got == [
        list(range(0, 9)),
        list(range(8, 17)),
        list(range(100, 109)),
        list(range(108, 117)),
    ]


def test_last_tenth_is_for_validation():
    train, held_out = split(np.arange(105))
    assert list(held_out) == list(range(95, 105))
    assert list(train) == list(range(95))


def test_an_epoch_holds_every_training_window_once():
    data = from_texts([TEXT], WINDOWS)
    batches = take(iter(data.train), 28)  # 115 windows, 4 in a batch
    assert batches.shape == (28, 2, 2, 9)
    starts = batches.reshape(-1, 9)[:, :2].tolist()
    train, _ = split(np.frombuffer(TEXT, np.uint8))
    want = TokenWindows([train], 8)
    available = sorted(want[i][:2].tolist() for i in range(len(want)))
    for start in starts:
        available.remove(start)  # raises for a window seen twice or not of this text
    assert len(available) == 115 - 28 * 4


def test_order_is_a_function_of_the_seed():
    def first(seed):
        windows = dataclasses.replace(WINDOWS, seed=seed)
        return take(iter(from_texts([TEXT], windows).train), 5)

    np.testing.assert_array_equal(first(0), first(0))
    assert not np.array_equal(first(0), first(1))


def test_epochs_differ():
    batches = take(iter(from_texts([TEXT], WINDOWS).train), 56)
    assert not np.array_equal(batches[:28], batches[28:])


def test_accumulation_cuts_the_same_batches():
    whole = from_texts([TEXT], dataclasses.replace(WINDOWS, accumulate=1))
    a, b = take(iter(whole.train), 4), take(iter(from_texts([TEXT], WINDOWS).train), 4)
    np.testing.assert_array_equal(a.reshape(4, 4, 9), b.reshape(4, 4, 9))


def test_position_is_resumed():
    data = from_texts([TEXT], WINDOWS)
    first = iter(data.train)
    take(first, 31)
    state = first.get_state()
    second = iter(data.train)
    second.set_state(state)
    np.testing.assert_array_equal(take(first, 7), take(second, 7))


def test_validation_is_fixed_and_from_the_held_out_part():
    data = from_texts([TEXT], WINDOWS)
    other = from_texts([TEXT], dataclasses.replace(WINDOWS, seed=5))
    np.testing.assert_array_equal(data.validation, other.validation)
    assert data.validation.shape == (3, 2, 9)
    _, held_out = split(np.frombuffer(TEXT, np.uint8))
    for row in data.validation.reshape(-1, 9):
        assert bytes(row) in bytes(held_out)


def test_shipped_books():
    data = open_data("books", Windows(context=64, batch=16))
    assert data.vocab == 256
    assert data.validation.shape == (8, 16, 65)
    text = bytes(next(iter(data.train))[0, 0]).decode("utf-8", "replace")
    assert " the " in bytes(data.validation).decode("utf-8", "replace")
    assert len(text) > 32
    for name, opening in (("moby_dick", "Sub-Sub"), ("king_james", "In the beginning")):
        content = gzip.decompress((DATA / f"{name}.txt.gz").read_bytes())
        assert opening in content.decode("utf-8")[:200]
        assert f"{len(content):,}" in (DATA / "README.md").read_text()


def test_local_file(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(TEXT)
    want = take(iter(from_texts([TEXT], WINDOWS).train), 3)
    np.testing.assert_array_equal(
        take(iter(open_data(str(path), WINDOWS).train), 3), want
    )


@pytest.mark.parametrize(
    ("name", "content", "hint"),
    [
        ("missing.txt", None, "There is no file"),
        ("short.txt", b"too short", "too short"),
        ("broken.gz", b"not gzip", "Cannot read"),
    ],
)
def test_bad_files_are_refused(tmp_path, name, content, hint):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=hint):
        open_data(str(path), WINDOWS)


def test_the_checksum_is_that_of_the_tokens():
    sums = {
        from_texts(texts, windows).checksum
        for windows in (WINDOWS, dataclasses.replace(WINDOWS, seed=5, batch=8))
        for texts in ([TEXT], [TEXT])
    }
    others = ([TEXT[:-1]], [TEXT[:-1] + b"!"], [TEXT[:512], TEXT[512:]])
    assert len(sums) == 1
    assert len(sums.union(from_texts(t, WINDOWS).checksum for t in others)) == 4


def test_enough_text_by_the_message_is_enough(tmp_path):
    """The number of tokens in the error message is enough."""
    path = tmp_path / "text.txt"
    path.write_bytes(b"x")
    with pytest.raises(UserError) as caught:
        open_data(str(path), WINDOWS)
    words = str(caught.value).replace(",", "").split()
    need = int(words[words.index("about") + 1])
    path.write_bytes(b"x" * need)
    assert open_data(str(path), WINDOWS).validation.shape[0] >= 1


def test_indivisible_batch_is_refused():
    with pytest.raises(UserError, match="multiple"):
        Windows(context=8, batch=4, accumulate=3)
