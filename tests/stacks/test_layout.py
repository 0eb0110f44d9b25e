"""Grouping: what is stacked with what, in which order, under which name."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _matrices import gaussian, ones

from optax_matrix._paths import named_leaves
from optax_matrix.matrices.rules import by_path
from optax_matrix.matrices.view import MatrixDimensionNumbers
from optax_matrix.stacks.layout import STACK_ELEMENTS, make_layout


def _params():
    draw = lambda i, *shape: np.float32(gaussian(*shape, seed=i))
    return {
        "layers": {
            str(i): {"wide": draw(i, 3, 5), "tall": draw(i + 50, 5, 3)}
            for i in range(11)
        },
        "stack": draw(99, 4, 3, 5),
        "scale": ones(3),
    }


@pytest.mark.broad
def test_equal_views_share_a_stack_in_natural_path_order():
    layout = make_layout(_params())
    by_shape = {(g.rows, g.cols): g for g in layout.groups.values()}
    assert by_shape[5, 3].count == 15
    assert by_shape[3, 5].count == 11
    paths = [m.path for m in by_shape[3, 5].members]
    assert paths == [f"layers/{i}/tall" for i in range(11)]


@pytest.mark.broad
def test_stack_holds_the_transposed_kernels_and_unstack_inverts_it():
    params = _params()
    layout = make_layout(params)
    leaves = named_leaves(params)
    stacks = layout.stack(leaves)
    for name, group in layout.groups.items():
        assert stacks[name].shape == group.shape
        for m in group.members:
            want = np.swapaxes(leaves[m.path], -1, -2).reshape(
                m.count, *group.shape[1:]
            )
            np.testing.assert_array_equal(stacks[name][m.start :][: m.count], want)
    back = layout.unstack(stacks)
    assert set(back) == set(layout.views)
    for path, leaf in back.items():
        np.testing.assert_array_equal(leaf, leaves[path])


def test_residual_sides_are_not_mixed():
    params = {"q": ones(4, 4), "o": ones(4, 4)}
    rule = by_path(
        numbers={
            "q": MatrixDimensionNumbers(residual="in"),
            "o": MatrixDimensionNumbers(residual="out"),
        }
    )
    sides = [g.residual for g in make_layout(params, rule).groups.values()]
    assert sorted(sides) == ["in", "out"]


def test_dtypes_are_not_mixed():
    params = {"a": ones(4, 4), "b": np.ones((4, 4), jnp.bfloat16)}
    groups = make_layout(params).groups.values()
    assert sorted(g.dtype.name for g in groups) == ["bfloat16", "float32"]


def test_max_batch_bounds_stacks_but_keeps_leaves_whole():
    layout = make_layout(_params(), max_batch=3)
    counts = sorted(g.count for g in layout.groups.values() if g.rows == 5)
    assert counts == [2, 3, 3, 3, 4]
    whole = make_layout(_params())
    paths = lambda lay: sorted(m.path for g in lay.groups.values() for m in g.members)
    assert paths(layout) == paths(whole)


def test_default_bound_keeps_stacks_small():
    side = 4096
    leaves = {
        f"w{i}": jax.ShapeDtypeStruct((side, side), jnp.float32) for i in range(9)
    }
    groups = make_layout(leaves).groups.values()
    assert len(groups) == 3
    assert all(g.count * side * side <= STACK_ELEMENTS for g in groups)


def test_names_depend_on_paths_and_identities_do_not_depend_on_grouping():
    a = make_layout({"a": ones(2, 3), "b": ones(2, 3)})
    b = make_layout({"a": ones(2, 3), "c": ones(2, 3)})
    assert set(a.groups).isdisjoint(b.groups)
    identities = lambda lay: np.concatenate([g.ids for g in lay.groups.values()])
    split = make_layout(_params(), max_batch=1)
    together = make_layout(_params())
    rows = lambda lay: {tuple(row) for row in identities(lay).tolist()}
    assert rows(split) == rows(together)
    assert len(rows(together)) == 26


def test_two_leaves_of_one_path_are_refused():
    with pytest.raises(ValueError, match="two leaves of the same path"):
        make_layout({"a/b": ones(2, 3), "a": {"b": ones(2, 3)}})


def test_group_is_static_and_hashable():
    group = next(iter(make_layout(_params()).groups.values()))
    assert hash(group) == hash(dataclasses.replace(group))
