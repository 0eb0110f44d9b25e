"""`whiten` beside another program of the same rule, rollfast's `kron`, on its draws.

psgd_jax has an older rule, with triangular factors, and cannot be compared.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import optax_matrix as om
from optax_matrix.linalg.random import folded, normal, seeded

psgd = pytest.importorskip("rollfast.optim.psgd")

STEPS = 30
SHAPES = {"wide": (6, 10), "tall": (12, 5), "square": (7, 7)}
OPTIONS = {
    "default": {},
    "no momentum": {"b1": 0.0},
    "momentum": {"whiten_grad": False, "preconditioner_init_scale": 0.5},
}


def running_mean(b1):
    """rollfast's momentum, as psgd_torch's: the first gradients count alike."""

    def update(updates, state, _=None):
        count, mean = state
        b = jnp.minimum(count / (1 + count), b1)
        mean = jax.tree.map(lambda m, g: b * m + (1 - b) * g, mean, updates)
        return mean, (count + 1, mean)

    start = lambda params: (jnp.zeros(()), jax.tree.map(jnp.zeros_like, params))
    return optax.GradientTransformation(start, update)


def gradients(shape):
    """Noise with a mean, of very different rows; root mean squares are one.

    So the damping, which is relative here and absolute there, is the same.
    """
    rng = np.random.default_rng(0)
    scales = np.geomspace(1, 10, shape[0])[:, None] * np.geomspace(1, 3, shape[1])
    grads = scales * (rng.standard_normal((STEPS, *shape)) + 0.3)
    grads = grads / np.sqrt(np.mean(grads**2, axis=(1, 2), keepdims=True))
    return jnp.asarray(grads, jnp.float32)


def theirs(grads, options):
    """The updates of rollfast, whose draws are replaced by those of `whiten`."""
    _, *shape = grads.shape
    tx = psgd.scale_by_kron(
        preconditioner_update_probability=1.0,
        precond_update_precision="float32",
        precond_grads_precision="float32",
        key=jax.random.key(0),
        **options,
    )
    vectors = {(32, n): normal(seeded(0), (), 32, n, jnp.float32) for n in shape}
    keys = [folded(seeded(0), jnp.array([0, step])) for step in range(STEPS)]
    noises = jnp.stack([normal(key, (), *shape, jnp.float32) for key in keys])

    def step(state, inputs):
        g, noise = inputs
        draws = vectors | {tuple(shape): noise}
        drawn = lambda _, shape, dtype: draws[shape].astype(dtype)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(psgd.jax.random, "normal", drawn)
            updates, state = tx.update(g, state)
        return state, updates

    return jax.lax.scan(step, tx.init(grads[0]), (grads, noises))[1]


def ours(grads, options):
    _, m, n = grads.shape
    b1 = options.get("b1", 0.9)
    average = running_mean(b1) if b1 else optax.identity()
    whitened = om.transforms.whiten(
        "gradient" if options.get("whiten_grad", True) else "momentum",
        side="both" if m == n else "short",
        init_scale=options.get("preconditioner_init_scale"),
        momentum=average,
    )
    tx = optax.chain(whitened, optax.clip(10.0))
    step = lambda state, g: tx.update(g, state)[::-1]
    return jax.lax.scan(step, tx.init(grads[0]), grads)[1]


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("case", OPTIONS)
def test_updates_are_those_of_rollfast(name, case):
    """To rounding: 3e-7 to 8e-7 of the largest entry were measured."""
    grads = gradients(SHAPES[name])
    got, want = (f(grads, OPTIONS[case]) for f in (ours, theirs))
    error = np.abs(got - want).max() / np.abs(want).max()
    assert error < 5e-6, error
