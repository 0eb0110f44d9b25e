"""`finish_step`: each rule by its source, in NumPy, matrix by matrix."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _steps import first_update

import optax_matrix as om

RULES = ("hyperball", "relative_update", "radial_brake", "row_floor")
STARTS = {"wide": (3, 5), "stack": (2, 4, 3)}
finish_step = om.transforms.finish_step


def draw(seed, dtype=jnp.float32, scale=1.0):
    rng = np.random.default_rng(seed)
    return {
        name: np.asarray(scale * rng.standard_normal(shape), dtype)
        for name, shape in STARTS.items()
    }


def emerging_optimizers(rule, w, update, lr, start):
    """Hooks around ``p.add_(update, alpha=-lr)``; `modded-nanogpt` for the floor."""
    old = np.linalg.norm(w)
    if rule == "hyperball":
        radius = np.linalg.norm(start)
        new = w - lr * update * radius / np.linalg.norm(update)
        return new * radius / np.linalg.norm(new)
    if rule == "relative_update":
        return w - lr * update * old / np.linalg.norm(update)
    if rule == "radial_brake":
        new = w - lr * update
        delta = np.linalg.norm(new) - old
        target = old + (0.5 if delta >= 0 else 1.0) * delta
        return new * target / np.linalg.norm(new)
    r = np.linalg.norm(w, axis=1, keepdims=True)
    s = np.linalg.norm(update, axis=1, keepdims=True)
    return w - lr * update * np.maximum(0.3825 * r / s, 1.0)


def matrices(*trees):
    for name, shape in STARTS.items():
        stacks = [np.asarray(t[name]).reshape(-1, *shape[-2:]) for t in trees]
        yield from zip(*stacks, strict=True)


@pytest.mark.quick("relative_update-False")
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("scheduled", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_steps_are_those_of_the_source(rule, scheduled):
    rate = (lambda count: 0.3 / (1 + count)) if scheduled else 0.3
    tx, tree = finish_step(rule, rate), draw(0, jnp.float64)
    state, start, update = tx.init(tree), tree, jax.jit(tx.update)
    grown = set()
    for t in range(6):
        # Some steps lead out and some lead in, some rows are short and some are long.
        lean = jax.tree.map(lambda w: 0.5 * (-1) ** t * w, tree)  # noqa: B023
        directions = jax.tree.map(np.add, draw(t + 1, jnp.float64, 0.5), lean)
        down = jax.tree.map(np.negative, directions)
        steps, state = update(down, state, tree)
        new = jax.tree.map(np.add, tree, jax.device_get(steps))
        lr = 0.3 / (1 + t if scheduled else 1)
        for got, w, u, w_0 in matrices(new, tree, directions, start):
            want = emerging_optimizers(rule, w, u, lr, w_0)
            np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-14)
            grown.add(bool(np.linalg.norm(w - lr * u) > np.linalg.norm(w)))
            short = 0.3825 * np.linalg.norm(w, axis=1) > np.linalg.norm(u, axis=1)
            grown.update(f"short {x}" for x in short)
        tree = new
    assert grown == {True, False, "short True", "short False"}


def spectral(rate, **options):
    return finish_step("hyperball", rate, norm="spectral", **options)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("radius", ["initial", "current"])
def test_spectral_norms_of_diagonal_weights_are_exact(radius):
    """Their singular vectors stand still: W' = R (W + rate R D / |D|) / |...|."""
    place = lambda *x: np.stack([np.diag(x), -2 * np.diag(x)])[:, :, [2, 0, 1]]
    w, rate = {"stack": place(4.0, 2.0, 1.0)}, 0.1
    tx = spectral(rate, radius=radius)
    state, update = jax.jit(tx.init)(w), jax.jit(tx.update)
    for t in range(3):
        d = {"stack": place(5.0, -3.0, 1.0 + t)}
        steps, state = update(d, state, w)
        for new, old, x in zip(*(a["stack"] for a in (steps, w, d)), strict=True):
            top = lambda x: np.abs(x).max()
            moved = old + rate * top(old) * x / top(x)
            want = moved * top(old) / top(moved)
            np.testing.assert_allclose(old + new, want, rtol=1e-12, atol=1e-13)
        w = jax.tree.map(np.add, w, jax.device_get(steps))


def test_a_direction_that_leaves_its_vector_is_followed():
    """Columns that take turns are orthogonal, and the next step is not lost."""
    w = {"w": np.eye(3, 4, dtype=np.float32)}
    tx = spectral(0.5)
    state, update = jax.jit(tx.init)(w), jax.jit(tx.update)
    for column in (0, 1, 2, 3):
        d = np.zeros((3, 4), np.float32)
        d[:, column] = 1.0
        steps, state = update({"w": d}, state, w)
        vector = np.abs(state.update["w"][:, 0])
        np.testing.assert_allclose(vector, np.eye(4)[column], atol=1e-6)
        assert np.abs(steps["w"]).max() > 0.01


SPECTRA = {
    "gaussian": None,
    "decaying": lambda i: 1 / (1 + i),
    "eight near 1": lambda i: np.where(i < 8, 1 - 0.001 * i, 0.5),
    "all near 1": lambda i: 1 - 0.0005 * i,
}


def of_spectrum(rng, kind, m, n):
    """A random matrix with the singular values of a kind."""
    x = rng.standard_normal((m, n))
    if SPECTRA[kind] is None:
        return x
    u, s, vt = np.linalg.svd(x, False)
    return u * SPECTRA[kind](np.arange(len(s))) @ vt


@pytest.mark.broad
@pytest.mark.parametrize(("rate", "most"), [(0.01, 1.005), (0.05, 1.012)])
def test_spectral_norms_are_held_better_by_four_vectors(rate, most):
    """As the docstring says; `pytest -s` prints what it measures.

    Updates are polar factors, of noise in the first half of a stack and of its momentum
    in the second one. An estimate from below leaves no norm below R.
    """
    rng, kinds, over = np.random.default_rng(0), [*SPECTRA] * 2, {}
    shapes = {"24 x 24": (24, 24), "64 x 48": (64, 48), "12 x 40": (12, 40)}
    start = {
        name: np.float32([of_spectrum(rng, kind, *shape) for kind in kinds])
        for name, shape in shapes.items()
    }
    norm = lambda w: np.linalg.norm(w, 2, axis=(-2, -1))
    radius, tx = jax.tree.map(norm, start), spectral(rate)
    first, update = jax.jit(tx.init)(start), jax.jit(tx.update)
    one = lambda vectors: jax.tree.map(lambda v: v[..., :1], vectors)
    alone = first._replace(weights=one(first.weights), update=one(first.update))
    noise = lambda: {k: rng.standard_normal(x.shape) for k, x in start.items()}
    stream = [noise() for _ in range(50)]
    for name, x in radius.items():
        held = np.ravel(first.radius[name])
        np.testing.assert_allclose(held, x, rtol=2e-3)
        radius[name] = held
    for count, state in ((1, alone), (4, first)):
        w = start
        momenta, worst = jax.tree.map(np.zeros_like, start), np.zeros(len(kinds))
        for grads in stream:
            momenta = jax.tree.map(lambda a, g: 0.95 * a + g, momenta, grads)
            d = {}
            for name, g in grads.items():
                half = len(kinds) // 2
                x = np.concatenate([g[:half], momenta[name][half:]])
                u, _, vt = np.linalg.svd(x, full_matrices=False)
                d[name] = np.float32(u @ vt)
            steps, state = update(d, state, w)
            w = jax.tree.map(np.add, w, jax.device_get(steps))
            for name, x in w.items():
                share = norm(x) / radius[name]
                assert (share > 1 - 1e-5).all(), (count, name, share)
                worst = np.maximum(worst, share)
        over[count] = worst.reshape(2, -1).max(0)
        pairs = zip(SPECTRA, 100 * over[count] - 100, strict=True)
        shown = ", ".join(f"{kind} {x:.2f}%" for kind, x in pairs)
        print(f"step {rate}, {count} vectors, norms above R by at most {shown}")
    assert (over[4] < most).all()
    assert (over[4] - 1 <= 0.6 * (over[1] - 1) + 1e-4).all()


@pytest.mark.broad
def test_the_brake_takes_nothing_from_a_step_inwards():
    tx, w = finish_step("radial_brake"), jax.tree.map(jnp.asarray, draw(0))
    inwards = jax.tree.map(lambda x: -0.1 * x, w)
    steps, state = tx.update(inwards, tx.init(w), w)
    jax.tree.map(np.testing.assert_array_equal, steps, inwards)
    outwards = jax.tree.map(lambda x: 0.1 * x, w)
    steps, _ = tx.update(outwards, state, w)
    for name, x in steps.items():
        np.testing.assert_allclose(x, 0.05 * w[name], rtol=1e-4, atol=1e-7)


@pytest.mark.broad
@pytest.mark.parametrize("outward", [0.0, 1.0])
def test_shares_of_the_brake(outward):
    """With 0 no step leads out of the sphere; with 1 there is no brake."""
    tx = finish_step("radial_brake", outward=outward)
    w, step = jax.tree.map(jnp.asarray, (draw(0), draw(1)))
    steps, _ = tx.update(step, tx.init(w), w)
    new = optax.apply_updates(w, steps)
    for name, x in new.items():
        got, old = (np.linalg.norm(y, axis=(-2, -1)) for y in (x, w[name]))
        if outward:
            np.testing.assert_allclose(steps[name], step[name], rtol=1e-4, atol=1e-6)
        else:
            assert (got < old * (1 + 1e-5)).all()
            assert (got > old * (1 - 1e-5)).any()


@pytest.mark.broad
def test_the_current_radius_needs_no_state():
    fixed, current = (
        finish_step("hyperball", 0.1, radius=r) for r in ("initial", "current")
    )
    w, u = jax.tree.map(jnp.asarray, (draw(0), draw(1)))
    assert current.init(w).radius is None
    a, b = (tx.update(u, tx.init(w), w)[0] for tx in (fixed, current))
    jax.tree.map(np.testing.assert_array_equal, a, b)
    twice = jax.tree.map(lambda x: 2 * x, w)
    norm = lambda tx: optax.apply_updates(twice, tx.update(u, tx.init(w), twice)[0])
    size = lambda tree: np.linalg.norm(tree["wide"])
    assert size(norm(fixed)) == pytest.approx(size(w), rel=1e-5)
    assert size(norm(current)) == pytest.approx(2 * size(w), rel=1e-5)


@pytest.mark.quick("bfloat16-relative_update")
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("scale", [1.0, 1e-18, 1e18])
def test_zeros_ranks_and_extremes_stay_finite(rule, dtype, scale):
    tx = finish_step(rule, 0.1)
    w = draw(0, dtype)
    u = jax.tree.map(lambda x: (scale * x).astype(dtype), draw(1, dtype))
    u["wide"][:] = 0
    u["stack"][0, 1:] = 0  # One row, and another matrix.
    state = jax.eval_shape(tx.init, w)
    steps, new = first_update(tx, u, w)
    types = lambda tree: jax.tree.map(lambda x: (x.shape, x.dtype), tree)
    assert types(steps) == types(w)
    assert types(new) == types(state)
    for x in steps.values():
        assert np.isfinite(x).all()
    assert np.abs(steps["wide"]).max() < (1e-6 if dtype == jnp.float32 else 0.02)
    steps, _ = first_update(tx, u, jax.tree.map(np.zeros_like, w))
    moved = any(x.any() for x in steps.values())
    assert moved == (rule in ("radial_brake", "row_floor") and dtype(scale) > 0)


@pytest.mark.broad
def test_it_must_get_parameters_and_known_words():
    w = draw(0)
    tx = finish_step("row_floor")
    with pytest.raises(ValueError, match="`params` must be passed to `update`"):
        tx.update(w, tx.init(w))
    with pytest.raises(ValueError, match="`rule` must be one of 'hyperball', 'rel"):
        finish_step("brake")
    with pytest.raises(ValueError, match="`outward` must be a number from 0 to 1"):
        finish_step("radial_brake", outward=2.0)
    with pytest.raises(ValueError, match="`norm` must be 'frobenius' for the rule 'ro"):
        finish_step("row_floor", norm="spectral")
    with pytest.raises(ValueError, match="`params` must be passed to `update`"):
        spectral(0.1).update(w, jax.eval_shape(spectral(0.1).init, w))
    with pytest.raises(ValueError, match="`floor` must be positive"):
        finish_step("row_floor", floor=0.0)
    tx = om.on_matrices(tx, needs_params=True)
    params = {"kernel": np.ones((3, 4), np.float32)}
    with pytest.raises(ValueError, match="`params` must be passed to `update`"):
        tx.update(params, tx.init(params))


@pytest.mark.quick("relative_update")
@pytest.mark.parametrize("rule", RULES)
def test_around_an_optimizer_rows_are_outputs(rule):
    """Kernels are ``(in, out)``, and every layer has its own norm."""
    rng = np.random.default_rng(0)
    params = {"up": {"kernel": np.float32(rng.standard_normal((2, 5, 3)))}}
    draw_like = lambda w: np.float32(0.1 * w + rng.standard_normal(w.shape))
    grads = jax.tree.map(draw_like, params)
    block = finish_step(rule, 0.5)
    tx = optax.chain(optax.sgd(1.0), om.on_matrices(block, needs_params=True))
    updates, _ = first_update(tx, grads, params)
    new = jax.tree.map(np.add, params, updates)
    kernels = [np.asarray(t["up"]["kernel"]) for t in (new, params, grads)]
    for new, w, u in zip(*kernels, strict=True):
        want = emerging_optimizers(rule, w.T, u.T, 0.5, w)
        np.testing.assert_allclose(new.T, want, rtol=2e-5, atol=1e-6)
