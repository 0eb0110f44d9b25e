r"""Sums of three digits as lines of bytes, and whether an answer is right.

A line is ``\n7+5+9=21\n``. Of the 1,000 questions a fifth is held out.
"""

import itertools

import numpy as np

TERMS, HELD_OUT = 3, 200
PROMPT = 2 * TERMS + 1  # Bytes: the end of a line, the terms, their signs.
ANSWER = 3  # Bytes at most: two digits and the end of the line.
END, ZERO = ord("\n"), ord("0")


def _questions() -> np.ndarray:
    every = np.array([*itertools.product(range(10), repeat=TERMS)])
    return np.random.default_rng(0).permutation(every)


def prompt_of(terms) -> bytes:
    """The bytes of a question."""
    return ("\n" + "+".join(map(str, terms)) + "=").encode()


def answer_of(terms) -> bytes:
    """The bytes of the right answer, with the end of the line."""
    return f"{sum(terms)}\n".encode()


def _padded(rows, width):
    return np.array([[*row, *[END] * (width - len(row))] for row in rows], np.int32)


QUESTIONS = _questions()
PROMPTS = _padded(map(prompt_of, QUESTIONS), PROMPT)
ANSWERS = _padded(map(answer_of, QUESTIONS), ANSWER)  # Padded with ends of lines.
ASKED, OTHERS = slice(HELD_OUT, None), slice(HELD_OUT)  # In training, and held out.


def counted(answers):
    """Which bytes of answers count: those up to the first end of a line.

    Args:
        answers: Of shape ``(..., ANSWER)``, of NumPy or JAX.
    """
    ends = (answers == END).astype(np.int32)
    return ends.cumsum(-1) - ends == 0


def rewards(answers, right):
    """1 for answers that agree in all bytes up to the end of the line, else 0.

    What comes after the end is not read. Right answers have an end, so an answer
    without one is wrong.

    Args:
        answers: Of shape ``(..., ANSWER)``, of NumPy or JAX.
        right: Right answers, padded with ends of lines.
    """
    agree = (answers == right) | ~counted(answers)
    return agree.all(-1).astype(np.float32)
