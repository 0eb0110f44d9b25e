"""`walk` runs a test for each value and lists all that fail."""

import pytest
from _walks import walk


def of(*values):
    @walk(("name", "number"), [(f"case{x}", x) for x in values])
    def check(name, number, low):
        assert number > low, f"{name} is too small"
        if number > 9:
            pytest.fail("too large")
        with pytest.raises(ZeroDivisionError):
            assert number / (number % 2)

    return check


def test_all_values_that_fail_are_listed():
    with pytest.raises(AssertionError) as error:
        of(2, 0, 4, 11, 5)(low=1)
    found = str(error.value).split("\n")
    assert found[0] == "3 of 5 fail:"
    assert found[1].startswith("case0-0: AssertionError: case0 is too small")
    assert found[2] == "case11-11: Failed: too large"
    assert found[3].startswith("case5-5: Failed: DID NOT RAISE")
    assert str(error.value.__cause__).startswith("case0 is too small")


def test_values_that_pass_are_silent():
    of(2, 4)(low=1)


def test_a_walk_needs_values():
    with pytest.raises(AssertionError):
        walk("name", [])


def test_cases_may_have_labels_but_no_marks():
    @walk("x", [pytest.param(lambda: 1, id="one")])
    def check(x):
        assert x() > 1

    with pytest.raises(AssertionError, match="one: AssertionError"):
        check()
    with pytest.raises(AssertionError, match="has marks"):
        walk("name", [pytest.param("a", marks=pytest.mark.slow)])


@pytest.mark.parametrize("other", ["x", "y"])
@walk("name", ["a", "b"])
def test_other_arguments_stay_cases_and_fixtures(name, other, tmp_path):
    assert tmp_path.is_dir()
    assert name + other in {"ax", "ay", "bx", "by"}
