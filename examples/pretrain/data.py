"""The text that `--data` names, as shuffled batches of tokens.

A training batch has the shape `(accumulate, batch / accumulate, context + 1)`: one
micro-batch after the other, each window with the token that follows it. The order
depends on the seed only. The iterator's `get_state()` is small and can be saved as
JSON.
"""

import pathlib

from examples.pretrain import streaming
from examples.pretrain.texts import from_texts, read_text
from examples.pretrain.windows import Data, Windows

DATA = pathlib.Path(__file__).parents[1] / "data"
BOOKS = DATA / "king_james.txt.gz", DATA / "moby_dick.txt.gz"


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
    if name == "c4":
        return streaming.c4(windows, tokenizer)
    paths = BOOKS if name == "books" else [pathlib.Path(name)]
    texts = [read_text(path) for path in paths]
    if tokenizer is None:
        return from_texts(texts, windows)
    encoding = streaming.load_tokenizer(tokenizer)
    encode = lambda text: encoding.encode(text.decode("utf-8", "replace"))
    return from_texts(texts, windows, encode=encode, vocab=encoding.vocab)
