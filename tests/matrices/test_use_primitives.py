"""Every primitive of ``jax.lax`` is followed, or known to make parameters unclear."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from optax_matrix.matrices.use.rule import UnclearUseWarning, by_use
from optax_matrix.matrices.use.trace import RULES

# Windows, tokens, solvers: no axis of a parameter comes through these.
NOT_FOLLOWED = {
    *("after_all", "axis_index", "create_token", "dce_sink", "iota", "stage"),
    *("custom_linear_solve", "ragged_all_to_all", "select_and_gather_add"),
    *("reduce_window", "reduce_window_max", "reduce_window_min", "reduce_window_sum"),
    *("select_and_scatter", "select_and_scatter_add"),
}
PARAMS = {"w": np.ones((7, 12), "f"), "out": np.ones((12, 5), "f")}
X = np.ones((4, 7), "f")


def test_each_primitive_of_lax_is_followed_or_listed():
    ends = (name for name in dir(lax) if name.endswith("_p"))
    names = {getattr(lax, name).name for name in ends}
    assert names - set(RULES) - NOT_FOLLOWED == set()


def solved(w):
    square = w @ w.T + jnp.eye(7)
    return lax.linalg.triangular_solve(square, w, left_side=True)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (
            lambda w: lax.reduce_window(w, 0.0, lax.add, (1, 1), (1, 1), "VALID"),
            "reduce",
        ),
        (solved, "triangular_solve"),
        (lambda w: jax.pure_callback(lambda x: x, w, w), "pure_callback"),
    ],
)
def test_one_that_is_not_followed_asks_under_its_name(change, name):
    fn = lambda p, x: jnp.tanh(x @ change(p["w"])) @ p["out"]
    with pytest.warns(UnclearUseWarning, match=rf"\(7, 12\): .*{name}"):
        rule = by_use(fn, PARAMS, X)
    assert dict(rule.numbers)["out"] is None


def test_one_that_only_a_penalty_meets_does_not_ask():
    def loss(p, x):
        w = p["w"]
        penalty = jnp.linalg.slogdet(w @ w.T)[1] + ((w.T @ w - jnp.eye(12)) ** 2).sum()
        return (jnp.tanh(x @ w) @ p["out"]).sum() + penalty

    assert by_use(loss, PARAMS, X).question() is None
