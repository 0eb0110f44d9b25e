"""Equinox: weights are `(out, in)`, and `weight` is also the name of other parameters.

``om.matrices.by_use(model, batch)``, or ``by_use(loss, model, batch)``, reads what each
of them is from the model. This rule is for where only its arrays are at hand.
The optimizer goes where optax's was, in `init` with `eqx.filter(model,
eqx.is_inexact_array)`; `update` takes the whole model, as in Equinox's examples.
"""

import dataclasses

import optax_matrix as om
from optax_matrix import MatrixDimensionNumbers


def rule(*others: str) -> om.matrices.PathRule:
    """A rule for `eqx.nn.Linear`, attention and convolutions `(out, in, h, w)`.

    Args:
        *others: Regular expressions of paths with the other optimizer besides
            embeddings: the head, and learned positions, for example `"^head/"`.
    """
    numbers = {
        r"conv[^/]*/weight$": MatrixDimensionNumbers((1, 2, 3), 0),
        r"weight$": MatrixDimensionNumbers(1, 0),
    }
    found = om.matrices.by_path(exclude="|".join(("embed", *others)), numbers=numbers)
    # Without patterns, models that lack one of them are not warned of.
    return dataclasses.replace(found, patterns=())
