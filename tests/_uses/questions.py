"""What `by_use` asks, and the answer that its question has."""

import warnings

import optax_matrix as om
from optax_matrix.matrices import UnclearUseWarning, by_use


def asked_of(fn, params, *inputs, **options):
    """The rule, and the text of its only warning."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rule = by_use(fn, params, *inputs, **options)
    assert [w.category for w in caught] == [UnclearUseWarning]
    return rule, str(caught[0].message)


def pasted(text, fn, params, *inputs):
    """The rule of a call with the argument of a question pasted into it."""
    argument = text[text.index("numbers={") :]
    names = {"fn": fn, "params": params, "inputs": inputs, "by_use": by_use, "om": om}
    return eval(f"by_use(fn, params, *inputs, {argument})", names)
