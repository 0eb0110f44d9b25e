"""What blocks ask of the layout where they run: identities, and functions of it."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _matrices import gaussian

import optax_matrix as om
from optax_matrix.stacks import make_layout
from optax_matrix.transforms import in_blocks
from optax_matrix.transforms.rotation import Sets, rotate_shared

PARAMS = {n: {"kernel": gaussian(4, 6, seed=i)} for i, n in enumerate("abc")}


def update_of(tx, steps=1, params=PARAMS):
    state = tx.init(params)
    for _ in range(steps):
        new, state = tx.update(params, state, params)
    return {name: np.asarray(x["kernel"]) for name, x in new.items()}


@pytest.mark.broad
@pytest.mark.parametrize(
    "chain",
    [
        om.transforms.orthogonalize_low_rank(2),
        om.project_low_rank(optax.identity(), rank=2, basis="gaussian"),
    ],
)
def test_ones_own_chain_draws_by_the_matrix_and_not_by_its_stack(chain):
    """Without a word of it: alone in their stacks, matrices have the same updates."""
    together = update_of(om.on_matrices(chain, probe=False))
    alone = update_of(om.on_matrices(chain, probe=False, max_batch=1))
    for name in PARAMS:
        np.testing.assert_allclose(alone[name], together[name], rtol=1e-5, atol=1e-6)
    same = {n: {"kernel": PARAMS["a"]["kernel"]} for n in "ab"}
    drawn = update_of(om.on_matrices(chain, probe=False), params=same)
    assert np.abs(drawn["a"] - drawn["b"]).max() > 1e-2


def test_blocks_of_a_matrix_have_its_identity():
    chain = om.on_matrices(in_blocks(om.transforms.whiten(), 3), probe=False)
    state = jax.eval_shape(chain.init, PARAMS)
    new, _ = jax.eval_shape(chain.update, PARAMS, state)
    assert jax.tree.map(jnp.shape, new) == jax.tree.map(jnp.shape, PARAMS)


def sides(name):
    return lambda layout: dict.fromkeys(layout.groups, name)


def shared(layout):
    member = {n: np.zeros(g.count, np.int32) for n, g in layout.groups.items()}
    return Sets(member, 1, layout.axes)


@pytest.mark.broad
def test_an_argument_may_be_a_function_of_the_layout():
    sign, layout = optax.scale_by_sign(), make_layout(PARAMS)
    pairs = [
        (om.rotate(sign, side=sides("in")), om.rotate(sign, side="in")),
        (
            rotate_shared(sign, shared, sides=sides("in")),
            rotate_shared(sign, shared(layout), sides=sides("in")(layout)),
        ),
    ]
    for asked, given in pairs:
        got, want = (
            update_of(om.on_matrices(tx, probe=False)) for tx in (asked, given)
        )
        for name in PARAMS:
            np.testing.assert_array_equal(got[name], want[name])


def test_mistakes_in_functions_of_the_layout_name_the_argument():
    w = {"w": jnp.ones((2, 3, 4))}
    with pytest.raises(ValueError, match=r"`side` must not be a function.*on_matrices"):
        om.rotate(optax.scale_by_sign(), side=sides("in")).init(w)
    with pytest.raises(ValueError, match="`sets` must not be a function"):
        rotate_shared(optax.scale_by_sign(), shared, sides={"w": "in"}).init(w)
    for wrong in (sides("left"), lambda _: "left"):
        tx = om.on_matrices(om.rotate(optax.scale_by_sign(), side=wrong))
        with pytest.raises(ValueError, match=r"`side` must be one of .*'left'"):
            tx.init(PARAMS)
