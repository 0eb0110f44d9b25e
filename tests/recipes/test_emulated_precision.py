"""What lower precision does to methods, emulated on a CPU by rounding of the factors.

A product in TF32 has factors of 11 significant bits, one in bfloat16 of 8; both add up
in float32. Three passes also multiply what rounding left of one factor by the other.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _matrices import gaussian

import optax_matrix as om
from optax_matrix.linalg.precision import EXACT, Products
from optax_matrix.linalg.products import full_dot

pytestmark = pytest.mark.slow
BITS = {"tf32": 13, "bf16": 16}  # Those that float32 has more.


def rounded(x, drop):
    """Numbers with fewer bits, to nearest, ties to even."""
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
    half = (1 << (drop - 1)) - 1 + ((bits >> drop) & 1)
    short = (bits + half) & np.uint32(2**32 - 2**drop)
    return jnp.where(jnp.isfinite(x), jax.lax.bitcast_convert_type(short, x.dtype), x)


def one_pass(kind):
    drop = BITS[kind]
    return lambda x, y: full_dot(rounded(x, drop), rounded(y, drop))


def three_passes(kind):
    drop = BITS[kind]

    def dot(x, y):
        high = rounded(x, drop), rounded(y, drop)
        low = rounded(x - high[0], drop), rounded(y - high[1], drop)
        small = full_dot(high[0], low[1]) + full_dot(low[0], high[1])
        return full_dot(*high) + small

    return dot


TF32, BF16 = three_passes("tf32"), three_passes("bf16")
POLICIES = {
    "exact": EXACT,
    "default, CUDA": Products(BF16, BF16, TF32, TF32),
    "default, TPU": Products(BF16, BF16, BF16, full_dot),
    "fast, CUDA": Products(one_pass("tf32"), one_pass("tf32"), TF32, TF32),
    "fast, TPU": Products(BF16, one_pass("bf16"), BF16, full_dot),
}


def steps(name, precision, grads, **options):
    """The last update, and the state."""
    recipe = getattr(om, f"scale_by_{name}")
    tx = recipe(precision=precision, **options)
    state = tx.init(grads[0])
    update = jax.jit(tx.update)
    for g in grads:
        updates, state = update(g, state)
    return updates["kernel"], state


def gradients(count, m=96, n=256, rank=None):
    draw = lambda *shape, seed: jnp.asarray(gaussian(*shape, seed=seed), jnp.float32)
    if rank is None:
        return [{"kernel": draw(m, n, seed=s)} for s in range(count)]
    left = draw(m, rank, seed=100)
    return [{"kernel": left @ draw(rank, n, seed=s)} for s in range(count)]


def rotations(state):
    leaves = jax.tree.leaves_with_path(state)
    return [x for path, x in leaves if "rotation" in jax.tree_util.keystr(path)]


@pytest.mark.parametrize("kind", ["tf32", "bf16"])
def test_bases_freeze_if_one_pass_makes_them_orthonormal(kind):
    def moved(dot):
        grads, precision = gradients(2), EXACT._replace(bases=dot)
        options = {"update_interval": 1}
        old, new = (
            rotations(steps("soap", precision, grads[:k], **options)[1]) for k in (1, 2)
        )
        return max(float(jnp.abs(x - y).max()) for x, y in zip(old, new, strict=True))

    assert moved(one_pass(kind)) == 0
    assert moved(three_passes(kind)) > 0.1


def share_outside(name, precision, **options):
    """The share of an update that is outside the range of gradients of rank two."""
    grads = gradients(10, rank=2)
    update = steps(name, precision, grads, **options)[0]
    q, _ = jnp.linalg.qr(grads[0]["kernel"][:, :2])
    outside = update - full_dot(q, full_dot(q.T, update))
    return float(jnp.linalg.norm(outside) / jnp.linalg.norm(update))


LOW_RANK = {
    "galore": {"rank": 24, "update_interval": 5},
    "alice": {"rank": 24, "leading": 10, "update_interval": 5},
    "fira": {"rank": 24, "update_interval": 5},
    "dion": {"rank": 24},
    "eigen_adam": {"orientation": "in"},
}


@pytest.mark.parametrize("policy", ["exact", "default, CUDA", "default, TPU"])
@pytest.mark.parametrize("name", LOW_RANK)
def test_updates_stay_in_the_range_of_gradients_of_low_rank(name, policy):
    share = share_outside(name, POLICIES[policy], **LOW_RANK[name])
    assert share < 1e-4


@pytest.mark.parametrize("name", LOW_RANK)
def test_what_fast_gives_up(name):
    share = share_outside(name, POLICIES["fast, CUDA"], **LOW_RANK[name])
    assert share > 0.5  # Then this says what the docstring of `linalg.precision` says.


ERRORS = {  # Of the third update of `soap`, relative to that in full precision.
    ("project", "tf32", 1): 3e-3,
    ("statistics", "tf32", 1): 3e-3,
    ("bases", "tf32", 3): 3e-6,
    ("project", "bf16", 3): 1e-4,
    ("statistics", "bf16", 3): 1e-5,
    ("bases", "bf16", 3): 1e-4,
}


@pytest.mark.parametrize(("kind", "dtype", "passes"), ERRORS)
def test_error_of_one_step_by_class(kind, dtype, passes):
    dot = (one_pass if passes == 1 else three_passes)(dtype)
    grads = gradients(3)
    options = {"update_interval": 1, "side": "short"}
    exact = steps("soap", EXACT, grads, **options)[0]
    ours = steps("soap", EXACT._replace(**{kind: dot}), grads, **options)[0]
    error = float(jnp.linalg.norm(ours - exact) / jnp.linalg.norm(exact))
    assert 0 < error < ERRORS[kind, dtype, passes]
