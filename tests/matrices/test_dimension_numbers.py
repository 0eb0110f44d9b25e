"""The view of one leaf: orientation, merging, splitting, and its inverse."""

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from optax_matrix.matrices.view import MatrixDimensionNumbers, make_view

hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)
hypothesis.settings.load_profile("ci")


def _leaf(*shape):
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def _matrices(view, x):
    return jax.device_get(jax.jit(view.to_matrices)(x[None]))


def test_flax_kernel_is_seen_as_out_by_in():
    x = _leaf(3, 5)
    view = make_view(x.shape, MatrixDimensionNumbers())
    (matrices,) = _matrices(view, x)
    np.testing.assert_array_equal(matrices, x.T[None])


def test_attention_kernel_merges_heads_and_head_dim_into_rows():
    x = _leaf(6, 2, 4)
    view = make_view(x.shape, MatrixDimensionNumbers(0, (1, 2)))
    (matrices,) = _matrices(view, x)
    np.testing.assert_array_equal(matrices[0], x.reshape(6, 8).T)


def test_attention_output_kernel_merges_heads_into_columns():
    x = _leaf(2, 4, 6)
    view = make_view(x.shape, MatrixDimensionNumbers((0, 1), 2))
    (matrices,) = _matrices(view, x)
    np.testing.assert_array_equal(matrices[0], x.reshape(8, 6).T)


@pytest.mark.parametrize("axis", [0, 1], ids=["layers-first", "layers-second"])
def test_layer_axis_may_stand_anywhere(axis):
    x = np.moveaxis(_leaf(3, 4, 5), 0, axis)
    numbers = MatrixDimensionNumbers(*(a for a in range(3) if a != axis))
    (matrices,) = _matrices(make_view(x.shape, numbers), x)
    np.testing.assert_array_equal(matrices, np.moveaxis(x, axis, 0).swapaxes(1, 2))


def test_head_axis_left_out_makes_one_matrix_per_head():
    x = _leaf(6, 2, 4)
    (matrices,) = _matrices(make_view(x.shape, MatrixDimensionNumbers(0, 2)), x)
    np.testing.assert_array_equal(matrices, np.transpose(x, (1, 2, 0)))


def test_equal_output_sections_are_heads_of_a_flat_kernel():
    x = _leaf(6, 8)
    numbers = MatrixDimensionNumbers(output_sections=2)
    (matrices,) = _matrices(make_view(x.shape, numbers), x)
    np.testing.assert_array_equal(matrices, [x[:, :4].T, x[:, 4:].T])


def test_reduction_sections_are_heads_of_an_output_kernel():
    x = _leaf(8, 6)
    numbers = MatrixDimensionNumbers(reduction_sections=2)
    (matrices,) = _matrices(make_view(x.shape, numbers), x)
    np.testing.assert_array_equal(matrices, [x[:4].T, x[4:].T])


def test_sized_sections_split_a_fused_query_key_value_kernel():
    x = _leaf(6, 8)
    numbers = MatrixDimensionNumbers(output_sections=(4, 2, 2))
    q, k, v = _matrices(make_view(x.shape, numbers), x)
    np.testing.assert_array_equal(q[0], x[:, :4].T)
    np.testing.assert_array_equal(k[0], x[:, 4:6].T)
    np.testing.assert_array_equal(v[0], x[:, 6:].T)


def test_optax_dimension_numbers_are_taken_as_they_are():
    theirs = optax.contrib.MuonDimensionNumbers((0, 1), (2,))
    assert make_view((2, 4, 6), theirs) == make_view(
        (2, 4, 6), MatrixDimensionNumbers((0, 1), 2)
    )


@pytest.mark.broad
def test_stacked_leaves_are_seen_one_after_the_other():
    x, y = _leaf(2, 6, 8), -_leaf(2, 6, 8)
    numbers = MatrixDimensionNumbers(1, 2, output_sections=2)
    view = make_view(x.shape, numbers)
    (together,) = view.to_matrices(jnp.stack([x, y]))
    apart = [view.to_matrices(z[None])[0] for z in (x, y)]
    np.testing.assert_array_equal(together, jnp.concatenate(apart))
    np.testing.assert_array_equal(view.from_matrices([together])[1], y)


@st.composite
def _views(draw):
    ndim = draw(st.integers(2, 5))
    shape = tuple(draw(st.integers(1, 4)) for _ in range(ndim))
    axes = draw(st.permutations(range(ndim)))
    cut = draw(st.integers(1, ndim - 1))
    stop = draw(st.integers(cut + 1, ndim))
    rows = int(np.prod([shape[a] for a in axes[:cut]]))
    cols = int(np.prod([shape[a] for a in axes[cut:stop]]))
    sections = []
    for size in (rows, cols):
        kind = draw(st.sampled_from(["one", "equal", "sizes"]))
        divisors = [d for d in range(1, size + 1) if size % d == 0]
        if kind == "equal":
            sections.append(draw(st.sampled_from(divisors)))
        elif kind == "sizes" and size > 1:
            first = draw(st.integers(1, size - 1))
            sections.append((first, size - first))
        else:
            sections.append(1)
    numbers = MatrixDimensionNumbers(axes[cut:stop], axes[:cut], *sections)
    return shape, numbers


@pytest.mark.slow
@hypothesis.given(_views())
@hypothesis.settings(max_examples=20)
def test_view_is_inverted_exactly_and_counts_every_entry(case):
    shape, numbers = case
    x = _leaf(*shape)
    view = make_view(shape, numbers)
    pieces = _matrices(view, x)
    assert [p.shape for p in pieces] == [(p.count, p.rows, p.cols) for p in view.pieces]
    assert sorted(np.concatenate([np.ravel(p) for p in pieces])) == list(range(x.size))
    np.testing.assert_array_equal(view.from_matrices(pieces)[0], x)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        (MatrixDimensionNumbers(0, 2), "`output_axis`.*'a/b'.*between -2 and 1"),
        (MatrixDimensionNumbers(0, -2), "must not share axes"),
        (MatrixDimensionNumbers(layer_axis=0), "`layer_axis`.*must name batch axes"),
        (MatrixDimensionNumbers((), 1), "`reduction_axis`"),
        (MatrixDimensionNumbers((0, 0), 1), "must not repeat an axis"),
        (MatrixDimensionNumbers(output_sections=4), "must divide the side of size 6"),
        (MatrixDimensionNumbers(output_sections=(4, 1)), "add up to 6, got .* sum 5"),
        (MatrixDimensionNumbers(reduction_sections=0), "`reduction_sections`"),
    ],
)
def test_numbers_that_do_not_fit_say_which_and_where(numbers, message):
    with pytest.raises(ValueError, match=message):
        make_view((4, 6), numbers, "a/b")


def test_residual_must_be_a_side():
    with pytest.raises(ValueError, match="`residual` must be 'out'"):
        MatrixDimensionNumbers(residual="left")


def test_spec_follows_the_first_of_merged_axes():
    view = make_view((3, 8, 2, 4), MatrixDimensionNumbers(1, (2, 3)))
    assert view.spec_of_piece(("e", "f", "t")) == ("e", "t", "f")
    split = make_view((8, 4), MatrixDimensionNumbers(output_sections=2))
    assert split.spec_of_piece(("f", "t")) == (None, None, "f")
