"""The next ten updates after `adopt_state` are those of the program that it left."""

from functools import partial
from typing import Any

import _other_programs as sources
import jax
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import optax_matrix as om

# Two kernels of one shape, which share a stack, one of another shape, and a vector.
SHAPES = {
    "up": {"kernel": (4, 6)},
    "gate": {"kernel": (4, 6)},
    "down": {"kernel": (6, 4)},
    "square": {"kernel": (5, 5)},
    "norm": {"scale": (6,)},
}
IS_SHAPE = lambda x: isinstance(x, tuple)
BEFORE, AFTER = 40, 10


def gradients(seed):
    rng = np.random.default_rng(seed)
    draw = lambda shape: rng.standard_normal(shape)
    return jax.tree.map(draw, SHAPES, is_leaf=IS_SHAPE)


GRADS = [gradients(seed) for seed in range(BEFORE + AFTER)]
PARAMS = jax.tree.map(np.float32, gradients(1000))


def updates_of(tx, state, grads, params=PARAMS) -> tuple[list, Any]:
    """Updates by path, one for each of the gradients, and the last state."""
    found, update = [], jax.jit(tx.update)
    for grad in grads:
        updates, state = update(jax.tree.map(np.float32, grad), state, params)
        found.append(updates)
    return found, state


def run(rule, path, turn, **options):
    """A restated rule: its state after the first steps, and its next updates."""
    state, path = {}, path.split("/")
    grads = [turn(grad[path[0]][path[1]]) for grad in GRADS]
    for grad in grads[:BEFORE]:
        rule(state, grad, **options)
    kept = dict(state)
    return kept, [turn(rule(state, grad, **options)) for grad in grads[BEFORE:]]


def assert_same(ours, theirs, rtol=3e-5):
    """Every update of every leaf, to a share of its largest entry."""
    assert len(ours) == len(theirs) == AFTER
    for step, pair in enumerate(zip(ours, theirs, strict=True)):
        mine, wanted = map(jax.tree.leaves_with_path, pair)
        for (keys, x), (_, y) in zip(mine, wanted, strict=True):
            x, y = np.asarray(x, "float64"), np.asarray(y, "float64")
            gap = np.abs(x - y).max() / np.abs(y).max()
            assert gap < rtol, (step, jax.tree_util.keystr(keys), gap)


KERNELS = [f"{name}/kernel" for name in ("up", "gate", "down", "square")]
VECTOR = "norm/scale"
TRANSPOSED = lambda x: x.T


def from_torch(rule, other, **options):
    """State of a PyTorch program by path, as its user reads it, and its updates.

    The weights of PyTorch are ``(out, in)``; those of `PARAMS` are ``(in, out)``.
    """
    runs = {path: run(rule, path, TRANSPOSED, **options) for path in KERNELS}
    runs[VECTOR] = run(other, VECTOR, TRANSPOSED)
    state = {path: kept for path, (kept, _) in runs.items()}
    tree = lambda t: {
        name: {leaf: runs[f"{name}/{leaf}"][1][t] for leaf in shapes}
        for name, shapes in SHAPES.items()
    }
    return state, [tree(t) for t in range(AFTER)]


ADAM = partial(sources.torch_adamw, rate=1e-3, betas=(0.9, 0.95), eps=1e-8)
OTHER = optax.adam(1e-3, 0.9, 0.95)


def moved(old, tx, **options):
    """The state of our optimizer, through its portable form."""
    state = om.adopt_state(old, tx, PARAMS, **options)
    portable = om.to_portable(state, PARAMS)
    return om.from_portable(portable, jax.jit(tx.init)(PARAMS), PARAMS)


@pytest.mark.broad
def test_muon_of_optax():
    # What is left of its bias correction after 40 steps is 0.5**40.
    theirs = optax.contrib.muon(0.02, beta=0.5, adam_weight_decay=0.0)
    tx = om.muon(0.02, b1=0.5, other=optax.adamw(0.02, nesterov=True, weight_decay=0.0))
    _, old = updates_of(theirs, theirs.init(PARAMS), GRADS[:BEFORE])
    wanted, _ = updates_of(theirs, old, GRADS[BEFORE:])
    ours, _ = updates_of(tx, moved(old, tx), GRADS[BEFORE:])
    assert_same(ours, wanted)
    fresh, _ = updates_of(tx, tx.init(PARAMS), GRADS[BEFORE:])
    with pytest.raises(AssertionError):
        assert_same(fresh, wanted)


def test_muon_of_rollfast():
    rollfast = pytest.importorskip("rollfast.optim.muon")
    theirs = rollfast.muon(0.02, beta=0.5, adam_weight_decay=0.0)
    tx = om.muon(0.02, b1=0.5, other=optax.adamw(0.02, nesterov=True, weight_decay=0.0))
    _, old = updates_of(theirs, theirs.init(PARAMS), GRADS[:BEFORE])
    wanted, _ = updates_of(theirs, old, GRADS[BEFORE:])
    ours, _ = updates_of(tx, moved(old, tx), GRADS[BEFORE:])
    assert_same(ours, wanted)


@pytest.mark.broad
@pytest.mark.parametrize("recipe", [om.muon, om.muoneq])
def test_adamw_of_optax(recipe):
    """The other leaves go on as they were; matrices go on from Adam's average."""
    adamw = optax.adamw(1e-3, weight_decay=0.01)
    _, old = updates_of(adamw, adamw.init(PARAMS), GRADS[:BEFORE])
    tx = recipe(0.02, b1=0.9, other=adamw)
    with pytest.raises(ValueError, match="no place for nu of down/kernel"):
        om.adopt_state(old, tx, PARAMS)
    state = moved(old, tx, unused="drop")
    wanted, theirs = updates_of(adamw, old, GRADS[BEFORE:])
    ours, state = updates_of(tx, state, GRADS[BEFORE:])
    part = lambda steps: [{"norm": tree["norm"]} for tree in steps]
    assert_same(part(ours), part(wanted), rtol=1e-6)
    portable = om.to_portable(state, PARAMS)
    for path in KERNELS:
        mu = theirs[0].mu[path.split("/")[0]]["kernel"].T
        mine = portable[f"inner_state/0/mu/{path}"][0]
        np.testing.assert_allclose(mine, mu, rtol=1e-4, atol=1e-6)


@pytest.mark.broad
def test_adam_of_matrices_goes_on_as_soap_without_rotation():
    adam = optax.adam(1e-3, 0.9, 0.999, eps=0.0)
    _, old = updates_of(adam, adam.init(PARAMS), GRADS[:BEFORE])
    weights = {
        f"{place}/weight": dict.fromkeys(KERNELS, 1 - decay**BEFORE)
        for place, decay in {"momentum": 0.9, "base_state": 0.999}.items()
    }
    tx = om.soap(
        1e-3, b1=0.9, b2=0.999, policy="identity", weight_decay=0.0, other=adam
    )
    state = moved((old, weights), tx, missing="init")
    wanted, _ = updates_of(adam, old, GRADS[BEFORE:])
    assert_same(updates_of(tx, state, GRADS[BEFORE:])[0], wanted)


def _adam_leaf(state):
    leaf = state[VECTOR]
    return {"mu": {VECTOR: leaf["exp_avg"]}, "nu": {VECTOR: leaf["exp_avg_sq"]}}


def test_muon_of_torch():
    old, wanted = from_torch(sources.torch_muon, ADAM, rate=0.02, momentum=0.95)
    moments = _adam_leaf(old)
    moments["mu"] |= {path: old[path]["momentum_buffer"].T for path in KERNELS}
    tx = om.muon(0.02, other=OTHER)
    state = moved(moments, tx, count=BEFORE)
    assert_same(updates_of(tx, state, GRADS[BEFORE:])[0], wanted)


def test_the_restated_muon_is_that_of_torch():
    torch = pytest.importorskip("torch", minversion="2.9")
    weight = torch.nn.Parameter(torch.zeros(6, 4))
    theirs, state = torch.optim.Muon([weight], lr=0.02, weight_decay=0.0), {}
    for grad in GRADS[:AFTER]:
        before, grad = weight.detach().numpy().copy(), grad["up"]["kernel"].T
        weight.grad = torch.tensor(grad, dtype=torch.float32)
        theirs.step()
        update = sources.torch_muon(state, grad, 0.02, 0.95)
        moved_by = weight.detach().numpy() - before
        np.testing.assert_allclose(moved_by, update, atol=0.05 * 0.02)
    kept = theirs.state[weight]["momentum_buffer"].numpy()
    np.testing.assert_allclose(kept, state["momentum_buffer"], atol=1e-6)


def soap_moments(old, count, rotate=True):
    """Arrays of SOAP by our names; rows are the output side."""
    names = ("mu", "nu", "gram/rows", "gram/cols", "rotation/rows", "rotation/cols")
    moments = {name: {} for name in (*names, "weight")}
    for path in KERNELS:
        leaf = old[path]
        (left, right), mean = leaf["Q"], leaf["exp_avg"]
        if rotate:
            mean = left @ mean @ right.T
        found = (mean.T, leaf["exp_avg_sq"].T, *leaf["GG"], left, right)
        for name, array in zip(names, found, strict=True):
            moments[name][path] = array
        moments["weight"][path] = 1 - 0.95**count
    return moments


@pytest.mark.broad
def test_soap_of_torch():
    # The program skips its first step; no basis is renewed in the ten updates.
    old, wanted = from_torch(sources.torch_soap, ADAM, rate=3e-3, frequency=25)
    steps = old["up/kernel"]["step"]
    assert steps == BEFORE - 1
    moments = soap_moments(old, steps)
    for name, leaves in _adam_leaf(old).items():
        moments[name] |= leaves
    tx = om.soap(3e-3, update_interval=100, weight_decay=0.0, other=OTHER)
    state = moved(moments, tx, count=BEFORE)
    ours, _ = updates_of(tx, state, GRADS[BEFORE:])
    assert_same(ours, wanted, rtol=1e-4)


@pytest.mark.broad
def test_galore_of_torch():
    options = {"rate": 0.01, "rank": 2, "gap": 200, "scale": 0.25}
    old, wanted = from_torch(sources.torch_galore, ADAM, **options)
    moments = _adam_leaf(old) | {"basis/vectors": {}}
    for path in KERNELS:
        leaf = old[path]
        moments["mu"][path] = leaf["exp_avg"]
        moments["nu"][path] = leaf["exp_avg_sq"]
        moments["basis/vectors"][path] = leaf["ortho_matrix"]
    for place, decay in {"0/weight": 0.9, "1/weight": 0.999}.items():
        moments[place] = dict.fromkeys(KERNELS, 1 - decay**BEFORE)
    # The program projects the input side of square matrices, we the rows of all.
    turned = om.matrices.by_path(numbers={"square": om.MatrixDimensionNumbers(1, 0)})
    tx = om.galore(
        0.01, rank=2, eps=1e-6, basis="svd", dimension_numbers=turned, other=OTHER
    )
    state = moved(moments, tx, count=BEFORE)
    ours, _ = updates_of(tx, state, GRADS[BEFORE:])
    assert_same(ours, wanted, rtol=1e-4)


@pytest.mark.broad
def test_soap_jax():
    """Its first update after the move is ours; then it forgets its second moment."""
    options = {"rate": 3e-3, "frequency": 25}
    runs = {
        path: run(sources.soap_jax, path, TRANSPOSED, **options) for path in KERNELS
    }
    moments = soap_moments(
        {path: kept for path, (kept, _) in runs.items()}, BEFORE, rotate=False
    )
    tx = om.soap(3e-3, update_interval=100, weight_decay=0.0)
    state = moved(moments, tx, count=BEFORE, missing="init")
    ours, _ = updates_of(tx, state, GRADS[BEFORE:])
    for path, (_, wanted) in runs.items():
        mine = [np.asarray(step[path.split("/")[0]]["kernel"]) for step in ours]
        gaps = [
            np.abs(x - y).max() / np.abs(y).max()
            for x, y in zip(mine, wanted, strict=True)
        ]
        assert gaps[0] < 1e-4
        assert min(gaps[1:]) > 1e-3


@pytest.mark.broad
def test_matrices_on_owners():
    mesh = jax.make_mesh((8,), ("fsdp",), axis_types=(AxisType.Auto,))
    theirs = optax.contrib.muon(0.02)
    _, old = updates_of(theirs, theirs.init(PARAMS), GRADS[:BEFORE])
    tx = om.muon(0.02)
    params = jax.device_put(PARAMS, NamedSharding(mesh, P()))
    with jax.set_mesh(mesh):
        spread = om.muon(0.02, placement=om.owners.from_params(params, "fsdp"))
        state: Any = om.adopt_state(old, spread, params)
    held, wanted = (
        om.to_portable(s, PARAMS) for s in (state, om.adopt_state(old, tx, PARAMS))
    )
    assert set(held) == set(wanted)
    for key, array in wanted.items():
        np.testing.assert_array_equal(held[key], array)
    (stack,) = (x for x in state.inner_state[0].mu.values() if x.shape[1:] == (6, 4))
    assert len(stack) == 8
    assert not stack.sharding.is_fully_replicated
