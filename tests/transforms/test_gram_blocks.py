"""Blocks with statistics in the scale of their gradients, and Dion's."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _identities import identified
from _matrices import gaussian, matrix_with_singular_values, ones, zeros
from _reference import rotations as ref

import optax_matrix as om
from optax_matrix.linalg import polar_svd
from optax_matrix.transforms.second_moments.gram import mix_gram, no_gram, scaled

NUMBERS = om.MatrixDimensionNumbers(0, 1)
# Rounding of float32 in the products, of unit size.
F32 = 1e-5


def last(tx, grads, dtype=jnp.float32):
    grads = np.asarray(grads, dtype)
    state = tx.init({"w": grads[0]})
    update = jax.jit(tx.update)
    for g in grads:
        out, state = update({"w": g}, state)
    return out["w"], state


@jax.jit
def mixed(gram, x, *rates):
    """`mix_gram` in one program; without a Gram matrix, from that of no gradient."""
    return mix_gram(no_gram(x) if gram is None else gram, scaled(x), *rates)


def value(gram):
    return np.float64(gram.peak) ** 2 * np.float64(gram.normalized)


@pytest.mark.broad
def test_an_average_of_gram_matrices_is_one_at_any_scale():
    gs = gaussian(5, 3, 4)
    for scale in (1e-20, 1.0, 1e20):
        gram, want = None, np.zeros((3, 3))
        for g in gs:
            gram = mixed(gram, np.float32(scale * g), 0.9)
            want = 0.9 * want + 0.1 * g @ g.T
        np.testing.assert_allclose(value(gram) / scale / scale, want, atol=F32)


def test_a_sum_of_gram_matrices():
    gram, gs = None, np.float32(gaussian(5, 3, 4))
    for g in gs:
        gram = mixed(gram, g, 1.0, 1.0)
    np.testing.assert_allclose(value(gram), sum(g @ g.T for g in gs), rtol=F32)


@pytest.mark.parametrize("shape", [(1, 4), (5, 3, 4)], ids=["one row", "a stack"])
def test_an_average_of_other_matrices_is_refused(shape):
    """It was broadcast."""
    other = jax.eval_shape(no_gram, np.zeros(shape, np.float32))
    with pytest.raises(ValueError, match=r"Gram matrices \(3, 3\) for matrices"):
        jax.eval_shape(mixed, other, ones(3, 4), 0.9)


WIDE = {"head": {"kernel": jax.ShapeDtypeStruct((64, 65_536), jnp.float32)}}
MESSAGE = "a side of 65,536 have 1024 times the numbers of the matrix"


@pytest.mark.parametrize("recipe", [om.shampoo, om.mousse])
def test_statistics_of_a_wide_side_are_warned_of(recipe):
    """Their state was 324 and 649 times the parameters, and nobody had said so."""
    everything = lambda params: jax.tree.map(lambda _: NUMBERS, params)
    init = lambda **options: jax.eval_shape(
        recipe(0.1, dimension_numbers=everything, **options).init, WIDE
    )
    with pytest.warns(UserWarning, match=MESSAGE):
        init()
    for options in ({"max_dim": 10_000}, {"block_size": 1024}, {"side": "short"}):
        init(**options)


@pytest.mark.broad
def test_the_average_forgets_a_huge_gradient_and_keeps_what_follows():
    first = np.full((3, 4), 1e20, jnp.float32)
    gram = mixed(None, first, 0.5)
    gs = np.float32(gaussian(200, 3, 4))
    want = np.zeros((3, 3))
    for g in gs:
        gram = mixed(gram, g, 0.5)
        want = want / 2 + g @ g.T / 2
    np.testing.assert_allclose(value(gram), want, rtol=1e-4)


def test_the_transpose_has_the_gram_matrix_of_the_other_side():
    g = np.float32(1e20 * gaussian(3, 4))
    gram = jax.jit(lambda g: mix_gram(no_gram(g.T), scaled(g).mT, 0.0))(g)
    np.testing.assert_allclose(value(gram) / 1e40, np.float64(g.T) @ g / 1e40, atol=F32)


def test_a_zero_gradient_only_decays_the_average():
    g = np.float32(gaussian(3, 4))
    gram = mixed(None, g, 0.9)
    after = mixed(gram, np.zeros_like(g), 0.9)
    np.testing.assert_allclose(value(after), 0.9 * value(gram), rtol=1e-6)
    nothing = mixed(None, np.zeros_like(g), 0.9)
    assert not np.any(nothing.normalized)
    assert not np.any(nothing.peak)


# The second moment


@pytest.mark.broad
def test_second_moment_is_adams_denominator():
    gs = np.float32(gaussian(6, 3, 4))
    got, _ = last(om.scale_by_second_moment(0.9, bias_correction=True), gs)
    want, _ = last(optax.scale_by_adam(0.0, 0.9, eps=0.0), gs)
    np.testing.assert_allclose(got, want, rtol=F32)
    plain, _ = last(om.scale_by_second_moment(0.9), gs)
    np.testing.assert_allclose(plain * np.sqrt(1 - 0.9**6), want, rtol=F32)


@pytest.mark.broad
def test_second_moment_of_the_gradient_that_comes_with_it():
    tx = om.scale_by_second_moment(0.75)
    w = {"w": jnp.asarray(ones(1, 2))}
    out, _ = tx.update(w, tx.init(w), gradient={"w": jnp.float32([[4.0, 0.0]])})
    assert out["w"].tolist() == [[0.5, 0.0]]


def test_second_moment_in_bfloat16_and_errors():
    g = np.ones((2, 3, 4))
    tx = om.scale_by_second_moment(0.5, bias_correction=True)
    out, state = last(tx, g, jnp.bfloat16)
    assert out.dtype == jnp.bfloat16
    assert state.root["w"].dtype == state.weight["w"].dtype == jnp.float32
    with pytest.raises(ValueError, match="`decay` must be in"):
        om.scale_by_second_moment(1.0)


# Inverse roots


@pytest.mark.broad
def test_whitening_of_one_side_is_the_polar_factor():
    g = np.float32(gaussian(3, 5))
    for side in ("out", "short"):
        got, state = last(om.precondition(power=0.5, side=side), g[None])
        # The damping moves singular values by 1e-6 of the largest.
        np.testing.assert_allclose(got, polar_svd(jnp.asarray(g)), atol=1e-4)
        assert state.gram["w"].cols is None
    got, _ = last(om.precondition(power=0.5, side="in"), g.T[None])
    np.testing.assert_allclose(got, polar_svd(jnp.asarray(g.T)), atol=1e-4)


@pytest.mark.broad
def test_without_a_side_a_matrix_passes_as_it_is():
    w = {name: np.float32(gaussian(2, 3)) for name in "ab"}
    tx = om.precondition(side={"a": "none", "b": "short"}, power=0.5)
    updates, state = jax.jit(tx.update)(w, tx.init(w))
    np.testing.assert_array_equal(updates["a"], w["a"])
    np.testing.assert_allclose(updates["b"], polar_svd(jnp.asarray(w["b"])), atol=1e-4)
    assert state.gram["a"] == (None, None)


@pytest.mark.broad
def test_an_inner_transformation_works_in_whitened_coordinates():
    g = gaussian(4, 6)
    block = om.precondition(
        om.orthogonalize(polar_svd),
        power=1 / 8,
        decay=0.9,
        graft=True,
        eps=0.0,
        side="out",
    )
    got, _ = last(block, g[None])
    left = ref.symmetric_power(g @ g.T, -1 / 8)
    inside = polar_svd(jnp.asarray(left @ g, jnp.float32))
    want = left @ inside
    want *= np.linalg.norm(inside) / np.linalg.norm(want)
    np.testing.assert_allclose(got, want, atol=1e-4)
    np.testing.assert_allclose(np.linalg.norm(got), 2.0, rtol=1e-4)  # The root of 4.


@pytest.mark.broad
def test_bias_correction_undoes_the_start_at_zero():
    g = np.float32(gaussian(4, 4))
    got, _ = last(om.precondition(decay=0.9, bias_correction=True), [g] * 3)
    want, _ = last(om.precondition(), g[None])
    np.testing.assert_allclose(got, want, atol=1e-4)


@pytest.mark.broad
def test_roots_are_kept_between_renewals():
    gs = np.float32(gaussian(4, 3, 5))
    tx, seen = om.precondition(update_interval=3), []
    state = tx.init({"w": jnp.asarray(gs[0])})
    for g in gs:
        _, state = jax.jit(tx.update)({"w": jnp.asarray(g)}, state)
        seen.append(state.root["w"].rows)
    same = [bool((a == b).all()) for a, b in itertools.pairwise(seen)]
    assert same == [False, True, False]  # New at updates 1, 2 and 4.
    step = jax.make_jaxpr(tx.update)({"w": jnp.asarray(gs[0])}, state)
    assert [e.primitive.name for e in step.jaxpr.eqns].count("cond") == 1


@pytest.mark.broad
@pytest.mark.parametrize("growth", [1e4, 1e20])
@pytest.mark.parametrize(
    "options",
    [{}, {"decay": 0.9, "bias_correction": True}, {"block_size": 2, "side": "out"}],
)
def test_roots_that_wait_have_the_size_of_the_present_statistics(options, growth):
    """They would multiply a gradient that grows by the inverse of its old size."""
    g = np.float32(gaussian(4, 4))
    grads = np.stack([g, g, np.float32(growth) * g])  # Updates 1 and 2 renew them.
    got, _ = last(om.precondition(update_interval=10, **options), grads)
    want, _ = last(om.precondition(**options), grads)
    np.testing.assert_allclose(got, want, atol=1e-3 * np.abs(want).max())


@pytest.mark.broad
@pytest.mark.parametrize("decay", [0.95, 0.999])
def test_the_correction_of_the_bias_waits_with_the_roots(decay):
    """A constant gradient has a constant average, and so a constant update."""
    grads = np.repeat(np.float32(gaussian(1, 4, 4)), 40, axis=0)
    options = {"decay": decay, "bias_correction": True, "method": "eigh"}
    got, _ = last(om.precondition(update_interval=100, **options), grads)
    want, _ = last(om.precondition(**options), grads[:1])
    np.testing.assert_allclose(got, want, atol=1e-3 * np.abs(want).max())


@pytest.mark.broad
def test_renewals_are_close_while_few_gradients_have_been_seen():
    """The roots of one gradient are 1e6^(1/4) outside its range, on both sides."""
    grads = np.float32(gaussian(12, 16, 32))
    tx = om.precondition(update_interval=10, method="eigh")
    every = om.precondition(method="eigh")

    def sizes(tx):
        update = jax.jit(tx.update)
        state, found = tx.init({"w": grads[0]}), []
        for g in grads:
            out, state = update({"w": g}, state)
            found.append(np.linalg.norm(out["w"]))
        return np.array(found)

    assert (sizes(tx) / sizes(every)).max() < 4  # It was 60 with one root in ten steps.


@pytest.mark.broad
def test_a_matrix_without_a_root_gets_it_with_its_first_gradient():
    """Not at the next renewal; its neighbour in the stack keeps its own until then."""
    gs = np.float32(gaussian(4, 2, 3, 3))
    gs[:2, 0] = 0
    tx = om.precondition(update_interval=10, method="eigh")
    update, state, seen = jax.jit(tx.update), tx.init({"w": gs[0]}), []
    for g in gs:
        out, state = update({"w": g}, state)
        seen.append((out["w"], state.root["w"].rows))
    ours, roots = map(np.stack, zip(*seen, strict=True))
    moved = np.abs(np.diff(roots, axis=0)).max((2, 3)) > 0
    assert moved.tolist() == [[False, True], [True, False], [True, True]]
    assert not ours[:2, 0].any()
    # From its first gradient on it goes as one that begins with it.
    state = tx.init({"w": gs[0]})
    for g, got in zip(gs[2:], ours[2:], strict=True):
        want, state = update({"w": g}, state)
        np.testing.assert_allclose(got[0], want["w"][0], atol=1e-5)


@pytest.mark.broad
@pytest.mark.parametrize("scale", [1e-20, 1e20])
def test_roots_at_any_scale(scale):
    gs = np.float32(gaussian(3, 4, 4))
    got, _ = last(om.precondition(decay=0.9), np.float32(scale) * gs)
    want, _ = last(om.precondition(decay=0.9), gs)
    np.testing.assert_allclose(got, want, atol=1e-3)


# Dion


@pytest.mark.broad
def test_full_rank_of_a_low_rank_momentum_adds_no_noise():
    m = matrix_with_singular_values([2.0, 1.0], 7, 4)
    got, state = last(om.transforms.orthogonalize_low_rank(1.0), [m] * 3)
    u, _, vt = np.linalg.svd(m)
    inside = u[:, :2] @ u[:, :2].T @ got @ vt[:2].T @ vt[:2]
    np.testing.assert_allclose(got, inside, atol=1e-5)
    norms = jnp.linalg.norm(state.right["w"], axis=-2)
    np.testing.assert_allclose(norms, 1.0, rtol=1e-5)


@pytest.mark.slow
def test_a_zero_momentum_leaves_the_right_factor():
    tx = om.transforms.orthogonalize_low_rank(2)
    zero = {"w": jnp.zeros((3, 5))}
    start = tx.init(zero)
    out, state = tx.update(zero, start)
    assert not out["w"].any()
    np.testing.assert_array_equal(state.right["w"], start.right["w"])
    out, _ = tx.update({"w": jnp.ones((3, 5))}, state)
    assert out["w"].all()


@pytest.mark.broad
def test_the_first_right_factor_belongs_to_the_matrix():
    """Not to its place, its neighbours or its stack."""
    ids = {"w": np.array([[1, 0], [2, 0], [1, 1]], np.uint32)}
    w = {"w": zeros(3, 4, 6)}
    tx = om.transforms.orthogonalize_low_rank(2)
    right = identified(tx, ids).init(w).right["w"]
    assert right.shape == (3, 6, 2)
    turned = {"w": ids["w"][::-1].copy()}
    other = identified(tx, turned).init(w).right["w"]
    np.testing.assert_allclose(other[::-1], right, atol=1e-6)
    assert jnp.abs(right[0] - right[1]).max() > 0.1
    assert jnp.abs(right[0] - right[2]).max() > 0.1

    shapes = {"a": {"kernel": (4, 6)}, "b": {"kernel": (4, 6)}}
    start = lambda names: om.scale_by_dion().init(
        {n: {"kernel": np.zeros(shapes[n]["kernel"], np.float32)} for n in names}
    )
    (both,), (alone,) = (
        start(names).inner_state[0].right.values() for names in ("ab", "b")
    )
    np.testing.assert_allclose(both[1], alone[0], atol=1e-6)


@pytest.mark.slow
def test_a_nan_is_seen_in_what_dion_makes_of_it():
    """Not zeros for ever, as from a momentum that has become NaN."""
    tx, w = om.transforms.orthogonalize_low_rank(2), {"w": jnp.ones((4, 6))}
    _, state = tx.update({"w": w["w"].at[1, 1].set(jnp.nan)}, tx.init(w))
    assert jnp.isnan(tx.update(w, state)[0]["w"]).all()


WRONG = [
    (om.precondition, {"power": 0}, "`power` must be positive"),
    (om.precondition, {"side": "left"}, "`side` must be one of"),
    (om.precondition, {"decay": 1.0}, "`decay` must be in"),
    (om.precondition, {"eps": -1.0}, "`eps` must not be negative"),
    (om.precondition, {"method": "svd"}, "`method` must be one of"),
    (om.precondition, {"graft": True}, "`graft` must be False without `inner`"),
    (om.precondition, {"bias_correction": True}, "`bias_correction` must be False"),
    (om.precondition, {"inner": polar_svd}, "`inner` must be a gradient"),
    (om.precondition, {"momentum": 0.9}, "`momentum` must be a gradient"),
    (om.precondition, {"update_interval": 0}, "`update_interval` must be a positive"),
    (
        om.transforms.orthogonalize_low_rank,
        {"rank": 0},
        "`rank` must be a positive int",
    ),
    (
        om.transforms.orthogonalize_low_rank,
        {"rank": 1.5},
        "`rank` must be a positive int, or a",
    ),
    (om.transforms.orthogonalize_low_rank, {"decay": 1.0}, "`decay` must be in"),
    (om.transforms.orthogonalize_low_rank, {"qr": None}, "`qr` must be a function"),
    (
        om.transforms.orthogonalize_low_rank,
        {"accumulator_dtype": int},
        "`accumulator_dtype` must",
    ),
    (om.scale_by_soap, {"side": "left"}, "`side` must be one of"),
    (om.scale_by_soap, {"policy": "aro"}, "`policy` must be one of"),
    (om.scale_by_eigen_adam, {"b3": 1.0}, "`b3` must be in"),
    (om.scale_by_eigen_adam, {"orientation": "both"}, "`orientation` must be one of"),
    (om.scale_by_eigen_sign, {"policy": "aro"}, "`policy` must be one of 'eigen'"),
    (om.scale_by_splus, {"scale": 0.0}, "`scale` must be positive"),
    (om.scale_by_shampoo, {"root": 2.5}, "`root` must be a positive int"),
    (om.scale_by_shampoo, {"b1": 1.0}, "`b1` must be in"),
    (om.scale_by_mousse, {"scaling": "fan"}, "`scaling` must be one of"),
    (om.scale_by_mousse, {"polar": "svd"}, "`polar` must be a function"),
    (om.scale_by_dion, {"rank": 2.0}, "`rank` must be a positive int, or a float"),
    (om.scale_by_aro, {"base": "muon"}, "`base` must be one of"),
    (om.scale_by_aro, {"orientation": "both"}, "`orientation` must be one of"),
]


@pytest.mark.parametrize(("factory", "arguments", "message"), WRONG)
def test_wrong_arguments_are_named_in_the_factory(factory, arguments, message):
    with pytest.raises(ValueError, match=message):
        factory(**arguments)
