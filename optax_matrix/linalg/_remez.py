"""Polynomials that are closest to one on an interval."""

import math

import numpy as np

Quadratic = tuple[float, float, float]


def closest_to_one(l: float, p: int) -> tuple[Quadratic, float]:
    """``(a, b, c)`` of ``s (a + b s**p + c s**(2 p))`` on ``[l, 1]``, and its error.

    By Remez' exchange of the points where the error is largest; the first guess is
    exact as l approaches one.
    """
    nodes = np.array([l, (3 * l + 1) / 4, (l + 3) / 4, 1.0])
    a = b = c = error = 0.0
    for _ in range(200):
        powers = nodes[:, None] ** np.array([1, p + 1, 2 * p + 1])
        system = np.column_stack([powers, [1.0, -1.0, 1.0, -1.0]])
        a, b, c, new = map(float, np.linalg.solve(system, np.ones(4)))
        if abs(new - error) <= 1e-15:
            break
        error = new
        # The derivative is a quadratic in s**p.
        half, last = (p + 1) * b / 2, (2 * p + 1) * c
        root = math.sqrt(half * half - a * last)
        inner = [((-half + sign * root) / last) ** (1 / p) for sign in (-1, 1)]
        nodes = np.array([l, *inner, 1.0])
    return (a, b, c), abs(error)
