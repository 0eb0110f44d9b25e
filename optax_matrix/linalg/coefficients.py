r"""Coefficient tables of odd polynomials that bring singular values to one.

A row ``(a, b, c)``, a `Quintic`, is the polynomial :math:`p(x) = a x + b x^3 + c x^5`.
A table has one row per step; if there are more steps than rows, the last row is
repeated. The tables here are either constants from the literature or computed from an
interval that contains the singular values.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from optax_matrix._arguments import check_positive_int

Quintic = tuple[float, float, float]
Table = tuple[Quintic, ...]

# Jordan et al., Muon (2024): the largest slope at zero for which [0, 1] stays bounded.
# Five steps map [0.01, 1] to [0.68, 1.13]; they do not converge to one.
JORDAN: Table = ((3.4445, -4.7750, 2.0315),)

# The classical Newton-Schulz iteration: converges to one for every singular value in
# (0, sqrt(3)).
CUBIC: Table = ((1.5, -0.5, 0.0),)

# Taylor polynomial of degree five at one: cubic convergence on (0, 1.5].
TAYLOR: Table = ((15 / 8, -5 / 4, 3 / 8),)

# You (2025), the "dion" preset of optax and the default of Gram Newton-Schulz:
# tuned per step for singular values in (0, 1].
YOU: Table = (
    (4.0848, -6.8946, 2.9270),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
)

# Polar Express (arXiv 2505.16932), as in the Dion repository: five steps with a safety
# factor of 1.02, so that rounding in bfloat16 cannot leave the interval.
POLAR_EXPRESS: Table = (
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
)

# Turbo-Muon (2025), four steps for a matrix scaled by the AOL row sums, whose
# singular values start closer to one than after a Frobenius scaling.
AOL: Table = (
    (4.0098, -7.0585, 2.4635),
    (3.4585, -5.5479, 2.5959),
    (2.7573, -3.2939, 1.4254),
    (2.7215, -3.0494, 1.3169),
)


def rows_for(
    table: Sequence[Sequence[float]] | np.ndarray, steps: int
) -> list[Quintic]:
    """One row per step as floats, the last one repeated; ValueError if malformed."""
    hashable: Any = table
    try:
        return list(_known_rows(hashable, steps))
    except TypeError:  # Of arguments that have no hash.
        return _rows(table, steps)


def _rows(table: Any, steps: Any) -> list[Quintic]:
    check_positive_int("steps", steps)
    if not _is_table(table):
        raise ValueError(
            f"`coefficients` must be rows of three numbers, got {table!r}; "
            "write a cubic as (a, b, 0.0)."
        )
    rows: Any = [tuple(float(c) for c in row) for row in table]
    return (rows + rows[-1:] * steps)[:steps]


# Every trace of a step asks for the same rows.
_known_rows = functools.lru_cache(typed=True)(_rows)


def _is_table(table: Any) -> bool:
    try:
        array = np.asarray(table, np.float64)
    except (TypeError, ValueError):
        return False
    return array.ndim == 2 and array.shape[1] == 3 and len(array) > 0


def started_below(table: Table, factor: float) -> Table:
    """Rewrites a table so that its first step sees the matrix divided by a factor.

    Where a program divides by more than the Frobenius norm, as those of Dion and of
    modded-nanogpt do before `POLAR_EXPRESS` (1.02), this is the same iteration.

    Args:
        table: Rows ``(a, b, c)``.
        factor: What the matrix is divided by, besides its norm; above zero.

    Returns:
        A table with another first row.

    Raises:
        ValueError: If ``factor`` is not above zero.

    Examples:
        >>> started_below(((1.5, -0.5, 0.0),), 2.0)
        ((0.75, -0.0625, 0.0),)
    """
    if not factor > 0:
        raise ValueError(
            f"`factor` must be above zero, got {factor!r}; 1 leaves the table alone."
        )
    return (_scale_input(table[0], 1 / factor), *table[1:])


@functools.lru_cache
def polar_express(
    steps: int,
    lower: float = 1e-3,
    *,
    cushion: float = 0.02407327424182761,
    safety: float = 1.01,
) -> Table:
    r"""Compute the Polar Express table: greedily chosen minimax odd quintics.

    Step ``t`` takes the quintic that minimizes the largest error
    :math:`\max_{[l_t, u_t]} |1 - p_t(x)|`; the image of the interval under it is the
    next interval. This greedy choice gives the optimal composition.

    Args:
        steps: Number of rows.
        lower: Smallest singular value to map to one, if the largest is one.
        cushion: A step is fitted on ``[max(l, cushion * u), u]``. This limits the slope
            at zero and with it the growth of rounding errors.
        safety: All rows but the last are replaced by ``p(x / safety)``, so that
            rounding cannot leave the interval; 1 for exact arithmetic.

    Returns:
        A table of ``steps`` rows.

    Raises:
        ValueError: If ``steps``, ``lower`` or ``safety`` is out of range.

    Examples:
        >>> [[round(c, 4) for c in row] for row in polar_express(2, safety=1.0)]
        [[8.2872, -23.5959, 17.3004], [4.1071, -2.9478, 0.5448]]

    References:
        Amsel et al., `The Polar Express <https://arxiv.org/abs/2505.16932>`_, 2025.
    """
    check_positive_int("steps", steps)
    if not 0 < lower <= 1:
        raise ValueError(
            f"`lower` must be positive and at most 1, got {lower!r}; pass a smallest "
            "singular value relative to the largest."
        )
    if not safety >= 1.0:
        raise ValueError(
            f"`safety` must be at least 1, got {safety!r}; pass 1 for exact arithmetic."
        )

    rows, l, u = [], lower, 1.0
    for _ in range(steps):
        row = _optimal_quintic(max(l, cushion * u), u)
        # With the cushion the error on [l, u] is not centered; center it again.
        row = _scale_output(row, 2 / (_evaluate(row, l) + _evaluate(row, u)))
        rows.append(row)
        # The minimum is at l; the maximum lies as far above one as it lies below.
        l = min(_evaluate(row, l), 1.0)
        u = 2 - l
    return (*(_scale_input(row, 1 / safety) for row in rows[:-1]), rows[-1])


def closest_to_one(l: float, p: int) -> tuple[Quintic, float]:
    """``(a, b, c)`` of ``s (a + b s**p + c s**(2 p))`` on ``[l, 1]``, and its error.

    The error of the closest polynomial is largest at four points, with alternating
    signs. One with a smaller error at all four would differ from it by a polynomial
    with three positive zeros, but three terms have at most two. Remez' exchange finds
    the points; the first guess is exact as l approaches one.
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


def _optimal_quintic(l: float, u: float) -> Quintic:
    if l >= (1 - 5e-6) * u:  # the error is below float64's resolution
        return _scale_input(TAYLOR[0], 1 / u)
    row, _ = closest_to_one(l / u, 2)
    return _scale_input(row, 1 / u)


def _evaluate(row: Quintic, x: float) -> float:
    a, b, c = row
    return a * x + b * x**3 + c * x**5


def _scale_input(row: Quintic, s: float) -> Quintic:
    a, b, c = row
    return (a * s, b * s**3, c * s**5)


def _scale_output(row: Quintic, s: float) -> Quintic:
    a, b, c = row
    return (a * s, b * s, c * s)
