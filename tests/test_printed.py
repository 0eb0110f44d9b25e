"""Notebooks show tables: the last value of a cell looks as it is printed."""

import jax.numpy as jnp
import numpy as np
import pytest

import optax_matrix as om

ONE = np.ones(1)
PARAMS = {"up": np.ones((4, 8), "f"), "down": np.ones((8, 4), "f")}


def loss(params, x):
    return jnp.sum((jnp.tanh(x @ params["up"]) @ params["down"]) ** 2)


class Printer:
    """What IPython passes to ``_repr_pretty_``."""

    shown = ""

    def text(self, text):
        self.shown += text


@pytest.mark.parametrize(
    "make",
    [
        lambda: om.describe(PARAMS),
        lambda: om.matrices.by_use(loss, PARAMS, np.ones((2, 4), "f")),
        lambda: om.diagnostics.state_bytes(om.muoneq(1e-3), PARAMS),
        lambda: om.tuning.Sweep({1e-3: ONE[None]}, {1e-3: ONE}, "a loss", True),
    ],
    ids=["describe", "by_use", "state_bytes", "sweep"],
)
def test_a_notebook_shows_what_print_shows(make):
    result, printer = make(), Printer()
    result._repr_pretty_(printer, False)
    assert printer.shown == str(result)
    assert "\n" in printer.shown
    assert printer.shown != repr(result)
