"""The projection block: bases, renewals, transport and what combines."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _identities import identified
from _matrices import gaussian, matrix_with_singular_values
from _reference import low_rank as ref

import optax_matrix as om
from optax_matrix.linalg import qr_householder
from optax_matrix.transforms import Basis, subspace_basis
from optax_matrix.transforms.low_rank._moment_transport import carry_moments
from optax_matrix.transforms.low_rank._subspace_bases import (
    gaussian_basis,
    orthonormal_basis,
    svd_basis,
)
from optax_matrix.transforms.low_rank._switching import SWITCHES

SHAPE = (4, 7)


def stream(steps=6, shape=SHAPE):
    return gaussian(*shape, seed=41) + gaussian(steps, *shape, seed=42) / 2


@functools.cache
def scanned(tx):
    def body(state, g):
        updates, state = tx.update({"w": g}, state)
        return state, (updates["w"], state)

    return jax.jit(lambda state, grads: jax.lax.scan(body, state, grads))


def run(tx, grads):
    """Updates of one matrix, and the states after each."""
    grads = jnp.asarray(grads)
    _, (updates, states) = scanned(tx)(tx.init({"w": grads[0]}), grads)
    return np.asarray(updates), states


def direction():
    return optax.chain(optax.ema(0.9, debias=False), om.scale_by_second_moment(0.9))


def exact(**options):
    return svd_basis("exact", **options)


def bases(states):
    return np.asarray(states.basis["w"].vectors)


@pytest.mark.broad
@pytest.mark.usefixtures("x64")
def test_renewals_happen_at_the_first_update_and_at_the_multiples():
    grads = stream(8)
    for phase, due in ((1, [0, 2, 5]), (0, [0, 3, 6])):
        tx = om.project_low_rank(
            optax.identity(), rank=2, basis=exact(), update_interval=3, phase=phase
        )
        updates, states = run(tx, grads)
        u = None
        for t, g in enumerate(grads):
            u = ref.left_vectors(g, 2) if t in due else u
            np.testing.assert_allclose(updates[t], u @ (u.T @ g), atol=1e-12)
        moved = np.abs(np.diff(bases(states), axis=0)).max((1, 2)) > 0
        assert [t + 1 for t in np.flatnonzero(moved)] == due[1:]


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_sides():
    """Tall, wide: long, short, out, in; a dict says it for each leaf."""
    g = gaussian(4, 7, seed=1)
    project = lambda u, x: u @ (u.T @ x)
    rows = project(ref.left_vectors(g, 2), g)
    # On the long side it is the column space's projector, the same rank-2 matrix ...
    np.testing.assert_allclose(project(ref.left_vectors(g.T, 2), g.T).T, rows)
    # ... and so a base that tells rows from columns tells the sides.
    by_side = {}
    tree = {"wide": jnp.asarray(g), "tall": jnp.asarray(g.T)}
    cases = [*("short", "long", "out", "in"), {"wide": "in", "tall": "out"}]
    for side in cases:
        tx = om.project_low_rank(direction(), rank=2, basis=exact(), side=side)
        state = tx.init(tree)
        shapes = {k: b.vectors.shape for k, b in state.basis.items()}
        updates, _ = tx.update(tree, state)
        by_side[str(side)] = updates, shapes
    wide, tall = (4, 2), (7, 2)
    assert by_side["short"][1] == {"wide": wide, "tall": wide}
    assert by_side["long"][1] == {"wide": tall, "tall": tall}
    assert by_side["out"][1] == {"wide": wide, "tall": tall}
    assert by_side["in"][1] == {"wide": tall, "tall": wide}
    assert by_side[str(cases[-1])][1] == by_side["long"][1]
    short, long = by_side["short"][0], by_side["long"][0]
    np.testing.assert_allclose(short["wide"], short["tall"].T, atol=1e-12)
    assert np.abs(short["wide"] - long["wide"]).max() > 0.1
    np.testing.assert_array_equal(by_side["out"][0]["tall"], long["tall"])


@pytest.mark.parametrize(("rank", "number"), [(3, 3), (99, 4), (0.5, 2), (0.3, 2)])
def test_ranks(rank, number):
    tx = om.project_low_rank(optax.identity(), rank=rank)
    assert math.ceil(0.3 * 4) == 2
    state = jax.eval_shape(tx.init, {"w": np.zeros((5, *SHAPE), jnp.bfloat16)})
    vectors = state.basis["w"].vectors
    assert (vectors.shape, vectors.dtype) == ((5, 4, number), jnp.float32)


@pytest.mark.broad
@pytest.mark.usefixtures("x64")
def test_what_is_linear_is_carried_and_the_rest_is_kept():
    grads = stream(3)
    tx = functools.partial(
        om.project_low_rank, direction(), rank=2, basis=exact(), update_interval=2
    )
    old, new = (ref.left_vectors(grads[t], 2) for t in (0, 1))
    m = 0.1 * old.T @ grads[0]
    c = new.T @ old
    nu = 0.1 * (old.T @ grads[0]) ** 2
    for transport, kept in (("keep", m), ("carry", c @ m), ("reset", 0 * m)):
        _, states = run(tx(transport=transport), grads)
        ema, second = states.inner_state
        v = bases(states)
        # The library's signs are its own: moments follow those of their basis.
        at, followed = (1, new) if transport == "carry" else (0, old)
        at = np.sign(np.sum(v[at] * followed, 0))[:, None]
        want = 0.9 * at * kept + 0.1 * v[1].T @ grads[1]
        np.testing.assert_allclose(ema.ema["w"][1], want, atol=1e-12)
        before = 0 if transport == "reset" else 0.9 * nu
        want = before + 0.1 * (v[1].T @ grads[1]) ** 2
        np.testing.assert_allclose(second.root["w"][1] ** 2, want, atol=1e-12)
        assert list(ema.count) == ([1, 1, 2] if transport == "reset" else [1, 2, 3])


@pytest.mark.broad
@pytest.mark.usefixtures("x64")
def test_a_carried_moment_is_that_of_the_projected_moment():
    """Q_new' Q_old M, for heavy ball, and by hand as a function of the state."""
    grads = stream(5)
    options = {"rank": 2, "basis": exact(), "update_interval": 2}

    def by_hand(state, overlaps):
        carried = jax.tree.map(jnp.matmul, overlaps, state.trace)
        return state._replace(trace=carried)

    got = []
    for transport in ("carry", by_hand):
        tx = om.project_low_rank(optax.trace(0.95), transport=transport, **options)
        _, states = run(tx, grads)
        got.append(np.asarray(states.inner_state.trace["w"]))
    np.testing.assert_allclose(got[0], got[1], atol=1e-14)
    v, m = bases(states), 0
    for t, g in enumerate(grads):
        m = 0.95 * (v[t].T @ v[max(t - 1, 0)]) @ m if t else 0
        m = m + v[t].T @ g
        np.testing.assert_allclose(got[0][t], m, atol=1e-12)


def test_states_that_carry_does_not_know_are_refused():
    w = {"w": np.ones(SHAPE, np.float32)}
    for inner in (om.precondition(), om.equilibrate_with_ema(om.row_rms, 0.9)):
        tx = om.project_low_rank(inner, transport="carry")
        with pytest.raises(ValueError, match="`transport` cannot tell how the field"):
            jax.eval_shape(tx.init, w)
        jax.eval_shape(om.project_low_rank(inner, transport="keep").init, w)
    with pytest.raises(ValueError, match="an array of ArrayImpl"):
        carry_moments((jax.device_put(np.ones(3, np.float32)),), w)
    for inner in (
        optax.scale_by_adam(),
        optax.scale_by_lion(),
        optax.chain(optax.trace(0.9), om.transforms.limit_norm_growth()),
        optax.partition({"all": optax.trace(0.9)}, "all"),
    ):
        jax.eval_shape(om.project_low_rank(inner, transport="carry").init, w)


@pytest.mark.broad
@pytest.mark.usefixtures("x64")
def test_any_three_functions_are_a_basis():
    """GaLore on one power step, with a count of what was tracked."""
    grads = stream(5)
    triple = (
        lambda sigma: np.zeros(sigma.shape[:-2]),
        lambda count, sigma: count + jnp.sum(sigma * 0, (-2, -1)) + 1,
        lambda s: qr_householder(
            s.gradient @ s.gradient.mT @ (s.vectors + jnp.eye(4, 2))
        ),
    )
    tx = om.project_low_rank(optax.identity(), rank=2, basis=triple, update_interval=1)
    updates, states = run(tx, grads)
    u = np.zeros((4, 2))
    for t, g in enumerate(grads):
        u = ref.qr(g @ g.T @ (u + np.eye(4, 2)))
        np.testing.assert_allclose(updates[t], u @ u.T @ g, atol=1e-12)
    assert list(states.basis["w"].tracked) == [1, 2, 3, 4, 5]


@pytest.mark.broad
def test_drawn_bases_are_no_state_and_stay_until_the_next_renewal():
    ones = np.ones((5, *SHAPE), np.float32)
    options = {"rank": 2, "update_interval": 2, "phase": 0}
    tx = om.project_low_rank(optax.identity(), basis=gaussian_basis(), **options)
    updates, states = run(tx, ones)
    assert jax.tree.leaves(states.basis) == []
    same = [np.array_equal(a, b) for a, b in itertools.pairwise(updates)]
    assert same == [True, False, True, False]
    other = om.project_low_rank(
        optax.identity(), basis=gaussian_basis(), seed=1, **options
    )
    assert not np.array_equal(run(other, ones)[0][0], updates[0])
    stored = gaussian_basis(stored=True)
    kept = om.project_low_rank(optax.identity(), basis=stored, **options)
    np.testing.assert_allclose(run(kept, ones)[0], updates, atol=1e-6)
    big = {"w": np.ones((400, 300), np.float32)}
    combine = lambda g, sigma, omega, u: u @ jnp.ones_like(sigma) + 0 * (g + u @ omega)
    drawn = om.project_low_rank(
        optax.identity(), combine=combine, rank=100, basis="gaussian"
    )
    got = jax.jit(drawn.update)(big, drawn.init(big))[0]["w"]
    # Sums of 100 numbers of variance 1/100: the variance of 300 of them is 8% exact.
    assert 0.7 < float(jnp.var(got[0])) < 1.3


@pytest.mark.broad
def test_matrices_draw_by_their_identity():
    """Whoever shares their stack, and different ones at every renewal."""
    ids = np.array([[1, 7], [2, 7], [1, 8]], np.uint32)
    g = np.ones((3, *SHAPE), np.float32)
    options = {"rank": 2, "basis": orthonormal_basis(), "update_interval": 1}

    def vectors(rows):
        tx = om.project_low_rank(optax.identity(), **options)
        tx = identified(tx, {"w": ids[rows]})
        states = run(tx, np.broadcast_to(g[rows], (2, len(rows), *SHAPE)))[1]
        return bases(states)

    whole, some = vectors([0, 1, 2]), vectors([2, 0])
    np.testing.assert_allclose(some, whole[:, [2, 0]], atol=1e-6)
    gram = whole.swapaxes(-1, -2) @ whole
    np.testing.assert_allclose(gram, np.broadcast_to(np.eye(2), gram.shape), atol=1e-5)
    flat = whole.reshape(6, -1)
    apart = np.abs(flat[:, None] - flat).max(-1) + np.eye(6)
    assert apart.min() > 0.05


@pytest.mark.broad
@pytest.mark.usefixtures("x64")
def test_staggered_stacks_are_renewed_in_turn():
    grads = [{"a": g, "b": g.T, "c": 2 * g} for g in map(jnp.asarray, stream(9))]
    tx = om.project_low_rank(
        direction(),
        rank=2,
        basis=exact(),
        update_interval=6,
        stagger=True,
        transport="carry",
    )
    update, state = jax.jit(tx.update), tx.init(grads[0])
    due = {"a": [5], "b": [3], "c": [1, 7]}
    for t, g in enumerate(grads):
        _, new = update(g, state)
        for name in due:
            old = state.basis[name].vectors
            moved = bool((new.basis[name].vectors != old).any())
            assert moved == (t == 0 or t in due[name]), (t, name)
            c = new.basis[name].vectors.mT @ old
            x = g[name].T if name == "b" else g[name]
            sigma = new.basis[name].vectors.mT @ x
            want = 0.9 * c @ state.inner_state[0].ema[name] + 0.1 * sigma
            got = new.inner_state[0].ema[name]
            np.testing.assert_allclose(got, want, atol=1e-12)
        state = new


@pytest.mark.broad
@pytest.mark.usefixtures("x64")
def test_what_combines_may_have_state():
    grads = stream(3)

    def update(updates, state, *, gradient, projected, basis):
        add = lambda g, o, x, u, s: g + s + 0 * (u @ (o + x))
        out = jax.tree.map(add, gradient, updates, projected, basis, state)
        return out, jax.tree.map(jnp.add, state, gradient)

    def counted(updates, state, params=None, **extra_args):
        del params
        return update(updates, state, **extra_args)

    zeros = lambda params: jax.tree.map(jnp.zeros_like, params)
    count = optax.GradientTransformationExtraArgs(zeros, counted)
    combine = optax.chain(count, optax.scale(2.0))
    tx = om.project_low_rank(
        optax.identity(), combine=combine, rank=2, basis=exact(), side="in"
    )
    updates, _ = run(tx, grads)
    np.testing.assert_allclose(updates, 2 * np.cumsum(grads, 0), atol=1e-12)


@pytest.mark.broad
def test_gradients_of_zero_and_infinity_leave_the_basis_alone():
    grads = np.float32(stream(6))
    grads[0] = grads[2] = 0
    grads[3, 1, 1] = np.inf
    tx = om.project_low_rank(optax.identity(), rank=2, basis=exact(), update_interval=1)
    v = bases(run(tx, grads)[1])
    np.testing.assert_array_equal(v[0], 0)
    np.testing.assert_array_equal(v[2], v[1])
    np.testing.assert_array_equal(v[3], v[1])
    assert np.abs(v[4] - v[3]).max() > 0.01


@pytest.mark.broad
def test_rounding_noise_is_no_coordinate():
    """Adam would make an update of full size of it."""
    g = np.float32(np.outer(gaussian(4, seed=1), gaussian(7, seed=2)))
    tx = om.project_low_rank(direction(), rank=3, basis=exact())
    updates, _ = run(tx, g[None])
    s = np.linalg.svd(updates[0], compute_uv=False)
    assert s[0] > 0.8
    assert s[1] < 1e-6 * s[0]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"rank": 0}, "`rank` must be a positive int"),
        ({"rank": 1.5}, "`rank` must be a positive int, or a float"),
        ({"side": "left"}, "`side` must be one of"),
        ({"side": 1}, "`side` must be one of"),
        ({"seed": 0.5}, "`seed` must be an int"),
        ({"basis": "pca"}, "`basis` must be one of"),
        ({"basis": (1, 2)}, "`basis` must be one of .* or functions"),
        ({"basis": (1, 2, 3)}, "`basis.init` must be a function"),
        ({"transport": "move"}, "`transport` must be one of"),
        ({"transport": "reset", "stagger": True}, "`transport` must not be 'reset'"),
        ({"transport": "carry", "basis": "gaussian"}, "`transport` must be 'keep'"),
        ({"combine": 3}, "`combine` must be a function"),
        ({"update_interval": 0}, "`update_interval` must be a positive int"),
        ({"phase": 0.5}, "`phase` must be an int"),
        ({"stagger": 1}, "`stagger` must be True or False"),
    ],
)
def test_errors(options, match):
    with pytest.raises(ValueError, match=match):
        om.project_low_rank(optax.identity(), **options)


def test_a_state_of_another_rank_is_refused():
    w = {"w": np.eye(3, 4, dtype=np.float32)}
    state = jax.eval_shape(om.scale_by_galore(rank=3).init, w)
    with pytest.raises(ValueError, match=r"`state` must hold bases of shape \(1, 3, 2"):
        jax.eval_shape(om.scale_by_galore(rank=2).update, w, state)


@pytest.mark.broad
def test_moments_of_some_leaves_may_be_masked():
    w = {name: np.float32(gaussian(4, 7, seed=i)) for i, name in enumerate("wv")}
    trace = lambda *names: optax.masked(optax.trace(0.9), {n: n in names for n in w})
    options = {"rank": 2, "update_interval": 2, "transport": "carry"}
    apart = optax.chain(trace("w"), trace("v"))
    paths = []
    for inner in (apart, optax.trace(0.9)):
        tx = om.project_low_rank(inner, **options)
        state, update = tx.init(w), jax.jit(tx.update)
        for _ in range(3):
            updates, state = update(w, state)
        paths.append(updates)
    jax.tree.map(np.testing.assert_array_equal, *paths)


@pytest.mark.slow
@pytest.mark.parametrize("method", [om.scale_by_apollo, om.scale_by_dion])
def test_random_numbers_do_not_depend_on_the_generator_or_neighbours(method):
    """JAX's other generators draw for a whole batch under vmap."""
    tx = method(rank=2)
    w = {name: jnp.float32(gaussian(4, 6, seed=i)) for i, name in enumerate("ab")}
    update = lambda w: tx.update(w, tx.init(w), w)[0]
    want = update(w)["b"]
    with jax.default_prng_impl("unsafe_rbg"):
        for tree in (w, {"b": w["b"]}):
            np.testing.assert_allclose(update(tree)["b"], want, rtol=1e-5, atol=1e-6)


def test_errors_of_bases_and_sides():
    for options in ({"switch": "swap"}, {"sampling": "rows"}, {"leading": 0}):
        with pytest.raises(ValueError, match=next(iter(options))):
            subspace_basis(**options)
    with pytest.raises(ValueError, match=r"`side` must be one of .* for each leaf"):
        om.project_low_rank(optax.identity(), side={"v": "in"}).init(
            {"w": np.eye(2, dtype=np.float32)}
        )
    assert isinstance(subspace_basis(0.0), Basis)
    assert subspace_basis(0.0).move is None


class TestSwitching:
    """Which columns of the next basis come from where."""

    RITZ = staticmethod(lambda g, u: ref.subspace_iteration(g @ g.T, u)[1])

    def renewed(self, switch, sampling="subspace", shape=(6, 9), rank=4, leading=1):
        grads = stream(2, shape)
        basis = subspace_basis(
            0.0, leading=leading, switch=switch, sampling=sampling, start="exact"
        )
        tx = om.project_low_rank(
            optax.identity(), rank=rank, basis=basis, update_interval=1
        )
        first, second = bases(run(tx, np.float32(grads))[1])
        return self.RITZ(grads[1], np.float64(first)), np.float64(second)

    @pytest.mark.slow
    @pytest.mark.parametrize("sampling", ["subspace", "columns"])
    def test_complement_and_full_basis(self, sampling):
        ritz, u = self.renewed("complement", sampling)
        # m - r = 2 columns are there for r - l = 3: one more Ritz vector stays.
        np.testing.assert_allclose(np.abs(u[:, :2]), np.abs(ritz[:, :2]), atol=1e-4)
        np.testing.assert_allclose(ritz.T @ u[:, 2:], 0, atol=1e-4)
        np.testing.assert_allclose(u.T @ u, np.eye(4), atol=1e-5)
        ritz, u = self.renewed("full_basis", sampling)
        np.testing.assert_allclose(np.abs(u[:, 0]), np.abs(ritz[:, 0]), atol=1e-4)
        np.testing.assert_allclose(u.T @ u, np.eye(4), atol=1e-5)
        overlap = np.abs(ritz[:, 1:].T @ u[:, 1:])
        assert overlap.max() > 0.1
        # As columns, the Ritz vectors themselves are drawn, or not.
        at = np.minimum(overlap, np.abs(overlap - 1)).max()
        assert (at < 1e-4) == (sampling == "columns")

    @pytest.mark.broad
    @pytest.mark.parametrize("decay", [0.0, pytest.param(0.9, marks=pytest.mark.broad)])
    def test_the_first_basis_is_of_the_leading_vectors(self, decay):
        s = [10, 8, 6, 0.1, 0.05, 0.01]
        g = matrix_with_singular_values(s, 6, 9, seed=1)
        tx = om.project_low_rank(
            optax.identity(), rank=3, basis=subspace_basis(decay, switch="none")
        )
        (u,) = bases(run(tx, np.float32(g[None]))[1])
        # Ten steps leave (0.1 / 6)^20 of the rest, and rounding.
        want = np.linalg.svd(g)[0][:, :3]
        np.testing.assert_allclose(np.abs(u), np.abs(want), atol=1e-5)

    @pytest.mark.broad
    def test_gaussian_and_none(self):
        ritz, u = self.renewed("gaussian_mix")
        np.testing.assert_allclose(np.abs(u[:, 0]), np.abs(ritz[:, 0]), atol=1e-4)
        np.testing.assert_allclose(np.linalg.norm(u, axis=0), 1, atol=1e-6)
        assert np.abs(u.T @ u - np.eye(4)).max() > 0.05
        ritz, u = self.renewed("gaussian")
        assert np.abs(np.abs(u[:, 0]) - np.abs(ritz[:, 0])).max() > 0.05
        ritz, u = self.renewed("none")
        np.testing.assert_allclose(np.abs(u), np.abs(ritz), atol=1e-4)

    @pytest.mark.broad
    def test_a_stack_has_a_basis_of_the_same_shape_by_each_switch(self):
        stack = np.ones((3, 6, 9), np.float32)
        for switch in SWITCHES:
            basis = subspace_basis(leading=1, switch=switch)
            tx = om.project_low_rank(optax.identity(), rank=4, basis=basis)
            state = jax.eval_shape(tx.init, stack)
            _, new = jax.eval_shape(tx.update, stack, state, stack)
            assert new.basis.vectors.shape == state.basis.vectors.shape, switch

    @pytest.mark.broad
    def test_at_full_rank_nothing_is_left_to_draw(self):
        ritz, u = self.renewed("complement", shape=(4, 7))
        np.testing.assert_allclose(np.abs(u), np.abs(ritz), atol=1e-4)


@pytest.mark.broad
@pytest.mark.parametrize("basis", [gaussian_basis(stored=True), orthonormal_basis()])
def test_a_random_basis_renewed_by_its_norm_is_another_one(basis):
    """Also between two renewals by the interval."""
    options = {"rank": 2, "update_interval": 100, "basis": basis}
    tx = om.project_low_rank(optax.identity(), renew_below=1e3, **options)
    _, states = run(tx, stream(3))
    first, second, third = bases(states)
    assert np.abs(second - first).max() > 0.1
    assert np.abs(third - second).max() > 0.1
    tx = om.project_low_rank(optax.identity(), renew_below=1e-6, **options)
    held = bases(run(tx, stream(3))[1])
    np.testing.assert_array_equal(held[0], held[2])
