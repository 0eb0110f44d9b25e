import numpy as np
import pytest

from optax_matrix import linalg
from optax_matrix.linalg.coefficients import rows_for

# Step by step in the Gram Newton-Schulz repository, without a safety factor.
PUBLISHED = [
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
]


def apply(table, s):
    for a, b, c in table:
        s = a * s + b * s**3 + c * s**5
    return s


def worst(row, lower, upper):
    grid = np.linspace(lower, upper, 20001)
    return np.max(np.abs(1 - apply([row], grid)))


def test_polar_express_reproduces_the_published_table():
    table = linalg.polar_express(5, safety=1.0)
    np.testing.assert_allclose(table, PUBLISHED, rtol=1e-10)


def test_polar_express_safety_contracts_all_rows_but_the_last():
    plain = np.array(linalg.polar_express(3, safety=1.0))
    safe = np.array(linalg.polar_express(3, safety=1.02))
    factor = 1.02 ** np.array([1, 3, 5])
    np.testing.assert_allclose(safe[:2] * factor, plain[:2], rtol=1e-12)
    np.testing.assert_array_equal(safe[2], plain[2])


def test_polar_express_converges_on_its_interval():
    s = np.geomspace(1e-3, 1, 2001)
    errors = [
        np.max(np.abs(1 - apply(linalg.polar_express(k, safety=1.0), s)))
        for k in (3, 5, 8)
    ]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-6


def closest(lower, steps=1):
    """The rows closest to one on [lower, 1], without the margins for rounding."""
    return linalg.polar_express(steps, lower, cushion=0.0, safety=1.0)


@pytest.mark.parametrize("lower", [1e-2, 0.3])
def test_the_closest_row_equioscillates(lower):
    # Chebyshev: of rows with three coefficients the best one has an error that
    # alternates in four extremal points.
    (row,) = closest(lower)
    error = 1 - apply([row], np.linspace(lower, 1.0, 200001))
    extremal = error[np.abs(error) > (1 - 1e-6) * np.max(np.abs(error))]
    signs = np.sign(extremal)
    assert np.sum(signs[1:] != signs[:-1]) == 3


def test_the_closest_row_beats_every_perturbed_row():
    (row,) = closest(0.2)
    best = worst(row, 0.2, 1.0)
    rng = np.random.default_rng(0)
    for _ in range(50):
        other = np.array(row) * (1 + 1e-2 * rng.standard_normal(3))
        assert worst(other, 0.2, 1.0) > best


def test_the_closest_rows_converge_where_more_steps_are_given():
    s = np.geomspace(1e-2, 1, 1001)
    np.testing.assert_allclose(apply(closest(1e-2, 12), s), 1, atol=1e-12)


@pytest.mark.parametrize(
    ("table", "lower", "upper"),
    [
        (linalg.JORDAN * 5, 0.68, 1.14),
        (linalg.YOU, 0.85, 1.15),
        (linalg.POLAR_EXPRESS, 0.85, 1.15),
        (linalg.CUBIC * 20, 0.999, 1.001),
        (linalg.TAYLOR * 12, 0.999, 1.001),
    ],
    ids=["jordan", "you", "polar_express", "cubic", "taylor"],
)
def test_table_maps_singular_values_near_one(table, lower, upper):
    mapped = apply(table, np.linspace(0.05, 1.0, 2001))
    assert lower < mapped.min()
    assert mapped.max() < upper


def test_jordan_figures_of_the_muoneq_notes():
    mapped = apply(linalg.JORDAN * 5, np.geomspace(0.01, 1, 100001))
    assert mapped.min() == pytest.approx(0.682, abs=1e-3)
    assert mapped.max() == pytest.approx(1.134, abs=1e-3)
    assert apply(linalg.JORDAN * 5, 1e-3) == pytest.approx(0.471, abs=1e-3)


def test_short_table_repeats_its_last_row_and_long_one_is_cut():
    assert rows_for(linalg.YOU, 7)[5:] == [linalg.YOU[-1]] * 2
    assert rows_for(linalg.YOU, 2) == list(linalg.YOU[:2])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rows_for((), 5), "`coefficients` must be rows"),
        (lambda: rows_for(((1.5, -0.5),), 5), "write a cubic as"),
        (lambda: rows_for(linalg.YOU, -1), "`steps` must be a positive int"),
        (lambda: linalg.polar_express(0), "`steps` must be a positive"),
        (lambda: linalg.polar_express(5, 0.0), "`lower` must be positive"),
        (lambda: linalg.polar_express(5, safety=0.9), "`safety` must be"),
        (lambda: linalg.polar_express(5, 2.0), "at most 1, got 2.0"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
