"""`scaling` takes a rule, a number, a function of the shape or a root mean square."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _matrices import gaussian, zeros
from _steps import first_update
from _tiers import tiered
from _walks import walk

import optax_matrix as om
from optax_matrix import recipes

# Their own size is not a polar factor's: `target_rms` scales each update.
MATCHED = {"aro", "eigen_sinkhorn", "eigen_sign", "eigen_rownorm", "sinkgd"}
MATCHED |= {"adamuon", "normuon", "sumo"}
NAMES = sorted(
    name.removeprefix("scale_by_")
    for name in recipes.__all__
    if name.startswith("scale_by_")
    and "scaling" in inspect.signature(getattr(om, name)).parameters
)
PARAMS = {"wide": zeros(6, 16), "tall": zeros(16, 6)}
GRADS = {
    name: np.float32(gaussian(*w.shape, seed=w.shape[0])) for name, w in PARAMS.items()
}


every_recipe = pytest.mark.parametrize("name", tiered(NAMES))


@functools.cache
def update(name, scaling):
    options = {"rank": 4} if name in {"sumo", "dion"} else {}
    tx = getattr(om, f"scale_by_{name}")(scaling=scaling, **options)
    return first_update(tx, GRADS, PARAMS)[0]


def rms(x):
    return float(np.sqrt(np.mean(np.asarray(x, np.float64) ** 2)))


def test_every_recipe_that_ends_in_a_size_has_the_argument():
    assert set(NAMES) == MATCHED | {
        *("muon", "muoneq", "muon_plus", "muon2", "aurora", "mousse", "soap_muon"),
        *("dion", "dion2", "swan"),
    }


@every_recipe
def test_numbers_functions_and_names_agree(name):
    plain = update(name, "none")
    seen = []

    def factor(rows, cols):
        seen.append((rows, cols))
        return 3.0 * rows + cols

    for leaf, x in update(name, 0.25).items():
        np.testing.assert_allclose(x, 0.25 * plain[leaf], rtol=1e-5, atol=1e-7)
    for leaf, x in update(name, factor).items():
        cols, rows = PARAMS[leaf].shape  # Kernels are (in, out).
        assert (rows, cols) in seen
        factor_here = 3.0 * rows + cols
        np.testing.assert_allclose(x, factor_here * plain[leaf], rtol=1e-5, atol=1e-5)


@every_recipe
def test_a_root_mean_square(name):
    found, plain = update(name, om.target_rms(0.18)), update(name, "none")
    for leaf, x in found.items():
        if name in MATCHED:
            assert rms(x) == pytest.approx(0.18, rel=1e-5)
        else:  # That of a polar factor, of which Newton-Schulz is near.
            factor = 0.18 * max(PARAMS[leaf].shape) ** 0.5
            np.testing.assert_allclose(x, factor * plain[leaf], rtol=1e-5, atol=1e-7)


@every_recipe
def test_a_root_mean_square_of_a_fifth_is_moonlights(name):
    word = "rms" if name in MATCHED else "max"
    jax.tree.map(
        lambda x, y: np.testing.assert_array_equal(x, y),
        update(name, om.target_rms(0.2)),
        update(name, word),
    )


@pytest.mark.broad
def test_muon_treats_a_root_mean_square_as_moonlight():
    params = {"w": jnp.ones((4, 8)), "b": jnp.ones(8)}
    step = lambda s: (tx := om.muon(0.1, scaling=s)).update(
        params, tx.init(params), params
    )[0]
    jax.tree.map(
        lambda x, y: np.testing.assert_array_equal(x, y),
        step(om.target_rms(0.2)),
        step("max"),
    )


@pytest.mark.broad
def test_vectors_of_a_full_model_have_no_shape_of_matrices():
    with pytest.raises(ValueError, match=r"`scaling` must be 'rms' or .*full_model"):
        om.aro(0.1, full_model=True, scaling=0.5)
    params = {"w": jnp.ones((4, 8)), "b": jnp.ones(8)}
    tx = om.aro(1.0, full_model=True, scaling=om.target_rms(0.3), weight_decay=0.0)
    updates, _ = jax.jit(tx.update)(params, tx.init(params), params)
    assert [rms(x) for x in updates.values()] == pytest.approx([0.3, 0.3], rel=1e-5)


def test_factors_of_numpy():
    factor = lambda rows, cols: np.float32(rows / cols) ** 0.5
    om.muon(0.1, scaling=factor).init(PARAMS)


@walk("name", NAMES)
@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("rows", "must be one of"),
        (-1.0, "must not be negative"),
        (lambda rows: rows, r"must be a function of \(rows, cols\) to a number"),
        (lambda *_: "max", r"is 'max'"),
        (None, "must be one of"),
    ],
)
def test_other_values_are_refused(name, value, said):
    with pytest.raises(ValueError, match=f"`scaling` .*{said}|`scaling` {said}"):
        getattr(om, name)(1e-3, scaling=value)
    with pytest.raises(ValueError, match="`rms` must be positive"):
        om.target_rms(0.0)
