"""Polynomials whose composition takes a range of eigenvalues to one."""

import functools
import math

from optax_matrix.linalg._remez import Quadratic, closest_to_one

# The first steps keep the largest eigenvalues above this number. With 0.3 as many steps
# are needed in all, and roots of large eigenvalues lose digits; 0.7 needs one more.
LEAST = 0.5
# Rounding grows up to five times in a step where an eigenvalue is one, so that it has
# to stay below.
_SAFETY = 1.002


@functools.lru_cache
def root_polynomials(p: int, eps: float) -> tuple[Quadratic, ...]:
    r"""Rows ``(a, b, c)`` that take eigenvalues in ``[eps / 16, 1]`` to one.

    A row is a step :math:`x \mapsto x (a + b x + c x^2)^p`. In :math:`s = x^{1/p}` that
    is a polynomial with the powers 1, p + 1 and 2 p + 1. Each is the closest to one on
    the interval that the ones before leave; as long as some eigenvalues are small, that
    of which the least value is `LEAST`. The last one is Taylor's.
    """
    low, high = 1e-6, 0.99
    for _ in range(50):
        middle = math.sqrt(low * high)
        least = _fit(middle, p)[1] ** p
        low, high = (middle, high) if least < LEAST else (low, middle)
    rows, l, u = [], (eps / 16) ** (1 / p), 1.0
    row, least = _fit(high, p)
    row, least = _scaled(row, 1 / _SAFETY), least / _SAFETY
    while l < high:
        rows.append(row)
        l = min(_value(row, l, p), least)
    while l < (1 - eps ** (1 / 3) / 4) * u:
        row, least = _fit(l / u, p)
        center = 2 / (1 + least)
        a, b, c = _scaled(row, center)
        rows.append((a / u, b / u ** (p + 1), c / u ** (2 * p + 1)))
        l, u = center * least, center
    linear, square = 1 / p, (p + 1) / (2 * p * p)
    rows.append((1 + linear + square, -linear - 2 * square, square))
    return tuple(rows)


def _fit(l: float, p: int) -> tuple[Quadratic, float]:
    """The row closest to one on ``[l, 1]``, divided by its maximum, and its least."""
    row, error = closest_to_one(l, p)
    return _scaled(row, 1 / (1 + error)), (1 - error) / (1 + error)


def _scaled(row: Quadratic, factor: float) -> Quadratic:
    a, b, c = row
    return a * factor, b * factor, c * factor


def _value(row: Quadratic, s: float, p: int) -> float:
    a, b, c = row
    return s * (a + b * s**p + c * s ** (2 * p))
