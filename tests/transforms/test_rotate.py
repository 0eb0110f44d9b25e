"""`rotate` and `in_eigenbasis` against the references, and their promises."""

import functools
import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _matrices import gaussian, matrix_with_singular_values, ones, orthonormal
from _reference import rotations as ref

import optax_matrix as om
from optax_matrix.linalg import polar_svd, qr_householder, scale_rows, sinkhorn
from optax_matrix.transforms import Policy, PolicyInput, rgd

SHAPE = (4, 16)  # Rows of so many signs differ in more than one.
BASES = {
    "sign": (optax.scale_by_sign(), ref.sign),
    "row_norm": (
        optax.chain(om.equilibrate(partial(scale_rows, eps=0.0)), optax.scale(16**0.5)),
        ref.row_norm,
    ),
    "sinkhorn": (om.equilibrate(sinkhorn), ref.sinkhorn),
    "adam": (om.scale_by_second_moment(0.95), ref.two_fold_adam),
}
POLICIES = {
    "aro": "aro",
    "eigen": "eigen",
    "eigen_exact": "eigenvectors",
    "polar": "polar",
    "rgd": "rgd",
    "identity": "identity",
}
QUICK = {("sign", "aro"), ("adam", "aro")}
# Every base and every policy; `make test-slow` has the other pairs.
DAILY = QUICK | {
    *(("sinkhorn", "aro"), ("row_norm", "eigen"), ("adam", "eigen")),
    *(("sign", "eigen_exact"), ("adam", "polar"), ("row_norm", "rgd")),
    ("sinkhorn", "identity"),
}


def tier(case, daily, quick=()):
    """The case as a parameter, marked with the part of the suite that runs it."""
    broad = pytest.mark.broad if case in daily else pytest.mark.slow
    return pytest.param(*case, marks=[] if case in quick else broad)


GRID = [tier(c, DAILY, QUICK) for c in itertools.product(BASES, POLICIES)]


def stream(steps=6, shape=SHAPE):
    """With this seed no M D' of the references is near singular."""
    return gaussian(*shape, seed=31) + gaussian(steps, *shape, seed=32) / 2


@functools.cache
def jitted(tx):
    return jax.jit(tx.update)


@functools.cache
def scanned(tx):
    def body(state, g):
        updates, state = tx.update({"w": g}, state)
        return state, updates["w"]

    return jax.jit(lambda state, grads: jax.lax.scan(body, state, grads))


def run(tx, grads, state=None):
    """Updates of one matrix, and the last state."""
    grads = np.asarray(grads)
    state = jax.jit(tx.init)({"w": grads[0]}) if state is None else state
    state, updates = scanned(tx)(state, grads)
    return np.asarray(updates), state


def momentum(b1=0.95):
    return optax.ema(b1, debias=False)


def averaged(base, **options):
    """`rotate` of the momentum; its own state is the last one."""
    return optax.chain(momentum(), om.rotate(base, **options))


@pytest.mark.quick("adam-aro")
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("base", "policy"), GRID)
def test_bases_and_policies_follow_their_references(base, policy):
    block, reference = BASES[base]
    got, state = run(averaged(block, policy=policy, side="out"), stream())
    options = {"base": reference, "policy": POLICIES[policy]}
    expected = {}
    for g, update in zip(stream(), got, strict=True):
        want = ref.aro(g, expected, **options)
        # Six float64 steps of matrices with condition numbers below 41.
        np.testing.assert_allclose(update, want, atol=1e-10)
    np.testing.assert_allclose(state[-1].rotation["w"].rows, expected["r"], atol=1e-10)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("interval", [1, 3])
@pytest.mark.parametrize("sides", ["both", "out"])
@pytest.mark.broad
def test_averages_of_the_gradient_follow_soap(sides, interval):
    tx = om.in_eigenbasis(
        om.scale_by_second_moment(0.9, bounded=False),
        policy="eigen_exact",
        side=sides,
        momentum=momentum(0.9),
        update_interval=interval,
    )
    grads = stream(shape=(5, 5))
    got, _ = run(tx, grads)
    names = ("out", "in") if sides == "both" else (sides,)
    state = {}
    want = [ref.soap(g, state, interval=interval, sides=names) for g in grads]
    # The first gradient is diagonal in its own basis: noise in the reference.
    first = {"out": 0, "both": 1}[sides]
    np.testing.assert_allclose(got[first:], want[first:], atol=1e-10)


@pytest.mark.broad
@pytest.mark.usefixtures("x64")
def test_columns_are_the_rows_of_the_transpose():
    g = stream()
    base = optax.scale_by_sign()
    one, _ = run(om.rotate(base, side="in"), np.swapaxes(g, -1, -2))
    other, _ = run(om.rotate(base, side="out"), g)
    np.testing.assert_allclose(one, np.swapaxes(other, -1, -2), atol=1e-14)
    short, state = run(om.rotate(base, side="short"), np.swapaxes(g, -1, -2))
    np.testing.assert_array_equal(short, one)
    assert state.rotation["w"].rows.shape == (4, 4)


@pytest.mark.usefixtures("x64")
@pytest.mark.broad
def test_both_sides_follow_from_the_same_look_ahead():
    """By hand: of two steps, R from M C D' and C from M' R D."""
    grads = stream(2, (5, 5))
    got, state = run(om.rotate(optax.scale_by_sign(), side="both"), grads)
    rows = cols = np.eye(5)
    for m, update in zip(grads, got, strict=True):
        d = np.sign(rows.T @ m @ cols)
        rows, cols = ref.qr(m @ cols @ d.T), ref.qr(m.T @ rows @ d)
        want = rows @ np.sign(rows.T @ m @ cols) @ cols.T
        np.testing.assert_allclose(update, want, atol=1e-10)
    pair = state.rotation["w"]
    np.testing.assert_allclose(pair.cols, cols, atol=1e-10)
    np.testing.assert_allclose(pair.rows, rows, atol=1e-10)


@pytest.mark.broad
def test_a_dict_gives_each_leaf_its_side():
    tx = om.rotate(optax.scale_by_sign(), side={"a": "out", "b": "in", "c": "both"})
    stacks = {n: ones(2, 3, 5) for n in "ab"}
    rotation = tx.init(stacks).rotation
    assert rotation["a"].rows.shape == (2, 3, 3)
    assert rotation["b"].rows.shape == (2, 5, 5)
    with pytest.raises(ValueError, match=r"`side` must be .* for each leaf"):
        tx.init({"other": ones(3, 5)})
    with pytest.raises(ValueError, match=r"`side` must be .* for each leaf"):
        tx.init([ones(3, 5)])
    with pytest.raises(ValueError, match="`side` must be one of"):
        om.rotate(optax.identity(), side={"w": "left"}).init({"w": ones(3, 5)})


def test_a_policy_may_be_a_function():
    seen = []

    def turned(side):
        assert isinstance(side, PolicyInput)
        seen.append([None if x is None else x.shape for x in side[:4]])
        return jnp.broadcast_to(np.eye(4, dtype=np.float32)[::-1], side.rotation.shape)

    tx = om.rotate(optax.scale_by_sign(), policy=turned, side="out")
    got, state = run(tx, np.float32(stream(1)))
    assert seen == [[SHAPE, SHAPE, (4, 4), None]]
    np.testing.assert_array_equal(state.rotation["w"].rows, np.eye(4)[::-1])
    np.testing.assert_array_equal(got[0], np.sign(stream(1)[0]))


@pytest.mark.broad
@pytest.mark.parametrize("block", [om.rotate, om.in_eigenbasis])
def test_a_function_sees_what_the_base_would_answer(block):
    seen = []

    def stay(side):
        seen.append(side.direction)
        return side.rotation

    tx = block(optax.scale_by_sign(), policy=stay, side="out")
    g = jnp.float32([[0.5, -2.0]])
    tx.update({"w": g}, tx.init({"w": g}))
    np.testing.assert_array_equal(seen[0], [[1, -1]])


@pytest.mark.parametrize(
    "policy", [tier((p,), [("aro",), ("eigen_exact",)]) for p in POLICIES]
)
def test_zero_momentum_leaves_the_rotation(policy):
    tx = om.rotate(optax.scale_by_sign(), policy=policy, side="out")
    g = {"w": jnp.float32(stream(1)[0])}
    _, state = jitted(tx)(g, tx.init(g))
    update, after = jitted(tx)({"w": np.zeros(SHAPE, np.float32)}, state)
    assert not update["w"].any()
    same = np.testing.assert_allclose
    same(after.rotation["w"].rows, state.rotation["w"].rows, atol=1e-6)


RANKS = {"full": ((7, 4), 4), "half": ((7, 4), 2), "one": ((4, 7), 1)}
EVERY_DAY = [("full", "aro"), ("half", "eigen"), ("one", "eigen_exact")]


@pytest.mark.daily("half-eigen", "one-eigen_exact")
@pytest.mark.parametrize(
    ("rank", "policy"),
    [
        tier(case, EVERY_DAY)
        for case in itertools.product(RANKS, ("aro", "eigen", "eigen_exact"))
    ],
)
def test_a_momentum_of_low_rank_gets_an_update_within_its_range(rank, policy):
    """Without care the noise in R' M comes out as rows of full size.

    Leading columns of R span the range if as many leading rows of D are independent,
    as they are for real numbers but not always for a few signs; all columns of M do.
    """
    shape, rank = RANKS[rank]
    m = matrix_with_singular_values(np.linspace(1, 2, rank), *shape)
    signs = () if policy == "aro" and rank < min(shape) else ("sign", "adam")
    for base in ("row_norm", "sinkhorn", *signs):
        tx = om.rotate(BASES[base][0], policy=policy, side="out")
        got, state = run(tx, np.float32([m] * 3))
        u = np.linalg.svd(m)[0][:, :rank]
        outside = got - u @ (u.T @ got)
        # Rounding of R' M, 4 eps sqrt(7) of its size at most, may be left.
        assert np.abs(outside).max() < 1e-5 * np.abs(got).max(), base
        r = np.asarray(state.rotation["w"].rows)
        np.testing.assert_allclose(r.T @ r, np.eye(shape[0]), atol=5e-6)


@pytest.mark.broad
@pytest.mark.parametrize("policy", ["aro", "eigen", "eigen_exact"])
def test_a_rotated_side_that_is_longer_adds_no_noise(policy):
    """From the first step on, and although condition numbers multiply in M D'."""
    tx = om.rotate(optax.scale_by_sign(), policy=policy, side="out")
    shape, norm = (24, 12), partial(np.linalg.norm, axis=(-2, -1))
    for decay in (np.geomspace(1, 1 / c, 12) for c in (1e1, 1e2, 1e3, 1e4)):
        spectrum = matrix_with_singular_values(decay, *shape)
        for m in (spectrum, gaussian(*shape, seed=5) * decay):
            got, _ = run(tx, np.float32([m] * 3))
            u, s, _ = np.linalg.svd(np.float32(m).astype(float), full_matrices=False)
            outside = norm(got - u @ (u.T @ got)) / norm(got)
            # As measured: 2e-8 times the condition number, and rounding.
            assert outside.max() < 5e-7 + 2e-8 * s[0] / s[-1], (s, outside)
            assert norm(u.T @ got).min() > 0.9 * 12


TALL = {
    "both": {"side": "both"},
    "neither": {"side": {"w": "none"}},
    "kept": {"update_interval": 3},
}


@pytest.mark.broad
@pytest.mark.parametrize("options", TALL.values(), ids=TALL)
@pytest.mark.usefixtures("x64")
def test_only_noise_is_cut(options):
    """A rotation of another momentum, or gradients, has more rows that count."""
    options = {"side": "out", "qr": qr_householder, **options}
    _check_unchanged(averaged(optax.identity(), **options))


@pytest.mark.broad
@pytest.mark.parametrize("renew_after", [False, True])
@pytest.mark.usefixtures("x64")
def test_only_noise_is_cut_in_eigenbases(renew_after):
    options = {"side": "out", "qr": qr_householder, "momentum": momentum()}
    tx = om.in_eigenbasis(optax.identity(), renew_after=renew_after, **options)
    _check_unchanged(tx)


def _check_unchanged(tx):
    grads = stream(3, (7, 4))
    want, _ = run(momentum(), grads)
    np.testing.assert_allclose(run(tx, grads)[0], want, atol=1e-12)


@pytest.mark.broad
def test_polar_rotations_stay_orthogonal_where_signs_are_singular():
    m = np.float32([[2.0, 1.0, 0.5], [1.0, 3.0, 0.2], [0.3, 0.1, 1.0]])  # signs: ones
    _, state = run(om.rotate(optax.scale_by_sign(), policy="polar"), m[None])
    r = state.rotation["w"].rows
    np.testing.assert_allclose(r.T @ r, np.eye(3), atol=1e-6)


@pytest.mark.broad
@pytest.mark.usefixtures("x64")
def test_the_interval_keeps_the_rotation_between_renewals():
    def renewals(block, **options):
        tx = block(optax.scale_by_sign(), update_interval=3, side="out", **options)
        state, seen = None, [np.eye(4)]
        for g in stream(7):
            _, state = run(tx, g[None], state)
            seen.append(state.rotation["w"].rows)
        changed = [not np.array_equal(a, b) for a, b in itertools.pairwise(seen)]
        return [t for t, new in enumerate(changed, 1) if new]

    assert renewals(om.rotate) == [1, 4, 7]
    assert renewals(om.in_eigenbasis) == [1, 3, 6]
    assert renewals(om.in_eigenbasis, renew_after=True) == [1, 3, 6]


@pytest.mark.broad
def test_renewals_of_all_stacks_are_under_one_cond():
    stacks = {"a": ones(2, 3, 5), "b": ones(6, 4)}
    kernel = lambda x, **_: jnp.cos(x)
    for interval, conds, cosines in ((1, 0, 2), (4, 1, 0)):
        tx = om.rotate(optax.scale_by_sign(), update_interval=interval, qr=kernel)
        step = jax.make_jaxpr(tx.update)(stacks, jax.eval_shape(tx.init, stacks))
        names = [e.primitive.name for e in step.jaxpr.eqns]
        assert names.count("cond") == conds
        assert names.count("cos") == cosines


@pytest.mark.broad
@pytest.mark.usefixtures("x64")
def test_a_rotation_renewed_after_the_update_is_that_of_the_last_step():
    base = optax.scale_by_sign()
    state = None
    tx = om.in_eigenbasis(base, side="out", renew_after=True)
    used = np.eye(4)
    for g in stream():
        update, state = run(tx, g[None], state)
        np.testing.assert_allclose(update[0], used @ np.sign(used.T @ g), atol=1e-12)
        used = np.asarray(state.rotation["w"].rows)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_the_look_ahead_leaves_the_state_of_the_base_alone():
    b2 = 0.9
    tx = om.rotate(om.scale_by_second_moment(b2), side="out", policy="rgd")
    state, v = None, np.zeros(SHAPE)
    for g in stream():
        _, state = run(tx, g[None], state)
        rotated = np.asarray(state.rotation["w"].rows).T @ g
        v = b2 * v + (1 - b2) * rotated**2
        np.testing.assert_allclose(state.base_state.root["w"] ** 2, v, rtol=1e-9)


@pytest.mark.daily("identity", "polar-polar")
@pytest.mark.broad
@pytest.mark.parametrize("policy", ["aro", "eigen", "polar"])
@pytest.mark.parametrize("base", ["identity", "polar"])
@pytest.mark.usefixtures("x64")
def test_an_equivariant_base_stays_as_it_is(base, policy):
    block = optax.identity() if base == "identity" else om.orthogonalize(polar_svd)
    got, _ = run(averaged(block, policy=policy), stream())
    want, _ = run(optax.chain(momentum(), block), stream())
    np.testing.assert_allclose(got, want, atol=1e-10)


@pytest.mark.broad
@pytest.mark.usefixtures("x64")
def test_aro_with_row_norms_is_one_power_step():
    base = BASES["row_norm"][0]
    one, _ = run(averaged(base, policy="aro"), stream())
    other, _ = run(averaged(base, policy="eigen"), stream())
    np.testing.assert_allclose(one, other, atol=1e-10)
    sign, _ = run(averaged(optax.scale_by_sign()), stream())
    eigen = averaged(optax.scale_by_sign(), policy="eigen")
    assert np.abs(sign - run(eigen, stream())[0]).max() > 0.1


@pytest.mark.broad
@pytest.mark.usefixtures("x64")
def test_its_fixed_point_is_the_polar_factor():
    m = matrix_with_singular_values([4.0, 3.0, 2.0, 1.0], *SHAPE)
    tx = om.rotate(BASES["row_norm"][0])
    got, _ = run(tx, [m] * 100)
    # The error falls by (3/4)^2 a step.
    np.testing.assert_allclose(got[-1], np.sqrt(SHAPE[1]) * polar_of(m), atol=1e-10)


def polar_of(m):
    u, _, vt = np.linalg.svd(m, full_matrices=False)
    return u @ vt


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("base", BASES)
@pytest.mark.broad
def test_updates_turn_with_the_gradients(base):
    """dW -> Q dW when G -> Q G and R_0 -> Q R_0; -R_0's columns change nothing."""
    tx = averaged(BASES[base][0], side="out")
    start = tx.init({"w": np.zeros(SHAPE)})
    straight, _ = run(tx, stream(), start)

    def started(rows):
        mean, own = start
        pair = own.rotation["w"]._replace(rows=jnp.asarray(rows))
        return mean, own._replace(rotation={"w": pair})

    q = orthonormal(4, 4, seed=7)
    turned, _ = run(tx, q @ stream(), started(q))
    np.testing.assert_allclose(turned, q @ straight, atol=1e-8)
    signs = np.diag([1.0, -1.0, -1.0, 1.0])
    np.testing.assert_allclose(
        run(tx, stream(), started(signs))[0], straight, atol=1e-8
    )


@pytest.mark.parametrize("base", BASES)
@pytest.mark.broad
@pytest.mark.usefixtures("x64")
def test_the_signs_of_the_columns_cancel(base):
    """A kernel that points every other column the other way gives the same updates.

    At odd steps: what a flipped column flips in the next one flips it back.
    """
    sign = lambda x: (-1.0) ** jnp.arange(x.shape[-1])
    flipped = lambda x, previous=None: qr_householder(x, previous=previous) * sign(x)
    for policy in ("aro", "eigen"):
        one, other = (
            run(om.rotate(BASES[base][0], policy=policy, qr=qr, side="out"), stream(5))
            for qr in (qr_householder, flipped)
        )
        np.testing.assert_allclose(other[0], one[0], atol=1e-9)
        assert (other[1].rotation["w"].rows * one[1].rotation["w"].rows < 0).any()


@pytest.mark.broad
def test_bfloat16_updates_and_float32_state():
    g = jnp.asarray(stream(2), jnp.bfloat16)
    tx = om.in_eigenbasis(om.scale_by_second_moment(), momentum=optax.ema(0.9))
    update, state = run(tx, g)
    assert update.dtype == jnp.bfloat16
    kept = (state.rotation, state.gram, state.base_state)
    assert {x.dtype.name for x in jax.tree.leaves(kept)} == {"float32"}


WRONG = [
    ({"policy": "newton"}, "`policy` must be one of"),
    ({"policy": None}, "`policy` must be"),
    ({"side": "left"}, "`side` must be one of"),
    ({"side": None}, "`side` must be one of .*, got None"),
    ({"side": {"w": 3}}, "`side` must be one of .* got 3"),
    ({"update_interval": 0}, "`update_interval` must be a positive int"),
    ({"update_interval": 2**31}, "`update_interval` must be a positive int.* 2.*31"),
    ({"qr": "householder"}, "`qr` must be a function"),
    ({"base": None}, "`base` must be a gradient transformation"),
]
WRONG_HERE = [
    ({"policy": "aro"}, "`policy` must be one of"),
    ({"statistics": "ema"}, "`statistics` must be one of"),
    ({"decay": 1.0}, "`decay` must be in"),
    ({"momentum": 0.9}, "`momentum` must be a gradient transformation"),
]


@pytest.mark.parametrize(
    ("block", "arguments", "message"),
    [
        *((om.rotate, *case) for case in WRONG),
        *((om.in_eigenbasis, *case) for case in WRONG + WRONG_HERE),
    ],
)
def test_wrong_arguments_are_named_in_the_factory(block, arguments, message):
    with pytest.raises(ValueError, match=message):
        block(**{"base": optax.scale_by_sign(), **arguments})


@pytest.mark.parametrize("side", ["short", "out"])
def test_a_vector_is_refused(side):
    with pytest.raises(ValueError, match=r"leaves must be matrices .*\(3,\)"):
        om.rotate(optax.scale_by_sign(), side=side).init({"b": ones(3)})


@pytest.mark.broad
@pytest.mark.usefixtures("x64")
def test_the_variants_of_remark_12_can_be_written_from_outside():
    """QR(f(M) f(R'M)') and QR(f(M M'R)), with R from the step before."""

    def both_by_f(side):
        return side.qr(side.base(side.momentum) @ side.direction.mT)

    def power_by_f(side):
        m, r = side.momentum, side.rotation
        return side.qr(side.base(m @ m.mT @ r))

    f = lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True)
    references = {
        both_by_f: lambda m, r: f(m) @ f(r.T @ m).T,
        power_by_f: lambda m, r: f(m @ m.T @ r),
    }
    base = om.equilibrate(partial(scale_rows, eps=0.0))
    for step, reference in references.items():
        tx = om.rotate(base, policy=Policy(step), side="out")
        got, _ = run(tx, stream(3))
        r = np.eye(4)
        for m, update in zip(stream(3), got, strict=True):
            r = ref.qr(reference(m, r))
            want = r @ f(r.T @ m)
            size = np.linalg.norm(update) / np.linalg.norm(want)
            np.testing.assert_allclose(update, size * want, atol=1e-10)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_gradient_ascent_may_have_other_steps():
    objective = lambda m, r: np.abs(r.T @ m).sum()
    values = []
    for rounds in (1, 10, 40):
        policy = rgd(0.02, rounds=rounds)
        tx = om.rotate(optax.scale_by_sign(), policy=policy, side="out")
        _, state = run(tx, stream(1))
        values.append(objective(stream(1)[0], state.rotation["w"].rows))
    assert values == sorted(values)
    same = om.rotate(optax.scale_by_sign(), policy=rgd(), side="out")
    name = om.rotate(optax.scale_by_sign(), policy="rgd", side="out")
    np.testing.assert_array_equal(run(same, stream(2))[0], run(name, stream(2))[0])


@pytest.mark.slow
def test_the_base_of_a_policy_squares_its_input_and_not_the_gradient():
    """The gradient is not in the rotated frame yet."""
    seen = []

    def step(side):
        seen.append(side.base(2 * side.momentum))
        return side.rotation

    base = om.scale_by_second_moment(0.0)
    tx = om.in_eigenbasis(base, policy=Policy(step), side="out")
    g = {"w": jnp.asarray(gaussian(3, 5))}
    tx.update(g, tx.init(g))
    np.testing.assert_allclose(seen[0], np.sign(g["w"]), rtol=1e-5)


@pytest.mark.broad
def test_eigenvalues_of_both_sides_stay_of_like_size():
    """Only their product counts. Left alone, one grows beyond the other without end."""
    base = om.transforms.scale_by_spectrum()
    tx = om.in_eigenbasis(base, "kl", side="both", decay=0.4)
    noise = np.float32(gaussian(400, 3, 6, seed=3))

    def body(state, g):
        _, state = tx.update({"w": g}, state)
        rows, cols = state.spectrum["w"]
        return state, jnp.max(rows) / jnp.max(cols)

    _, ratio = jax.lax.scan(body, tx.init({"w": noise[0]}), noise)
    np.testing.assert_array_less(np.abs(np.log2(ratio)), 3.0)
