"""The rotated methods against their float64 references, and the whole optimizers."""

import inspect
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _matrices import gaussian, zeros
from _reference import rotations as ref
from _reference.kernels import YOU, newton_schulz5
from _reference.whitening import kron
from _registry import ROTATED

import optax_matrix as om
from optax_matrix.linalg import polar_svd
from optax_matrix.linalg.random import normal, seeded

SHAPES = {"tall": (7, 4), "wide": (4, 7), "square": (5, 5)}
# For ARO and its kind: rows of so many signs differ in more than one.
LONGER = {"tall": (16, 4), "wide": (4, 16), "square": (16, 16)}
OUT_IN = om.MatrixDimensionNumbers(1, 0)
NUMBERS = {name: OUT_IN for name in SHAPES}
# Six float64 steps. Roots of matrices with condition numbers of 1e6 (the damping) lose
# six digits or fewer.
ROUNDING = 1e-9


def gradients(shape, steps=6):
    """A direction with noise, so that rotations have something to track.

    A small matrix of signs is often singular, and then the rotation arbitrary; with
    this seed no M D' of the references has a condition number above 41.
    """
    mean, noise = gaussian(*shape, seed=31), gaussian(steps, *shape, seed=32)
    return mean + noise / 2


STREAM = {name: gradients(shape) for name, shape in SHAPES.items()}
LONGER_STREAM = {name: gradients(shape) for name, shape in LONGER.items()}


def updates_of(tx, stream=STREAM):
    """The updates of all matrices, and the first state."""
    start = tx.init({n: jnp.asarray(x[0]) for n, x in stream.items()})

    @jax.jit
    def scan(state, grads):
        def body(state, g):
            updates, state = tx.update(g, state)
            return state, updates

        return jax.lax.scan(body, state, grads)[1]

    return jax.tree.map(np.asarray, scan(start, stream)), start


def follow(step, name, stream=STREAM):
    state = {}
    return np.stack([step(g, state) for g in stream[name]])


def short_side(step):
    """The step on the transpose where that has fewer rows."""

    def turned(g, state):
        return step(g.T, state).T if g.shape[0] > g.shape[1] else step(g, state)

    return turned


def prefer_right(step):
    """ARO, Section 6.5: transposed where m >= n."""

    def turned(g, state):
        return step(g.T, state).T if g.shape[0] >= g.shape[1] else step(g, state)

    return turned


def matched(step):
    return lambda g, state: ref.rms_matched(step(g, state))


class PowerSteps:
    """In the place of eigenvectors: one power step each, from the identity."""

    def __init__(self, sides):
        self.last, self.turn = [None] * sides, 0

    def __call__(self, gram):
        last = self.last[self.turn]
        new = ref.qr(gram if last is None else gram @ last)
        self.last[self.turn] = new
        self.turn = (self.turn + 1) % len(self.last)
        return new


def eigen_adam(**options):
    return lambda g, s: short_side(partial(ref.eigen_adam, **options))(g, s)


def eigen_adam_by_power_steps():
    return short_side(partial(ref.eigen_adam, interval=10, basis=PowerSteps(1)))


def bias_corrected(step, b1, b2):
    """Adam's correction of both moments."""

    def corrected(g, state):
        update = step(g, state)
        return update * np.sqrt(1 - b2 ** state["t"]) / (1 - b1 ** state["t"])

    return corrected


def moonlight(step):
    return lambda g, state: 0.2 * max(g.shape) ** 0.5 * step(g, state)


def eigen(base):
    return aro(base=base, policy="eigen")


def aro(base=ref.sinkhorn, **options):
    return prefer_right(matched(partial(ref.aro, base=base, **options)))


def damped(step, eps=1e-6):
    """With the package's damping, relative to the largest eigenvalue."""
    power = ref.symmetric_power

    def damped_power(a, exponent):
        top = np.linalg.eigvalsh(a)[-1]
        return power(a + eps * top * np.eye(len(a)), exponent)

    def run(g, state):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ref, "symmetric_power", damped_power)
            return step(g, state)

    return run


def vectors(n):
    """Those that the package estimates norms with."""
    return np.asarray(normal(seeded(0), (), 32, n, jnp.float64))


PRINTED = {
    "b1": 0.9,
    "b2": 0.9,
    "b3": 0.999,
    "policy": "eigen_exact",
    "bias_correction": False,
    "bounded": False,
    "update_interval": 2,
}
EXACT_MOUSSE = {
    "polar": polar_svd,
    "scaling": "none",
    "eps": 0.0,
    "method": "eigh",
    "update_interval": 3,
}
# The direction, its arguments; the reference, made anew for each matrix; first step
# that is compared: where the factors are singular, the reference's basis of their null
# space, or its root, is nothing but rounding errors.
CASES = {
    "aro": ("aro", {}, aro, 0),
    "aro-adam": ("aro", {"base": "adam"}, lambda: aro(base=ref.two_fold_adam), 0),
    "aro-polar": (
        "aro",
        {"base": "sign", "policy": "polar"},
        lambda: aro(base=ref.sign, policy="polar"),
        0,
    ),
    "eigen_sinkhorn": ("eigen_sinkhorn", {}, lambda: eigen(ref.sinkhorn), 0),
    "eigen_sign": ("eigen_sign", {}, lambda: eigen(ref.sign), 0),
    "eigen_rownorm": ("eigen_rownorm", {}, lambda: eigen(ref.row_norm), 0),
    "eigen_adam": ("eigen_adam", {}, eigen_adam_by_power_steps, 0),
    "eigen_adam-printed": (
        "eigen_adam",
        {"policy": "eigen_exact", "update_interval": 2},
        lambda: eigen_adam(interval=2),
        0,
    ),
    "soap-printed": ("soap", PRINTED, lambda: partial(ref.soap, interval=2), 1),
    "splus-published": (
        "splus",
        {"policy": "eigen_exact", "update_interval": 2, "scale": 0.5},
        lambda: partial(ref.splus, interval=2, scale=0.5),
        2,
    ),
    "shampoo": ("shampoo", {}, lambda: damped(partial(ref.shampoo, eps=0.0)), 0),
    "shampoo-averages": (
        "shampoo",
        {"b2": 0.9, "root": 2, "method": "eigh"},
        lambda: damped(partial(ref.shampoo, eps=0.0, decay=0.9, root=2)),
        0,
    ),
    # Before the statistics have full rank, the reference divides noise by noise.
    "kl_shampoo": (
        "kl_shampoo",
        {"policy": "eigen_exact", "update_interval": 2, "b2": 0.8},
        lambda: partial(ref.kl_shampoo, interval=2, b2=0.8, basis=ref.eigenvectors),
        1,
    ),
    "kl_shampoo-out": (
        "kl_shampoo",
        {"policy": "eigen_exact", "update_interval": 2, "side": "out"},
        lambda: partial(
            ref.kl_shampoo, interval=2, sides=("out",), basis=ref.eigenvectors
        ),
        1,
    ),
    "kl_soap": (
        "kl_soap",
        {"policy": "eigen_exact", "update_interval": 2, "bounded": False},
        lambda: partial(
            ref.kl_shampoo, interval=2, basis=ref.eigenvectors, soap_b2=0.98
        ),
        1,
    ),
    "kron": ("kron", {"damping": 0.0}, lambda: partial(kron, vectors=vectors), 0),
    "kron-momentum": (
        "kron",
        {
            **{"b1": 0.8, "statistics": "momentum", "factor_rate": 0.5},
            **{"bound_decay": 0.5, "damping": 0.0, "init_scale": 0.3},
            **{"max_skew": None, "max_dim": 5, "update_interval": 2},
            **{"max_rms": 1.0, "max_entry": 1.5},
        },
        lambda: partial(
            kron,
            **{"b1": 0.8, "of": "momentum", "rate": 0.5},
            **{"bound_decay": 0.5, "damping": 0.0, "scale": 0.3},
            **{"max_skew": np.inf, "max_dim": 5, "interval": 2},
            **{"max_rms": 1.0, "max_entry": 1.5, "vectors": vectors},
        ),
        0,
    ),
    "soap_muon": (
        "soap_muon",
        {"policy": "eigen_exact", "polar": polar_svd, "update_interval": 2}
        | {"scaling": "none"},
        lambda: short_side(partial(ref.soap_muon, interval=2)),
        1,
    ),
    # Of the roots of step 1 only those of full rank count, for tall and wide none.
    "mousse": (
        "mousse",
        EXACT_MOUSSE,
        lambda: partial(ref.mousse, interval=3, eps=1e-13),
        3,
    ),
    "mousse-nesterov": (
        "mousse",
        EXACT_MOUSSE | {"nesterov": True},
        lambda: partial(ref.mousse, interval=3, eps=1e-13, nesterov=True),
        3,
    ),
}
QUICK = ("aro", "shampoo")


def tier(case):
    return pytest.mark.slow if "-" in case else pytest.mark.broad  # Variants are slow.


def test_every_rotated_recipe_has_a_case():
    assert {case[0] for case in CASES.values()} | {"dion"} == ROTATED


@pytest.mark.broad
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "case",
    [c if c in QUICK else pytest.param(c, marks=tier(c)) for c in CASES],
)
def test_direction_follows_its_reference(case):
    name, arguments, reference, first = CASES[case]
    tx = getattr(om, f"scale_by_{name}")(dimension_numbers=NUMBERS, **arguments)
    stream = LONGER_STREAM if name == "aro" or "sign" in name else STREAM
    got, _ = updates_of(tx, stream)
    for matrix in SHAPES:
        want = follow(reference(), matrix, stream)[first:]
        size = np.abs(want).max()
        np.testing.assert_allclose(
            got[matrix][first:], want, rtol=0, atol=ROUNDING * size, err_msg=matrix
        )


@pytest.mark.parametrize(
    ("recipe", "options", "side"),
    [
        (om.scale_by_aro, {}, 5),
        (om.scale_by_aro, {"orientation": "short"}, 3),
        (om.scale_by_aro, {"orientation": "out"}, 3),
        (om.scale_by_aro, {"orientation": "in"}, 5),
        (om.scale_by_eigen_adam, {}, 3),
        (om.scale_by_eigen_adam, {"orientation": "residual"}, 5),
    ],
)
def test_the_side_that_rotates_is_the_one_asked_for(recipe, options, side):
    reader = om.MatrixDimensionNumbers(1, 0, residual="in")
    tx = recipe(dimension_numbers={"up": reader}, **options)
    state = jax.eval_shape(tx.init, {"up": zeros(3, 5)})
    shapes = {x.shape for x in jax.tree.leaves(state)}
    assert {(1, n, n) for n in (3, 5)} & shapes == {(1, side, side)}


ALL_95 = {"b1": 0.95, "b2": 0.95, "b3": 0.95}
# With the defaults: renewals by power steps, five steps of Newton-Schulz.
DEFAULTS = {
    "soap": lambda: bias_corrected(
        partial(ref.soap, **ALL_95, interval=10, basis=PowerSteps(2)), 0.95, 0.95
    ),
    "splus": lambda: partial(ref.splus, interval=10, basis=PowerSteps(2)),
    "kl_shampoo": lambda: partial(ref.kl_shampoo, interval=10),
    "kl_soap": lambda: partial(ref.kl_shampoo, interval=10, soap_b2=0.98),
    "mousse": lambda: moonlight(
        partial(
            ref.mousse,
            eps=0.0,
            damping=1e-6,
            orthogonalize=partial(newton_schulz5, rows=YOU),
        )
    ),
}


@pytest.mark.broad
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults_follow_the_reference(name):
    """On the square matrix, whose first statistics have full rank."""
    stream = {"square": gradients(SHAPES["square"], steps=12)}
    tx = getattr(om, f"scale_by_{name}")(dimension_numbers={"square": OUT_IN})
    got, _ = updates_of(tx, stream)
    want = follow(DEFAULTS[name](), "square", stream)
    np.testing.assert_allclose(got["square"], want, rtol=0, atol=ROUNDING)


BOTH_EVERY_10 = {"side": "both", "update_interval": 10}
PUBLISHED = {
    "soap": ALL_95 | BOTH_EVERY_10 | {"bias_correction": True},
    "kl_shampoo": {"b1": 0.9, "b2": 0.98} | BOTH_EVERY_10,
    "kl_soap": {"b1": 0.9, "b2": 0.98, "b3": 0.98, "bias_correction": False}
    | BOTH_EVERY_10,
    "soap_muon": {"b1": 0.95, "b2": 0.98, "side": "short", "power": 0.5},
    "splus": {"b1": 0.9, "b2": 0.999, "scale": 2.0, "side": "both"},
    "mousse": {"b1": 0.95, "b2": 0.95, "root": 8} | BOTH_EVERY_10,
    "kron": {"b1": 0.9, "factor_rate": 0.1, "max_rms": 2.0, "statistics": "gradient"},
    "shampoo": {"b1": None, "b2": None, "root": 4, "update_interval": 1},
    "eigen_adam": {"b1": 0.9, "b2": 0.9, "b3": 0.999},
    "dion": {"b1": 0.95, "rank": 1.0, "scaling": "unclipped"},
    "aro": {"b1": 0.95, "b2": 0.95, "update_interval": 1, "scaling": "rms"},
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_defaults_are_those_of_the_sources(name):
    decay = {"weight_decay": WHOLE[name][0]}
    for prefix, more in (("scale_by_", {}), ("", decay)):
        parameters = inspect.signature(getattr(om, prefix + name)).parameters
        for argument, value in (PUBLISHED[name] | more).items():
            assert parameters[argument].default == value, argument


@pytest.mark.broad
@pytest.mark.usefixtures("x64")
def test_soap_goes_along_with_its_authors_code():
    """Its deviations cost 1.4% of the cosine, and 2% of the size.

    Measured with b1 = 0.9, b2 = 0.8, b3 = 0.7, an interval of 37 or one side: cosines
    of 0.973, 0.974, 0.961, 0.959 and 0.957.
    """
    noise = gaussian(200, 5, 6, seed=2) * np.linspace(1, 3, 5)[:, None]
    stream = {"wide": 2 * gaussian(5, 6, seed=1) + noise}
    got, _ = updates_of(om.scale_by_soap(dimension_numbers={"wide": OUT_IN}), stream)
    x, y = got["wide"][50:], follow(ref.soap_as_published, "wide", stream)[50:]
    sizes = np.linalg.norm(x, axis=(1, 2)), np.linalg.norm(y, axis=(1, 2))
    assert np.mean(np.sum(x * y, axis=(1, 2)) / sizes[0] / sizes[1]) > 0.98
    assert 0.97 < np.mean(sizes[0] / sizes[1]) < 1.03


@pytest.mark.daily("1.0", "1")
@pytest.mark.broad
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("rank", "columns"), [(1.0, (4, 5)), (0.5, (2, 3)), (1, (1, 1))]
)
def test_dion_follows_its_reference(rank, columns):
    tx = om.scale_by_dion(rank=rank, dimension_numbers=NUMBERS)
    got, start = updates_of(tx)
    for matrix, shape in SHAPES.items():
        name = next(n for n in start.manifest if n.startswith(f"{shape[0]}x{shape[1]}"))
        (right,) = np.asarray(start.inner_state[0].right[name])
        assert right.shape == (shape[1], columns[matrix == "square"])
        want = follow(partial(ref.dion, q0=right, eps=0.0), matrix)
        np.testing.assert_allclose(got[matrix], want, atol=ROUNDING)


@pytest.mark.broad
def test_bias_correction_is_adams():
    """In the frame of the identity SOAP is Adam with its bias correction."""
    soap = om.scale_by_soap(b1=0.9, b2=0.8, policy="identity")
    got, _ = updates_of(soap)
    want, _ = updates_of(optax.scale_by_adam(0.9, 0.8, eps=0.0))
    for matrix in SHAPES:
        np.testing.assert_allclose(got[matrix], want[matrix], rtol=1e-4, atol=1e-5)


WHOLE = {
    "aro": (0.1, 1.0),
    "eigen_sinkhorn": (0.1, 1.0),
    "eigen_sign": (0.1, 1.0),
    "eigen_rownorm": (0.1, 1.0),
    "eigen_adam": (0.0, 1.0),
    "soap": (0.01, 1.0),
    "kl_shampoo": (0.01, 1.0),
    "kl_soap": (0.01, 1.0),
    "kron": (0.01, 1.0),
    "soap_muon": (0.0, 1.0),
    "splus": (0.01, 0.001),
    "shampoo": (0.0, 1.0),
    "mousse": (0.1, 1.0),
    "dion": (0.01, 1.0),
}
DECAYS = {"splus": 2 / (4 + 3)}  # In the scale of the update; others have 1.


@pytest.mark.slow
@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_recipe_is_direction_decay_rate_and_adamw(name):
    weight_decay, ratio = WHOLE[name]
    decay = optax.add_decayed_weights(weight_decay * DECAYS.get(name, 1.0))
    chain = optax.partition(
        {
            "matrix": optax.chain(
                getattr(om, f"scale_by_{name}")(),
                decay,
                optax.scale_by_learning_rate(0.5),
            ),
            "other": optax.adamw(0.5 * ratio, 0.9, 0.95, weight_decay=0.0),
        },
        om.matrices.label_params(),
    )
    params = {"kernel": jnp.asarray(gaussian(4, 3), jnp.float32), "bias": jnp.ones(3)}
    grads = {"kernel": params["kernel"] + 1, "bias": jnp.arange(3.0)}
    whole = getattr(om, name)(0.5)
    got, want = (
        jax.jit(tx.update)(grads, tx.init(params), params)[0] for tx in (whole, chain)
    )
    for leaf in params:
        np.testing.assert_allclose(got[leaf], want[leaf], rtol=1e-6, atol=1e-7)


@pytest.mark.broad
def test_the_decay_of_splus_is_its_authors():
    """In the scale of the update, of each section by itself; of what the mask says."""
    rate, decay = 0.2, 0.01
    kernel = jnp.asarray(gaussian(4, 9), jnp.float32)
    params = {"fused": kernel, "kept": kernel, "bias": jnp.ones(3)}
    fused = om.MatrixDimensionNumbers(0, 1, output_sections=(6, 3))
    tx = om.splus(
        rate,
        policy="identity",
        weight_decay=decay,
        weight_decay_mask={"fused": True, "kept": False, "bias": True},
        dimension_numbers={"fused": fused, "kept": fused, "bias": None},
    )
    grads = jax.tree.map(jnp.zeros_like, params)
    updates, _ = jax.jit(tx.update)(grads, tx.init(params), params)
    for part in (slice(0, 6), slice(6, 9)):
        want = ref.splus_decay(kernel[:, part], rate, decay) - kernel[:, part]
        np.testing.assert_allclose(updates["fused"][:, part], want, atol=2e-7)
    assert not updates["kept"].any()
    np.testing.assert_allclose(updates["bias"], -0.001 * rate * decay, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", ["soap", "splus"])
def test_large_sides_do_not_rotate(name):
    shapes = {"tall": (7, 4), "wide": (4, 7), "large": (8, 7)}
    stream = {n: gradients(shape) for n, shape in shapes.items()}
    numbers = dict.fromkeys(shapes, OUT_IN)
    recipe = partial(getattr(om, f"scale_by_{name}"), dimension_numbers=numbers)
    (got, start), (short, _), (plain, _) = (
        updates_of(recipe(**options), stream)
        for options in ({"max_dim": 5}, {"side": "short"}, {"policy": "identity"})
    )
    for matrix, want in (("tall", short), ("wide", short), ("large", plain)):
        np.testing.assert_allclose(got[matrix], want[matrix], atol=1e-12)
    shapes = {x.shape[1:] for x in jax.tree.leaves(start)}
    assert (4, 4) in shapes
    assert not {(7, 7), (8, 8)} & shapes


@pytest.mark.parametrize("name", ["soap", "splus"])
def test_a_side_is_large_above_ten_thousand(name):
    params = {"up": jax.ShapeDtypeStruct((64, 10_001), jnp.float32)}
    for options, rotates in (({}, False), ({"max_dim": None}, True)):
        tx = getattr(om, name)(0.1, **options)
        leaves = jax.tree.leaves(jax.eval_shape(tx.init, params))
        assert ((1, 10_001, 10_001) in {x.shape for x in leaves}) == rotates


@pytest.mark.slow
def test_no_decomposition_is_in_a_default_step():
    params = {"kernel": jnp.ones((4, 6)), "other_kernel": jnp.ones((6, 4))}
    for name in ROTATED:
        tx = getattr(om, f"scale_by_{name}")()
        step = jax.make_jaxpr(tx.update)(params, jax.eval_shape(tx.init, params))
        found = {e for e in ("eigh", "svd", "householder") if e in str(step)}
        assert not found, (name, found)


# Identities


@pytest.mark.broad
def test_eigen_adam_in_the_frame_of_the_identity_is_adam():
    got, _ = updates_of(om.scale_by_eigen_adam(policy="identity", b1=0.8, b2=0.9))
    adam = optax.chain(
        optax.scale_by_adam(0.8, 0.9, eps=0.0), optax.scale_by_schedule(uncorrected)
    )
    want, _ = updates_of(adam)
    for matrix in SHAPES:
        np.testing.assert_allclose(got[matrix], want[matrix], rtol=1e-4, atol=1e-5)


def uncorrected(count):
    """What Adam's bias correction multiplies by, undone."""
    return (1 - 0.8 ** (count + 1)) / jnp.sqrt(1 - 0.9 ** (count + 1))


@pytest.mark.daily("eigen_exact")
@pytest.mark.broad
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("policy", ["eigen", "eigen_exact"])
def test_soap_with_one_side_off_is_eigen_adam(policy):
    options = {"b1": 0.9, "b2": 0.8, "b3": 0.95, "policy": policy, "update_interval": 2}
    soap = om.scale_by_soap(side="short", bias_correction=False, **options)
    got, _ = updates_of(soap)
    want, _ = updates_of(om.scale_by_eigen_adam(**options))
    for matrix in SHAPES:
        np.testing.assert_allclose(got[matrix], want[matrix], atol=1e-12)


@pytest.mark.slow
def test_momentum_first_eigen_recipes_are_aro_with_that_policy():
    pairs = {"eigen_sign": "sign", "eigen_sinkhorn": "sinkhorn"}
    for name, base in pairs.items():
        one, _ = updates_of(getattr(om, f"scale_by_{name}")())
        other, _ = updates_of(om.scale_by_aro(base=base, policy="eigen"))
        for matrix in SHAPES:
            np.testing.assert_array_equal(one[matrix], other[matrix])


@pytest.mark.broad
@pytest.mark.usefixtures("x64")
def test_full_rank_dion_approaches_aro_with_row_norms():
    """On slowly changing momentum: its right factor is that of the last step.

    Measured, relative distance of the updates at steps 1, 2, 5, 10, 20, 50, 200:
    0.39, 0.25, 0.067, 0.0053, 0.00099, 0.00065, 0.00075. Noise keeps them apart.
    """
    steps = 200
    rng = np.random.default_rng(0)
    mean = rng.standard_normal((5, 8))
    grads = mean + 0.05 * rng.standard_normal((steps, 5, 8))

    def run(tx):
        tx = optax.chain(tx, om.match_rms(1.0))

        @jax.jit
        def scan(grads):
            def body(state, g):
                out, state = tx.update({"w": g}, state)
                return state, out["w"]

            return jax.lax.scan(body, tx.init({"w": grads[0]}), grads)[1]

        return np.asarray(scan(jnp.asarray(grads)))

    momentum = optax.trace(0.95)
    rows = optax.chain(momentum, om.rotate(om.equilibrate(om.linalg.scale_rows)))
    dion, aro = run(om.transforms.orthogonalize_low_rank(1.0)), run(rows)
    gap = np.linalg.norm(dion - aro, axis=(1, 2)) / np.linalg.norm(aro, axis=(1, 2))
    assert gap[0] > 0.3
    assert gap[9] < 0.05
    assert gap[100:].max() < 0.01
    assert gap[100:].min() > 1e-6
