"""What must be the same thing, and what must not."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _matrices import ones, zeros

import optax_matrix as om
from optax_matrix import linalg, recipes, transforms

PARAMS = {"a": {"kernel": zeros(6, 4)}, "b": {"kernel": zeros(3, 5)}}
BIASED = {**PARAMS, "norm": {"scale": ones(4)}}


def gradients(steps, params=PARAMS, seed=0):
    rng = np.random.default_rng(seed)
    draw = lambda p: rng.standard_normal((steps, *p.shape)).astype(np.float32)
    return jax.tree.map(draw, params)


def runner(tx, params=PARAMS):
    @jax.jit
    def scan(grads):
        def body(state, g):
            updates, state = tx.update(g, state, params)
            return state, updates

        return jax.lax.scan(body, tx.init(params), grads)[1]

    return lambda grads: jax.tree.map(np.asarray, scan(grads))


def updates_of(tx, grads, params=PARAMS):
    return runner(tx, params)(grads)


def gap(a, b):
    return max(
        jax.tree.leaves(jax.tree.map(lambda x, y: float(np.abs(x - y).max()), a, b))
    )


def transposed(tree):
    return jax.tree.map(lambda x: np.swapaxes(x, -1, -2), tree)


@pytest.mark.broad
def test_muoneq_without_equilibration_is_moonlights_muon():
    grads = gradients(6, BIASED)
    ours = updates_of(recipes.muoneq(0.1, mode=None), grads, BIASED)
    muon = updates_of(recipes.muon(0.1, scaling="max"), grads, BIASED)
    assert gap(ours, muon) == 0
    row = updates_of(recipes.muoneq(0.1, mode="row"), grads, BIASED)
    assert gap(row, muon) > 1e-3


def test_nesterov_average_is_variance_reduction_with_gamma_one_minus_b():
    b, grads = 0.9, gradients(12)
    nesterov = updates_of(optax.trace(b, nesterov=True), grads)
    nesterov = jax.tree.map(lambda x: (1 - b) * x, nesterov)  # the sum as an average

    def mvr(g):
        m, last, path = 0 * g[0], 0 * g[0], []
        for g_t in g:
            m = b * m + (1 - b) * g_t + (1 - b) * b * (g_t - last)
            last = g_t
            path.append(m)
        return np.stack(path)

    assert gap(nesterov, jax.tree.map(mvr, grads)) < 1e-6


@pytest.mark.broad
def test_swan_is_standardise_then_orthogonalize():
    grads = gradients(2)
    swan = updates_of(recipes.scale_by_swan(polar=linalg.polar_svd), grads)

    def by_hand(g):
        out_in = np.swapaxes(g, -1, -2).astype(np.float64)
        rows = out_in - out_in.mean(-1, keepdims=True)
        rows /= rows.std(-1, keepdims=True)
        u, s, vt = np.linalg.svd(rows, full_matrices=False)
        # Rows without mean leave one direction of a tall matrix empty.
        polar = (u * (s > 1e-6)[..., None, :]) @ vt
        return np.swapaxes(0.2 * np.sqrt(max(g.shape[1:])) * polar, -1, -2)

    # float32, condition number of a few.
    assert gap(swan, jax.tree.map(by_hand, grads)) < 2e-5


@pytest.mark.broad
def test_swan_gives_nothing_for_constant_rows_when_compiled():
    """Eager or not: their standardized rows are zero, not rounding noise."""
    tx = recipes.scale_by_swan()
    values = np.random.default_rng(0).standard_normal((5, 1, 4)).astype(np.float32)
    for n in (5, 6, 7):
        grads = {"kernel": values * ones(n, 1)}  # (in, out)
        params = {"kernel": jnp.zeros((n, 4))}
        np.testing.assert_array_equal(updates_of(tx, grads, params)["kernel"], 0)


@pytest.mark.broad
def test_sinkgd_is_one_equilibration():
    grads = gradients(2)
    recipe = updates_of(recipes.scale_by_sinkgd(scaling=om.target_rms(1.0)), grads)
    kernel = partial(linalg.sinkhorn, scheme="alternating")
    block = updates_of(transforms.equilibrate(kernel), transposed(grads))
    assert gap(transposed(recipe), block) < 1e-6


CHAINS = {
    "muoneq": (
        recipes.scale_by_muoneq(b1=0.8),
        optax.chain(
            optax.trace(0.8, nesterov=True),
            transforms.equilibrate(linalg.scale_rows),
            transforms.orthogonalize(linalg.newton_schulz),
            transforms.scale_by_shape("max"),
        ),
    ),
    "racs": (
        recipes.scale_by_racs(),
        optax.chain(
            transforms.equilibrate_with_ema(linalg.rank_one_scales, 0.9, max_rms=4.0),
            transforms.limit_norm_growth(1.01),
            optax.scale(0.05),
        ),
    ),
    "normuon": (
        recipes.scale_by_normuon(scaling="out/in"),
        optax.chain(
            optax.trace(0.95, nesterov=True),
            transforms.orthogonalize(linalg.newton_schulz),
            transforms.preserve_norm(
                transforms.equilibrate_with_ema(transforms.row_rms, 0.95)
            ),
            transforms.scale_by_shape("out/in"),
        ),
    ),
    "mars_adamw": (
        recipes.scale_by_mars_adamw(),
        optax.chain(
            transforms.correct_variance(0.025, 0.95, 1.0),
            optax.scale_by_adam(0.95, 0.99),
        ),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CHAINS)
def test_recipe_is_the_chain_of_its_blocks(name):
    recipe, chain = CHAINS[name]
    grads = gradients(4)
    # The chain sees plain matrices, out x in; the recipe sees Flax kernels, in x out.
    by_hand = updates_of(chain, transposed(grads), transposed(PARAMS))
    assert gap(transposed(updates_of(recipe, grads)), by_hand) < 1e-5


@pytest.mark.broad
def test_a_complete_recipe_is_scale_decay_rate():
    grads = gradients(3)
    params = jax.tree.map(lambda p: p + 1.0, PARAMS)
    chain = optax.chain(
        recipes.scale_by_muoneq(),
        optax.add_decayed_weights(0.3),
        optax.scale_by_learning_rate(0.2),
    )
    whole = updates_of(recipes.muoneq(0.2, weight_decay=0.3), grads, params)
    assert gap(whole, updates_of(chain, grads, params)) == 0


def test_scale_by_leaves_other_leaves_alone():
    grads = gradients(2, BIASED)
    out = updates_of(recipes.scale_by_muon(), grads, BIASED)
    np.testing.assert_array_equal(out["norm"]["scale"], grads["norm"]["scale"])
    assert gap(out["a"], grads["a"]) > 0.1


@pytest.mark.broad
def test_the_two_adamuons_differ():
    grads = gradients(3)
    sign = updates_of(recipes.scale_by_adamuon(variant="sign"), grads)
    unsigned = updates_of(recipes.scale_by_adamuon(variant="unsigned"), grads)
    assert gap(sign, unsigned) > 0.05


@pytest.mark.broad
@pytest.mark.parametrize(
    "tx",
    [
        recipes.scale_by_muon(),
        recipes.scale_by_muoneq(),
        recipes.scale_by_swan(),
        recipes.scale_by_racs(),
    ],
    ids=["muon", "muoneq", "swan", "racs"],
)
def test_updates_do_not_see_the_scale_of_the_loss(tx):
    grads, run = gradients(8), runner(tx)
    base = run(grads)
    largest = max(np.abs(x).max() for x in jax.tree.leaves(base))
    scaled = lambda factor: jax.tree.map(lambda g: np.float32(factor) * g, grads)
    # A few roundings of 2**-24 in both runs, amplified by NS5's slope at zero, 485,
    # where a direction is empty (SWAN takes the mean out of every row).
    tolerance = 4 * 485 * 2.0**-23 * largest
    assert gap(run(scaled(1e-3)), base) < tolerance
    assert gap(run(scaled(1e3)), base) < tolerance


def test_muoneq_row_mode_scales_output_neurons_of_a_flax_kernel():
    grads = gradients(1)
    kernel = grads["a"]["kernel"]  # (step, in, out)
    run = runner(recipes.scale_by_muoneq(mode="row", eps=0.0))
    base = run(grads)["a"]["kernel"]

    def update_with(scaled):
        return run({**grads, "a": {"kernel": scaled}})["a"]["kernel"]

    output, inputs = kernel.copy(), kernel.copy()
    output[:, :, 1] *= 100
    inputs[:, 1, :] *= 100
    np.testing.assert_allclose(update_with(output), base, atol=1e-4)
    assert np.abs(update_with(inputs) - base).max() > 0.02


@pytest.mark.daily("callable")
@pytest.mark.broad
@pytest.mark.parametrize("as_tree", [False, True], ids=["callable", "tree"])
def test_weight_decay_reaches_what_the_mask_says(as_tree):
    params = {"kernel": jnp.full((3, 4), 2.0), "scale": jnp.ones(3), "b": jnp.ones(3)}
    mask = {"kernel": True, "scale": False, "b": True}
    chosen = mask if as_tree else (lambda p: {name: mask[name] for name in p})
    tx = recipes.muoneq(0.1, weight_decay=0.5, weight_decay_mask=chosen)
    zero = jax.tree.map(jnp.zeros_like, params)
    updates, _ = jax.jit(tx.update)(zero, tx.init(params), params)
    np.testing.assert_allclose(updates["kernel"], -0.1 * 0.5 * 2.0, rtol=1e-6)
    np.testing.assert_allclose(updates["b"], -0.1 * 0.5, rtol=1e-6)
    np.testing.assert_array_equal(updates["scale"], 0)


def test_public_functions_are_those_of_the_package():
    for name in recipes.__all__:
        assert getattr(om.recipes, name) is getattr(recipes, name)
