"""Placement changes nothing but rounding: real gradients on one device and on eight.

Every recipe gets the gradients of 30 steps of a decoder with grouped-query attention.
Its updates on eight devices are compared with those on one device, entry by entry,
relative to the RMS of the leaf's update in that step. What rounding may do is measured
on one device: the same, with gradients that differ by one ulp.

Gradients of the attention's output are nearly singular: query heads that share a value
head see nearly the same values. Half of the singular values are below 1e-3 of the
largest, the last is 1e-6 of it. Float32 does not determine the eigenvectors of their
Gram matrices, and a method that divides every direction by its size in such a frame may
differ by as much as the update itself. For these methods float64 shows whether
placement does more.

``pytest -m slow -rP tests/sharding/test_same_results.py`` prints the measures.
"""

import inspect

import jax
import numpy as np
import optax
import pytest
from _meshes import make_mesh, put
from _recorded import recorded
from _registry import LOW_RANK, TABLE, small
from jax.sharding import NamedSharding, PartitionSpec as P

import optax_matrix as om

# Float32 on the first mesh, float64 on the second: both on both take twice as long.
PLACEMENTS = {"fsdp8": om.owners("fsdp"), "fsdp4-tp2": om.owners(("fsdp", "tp"))}
# Float32 does not determine the updates of these: float64 on both meshes.
AMPLIFYING = {
    *("aro", "eigen_adam", "eigen_rownorm", "eigen_sign", "eigen_sinkhorn"),
    *("kl_shampoo", "kl_soap", "soap", "soap_muon", "splus"),
}
# Of other leaves there is one of each shape, tall, wide or square.
LEFT_OUT = ("lm_head", "down", "mlp_norm", "attn_norm")
is_kept = lambda path: not any(word in path for word in LEFT_OUT)
# Deviations that need no explanation. The slope of Newton-Schulz at zero is 485, and
# the largest of 1000 entries is some four times the RMS.
POLAR, PLAIN = 4 * 4 * 485, 100  # In epsilons.
FACTOR = 10  # Over the largest of three perturbations.
LARGEST = 1e-4  # In float64, whatever rounding may do.


def build(name, dtype, placement=None):
    """The recipe; subspaces have a quarter of the directions and move three times."""
    words = inspect.signature(TABLE[name]).parameters
    options = {"placement": placement}
    if name in LOW_RANK:
        options |= {"rank": 8, "leading": 4, "update_interval": 10}
    if name in {"soap", "splus", "kl_shampoo"} and dtype == "float64":
        # The longer side has a null space at step 1, in which any basis is as good.
        options["side"] = "short"
    options = {word: value for word, value in options.items() if word in words}
    return small(name, **options)(0.01)


def spec_of(path, mesh_name):
    tp = "tp" if mesh_name == "fsdp4-tp2" else None
    if path.endswith("scale"):
        return P()
    writes = path.endswith(("o/kernel", "embedding"))
    return P(tp, "fsdp") if writes else P("fsdp", tp)


def updates_of(tx, params, state):
    """Function from the gradients to the updates of all steps, one program."""

    @jax.jit
    def run(params, state, grads):
        def step(carry, grad):
            params, state = carry
            updates, state = tx.update(grad, state, params)
            return (optax.apply_updates(params, updates), state), updates

        return jax.lax.scan(step, (params, state), grads)[1]

    return lambda grads: jax.tree.map(np.asarray, run(params, state, grads))


def on_eight(name, dtype, mesh_name, placement, params, grads, devices):
    mesh = make_mesh(mesh_name, "explicit", devices)
    at = {path: NamedSharding(mesh, spec_of(path, mesh_name)) for path in params}
    along = {p: NamedSharding(mesh, P(None, *at[p].spec)) for p in params}
    tx = build(name, dtype, placement and PLACEMENTS[mesh_name])
    with jax.set_mesh(mesh):
        placed = put(params, at)
        to_sharding = lambda spec: NamedSharding(mesh, spec)
        places = jax.tree.map(to_sharding, om.state_specs(tx, placed, at))
        state = jax.tree.map(jax.device_put, tx.init(placed), places)
        return updates_of(tx, placed, state)(put(grads, along))


def deviation(got, want):
    """The largest over leaves and steps: ``(value, path, step)``."""

    def largest(path):
        axes = tuple(range(1, want[path].ndim))
        x, y = (np.asarray(tree[path], np.float64) for tree in (got, want))
        rms = np.sqrt(np.mean(y * y, axes))
        off = np.abs(x - y).max(axes) / np.where(rms == 0, 1, rms)
        assert np.isfinite(off).all(), path
        return off.max(), path, int(off.argmax())

    return max(map(largest, want))


def perturbed(grads, seed):
    """The gradients, one ulp up or down."""
    rng = np.random.default_rng(seed)
    ulp = lambda x: np.finfo(x.dtype).eps * rng.choice([-1, 1], x.shape)
    return {path: x + (x * ulp(x)).astype(x.dtype) for path, x in grads.items()}


def on_one(name, dtype):
    """Parameters, gradients, updates, and the largest deviation by one ulp."""
    params, grads = (
        {p: x.astype(dtype) for p, x in tree.items() if is_kept(p)}
        for tree in recorded()
    )
    tx = build(name, dtype)
    alone = updates_of(tx, params, tx.init(params))
    want = alone(grads)
    own = max(deviation(alone(perturbed(grads, s)), want) for s in range(3))
    return params, grads, want, own


def shown(name, dtype, measure, found):
    value, path, step = found
    print(f"{name} {dtype} {measure}: {value:.0e} at {path}, step {step}")


@pytest.mark.slow
@pytest.mark.parametrize("mesh_name", PLACEMENTS)
@pytest.mark.parametrize("name", TABLE)
def test_same_results(name, mesh_name, cpus):
    single = mesh_name == "fsdp8" and name not in AMPLIFYING
    dtype = "float32" if single else "float64"
    with jax.enable_x64(dtype == "float64"):
        params, grads, want, own = on_one(name, dtype)
        found = {
            placement: deviation(
                on_eight(name, dtype, mesh_name, placement, params, grads, cpus), want
            )
            for placement in (None, "owners")
        }
    for measure, largest in {"one ulp": own, **found}.items():
        shown(name, dtype, f"{mesh_name} {measure}", largest)
    eps = float(np.finfo(dtype).eps)
    plain = eps * (
        POLAR if "polar" in inspect.signature(TABLE[name]).parameters else PLAIN
    )
    for placement, (value, *where) in found.items():
        assert value <= plain + FACTOR * own[0], (placement, where)
        assert single or value <= LARGEST, (placement, where)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(AMPLIFYING))
def test_float32_does_not_determine_some_updates(name):
    *_, own = on_one(name, "float32")
    shown(name, "float32", "one ulp", own)
    assert own[0] > 0.1
