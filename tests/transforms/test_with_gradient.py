"""`with_gradient` reaches every inner transformation, in the frame that it works in."""

import inspect
import itertools

import jax
import numpy as np
import optax
import pytest
from _matrices import gaussian

import optax_matrix as om
from optax_matrix.transforms import with_gradient
from optax_matrix.transforms.arguments import Transformation
from optax_matrix.transforms.rotation import Sets

transforms = om.transforms
pytestmark = pytest.mark.usefixtures("x64")
SHAPE = (2, 3, 4)
SETS = Sets({"w": np.zeros(2, np.int32)}, 1, {"w": ()})
# Every block with an inner transformation.
BLOCKS = {
    "rotate": lambda f: om.rotate(f, policy="eigen", side="both"),
    "rotate_shared": lambda f: transforms.rotation.rotate_shared(
        f, SETS, sides={"w": "in"}
    ),
    "in_eigenbasis": om.in_eigenbasis,
    "precondition": lambda f: om.precondition(f, method="eigh", side="in"),
    "project_low_rank": lambda f: om.project_low_rank(f, rank=2, basis="svd"),
    "project_both_sides": lambda f: transforms.low_rank.project_both_sides(
        f, rank=2, basis="svd"
    ),
    "in_blocks": lambda f: transforms.in_blocks(f, 2),
    "in_float32": om.transforms.in_float32,
    "keep_dtype": transforms.wrappers.keep_dtype,
    "quantize_state": lambda f: om.quantization.quantize_state(
        f, block_size=8, min_size=1
    ),
    "with_gradient": with_gradient,
    "add": lambda f: transforms.add(f, om.momentum(0.9), weights=(1.0, 0.0)),
    "per_matrix": om.per_matrix,
}
OTHERS = {"preserve_norm", "spo", "on_directions"}  # Below.


def echo():
    """A transformation that returns the gradient that it is given."""

    def update(updates, state, params=None, *, gradient, **extra_args):
        del updates, params, extra_args
        return gradient, state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update)


def runs(tx, updates, gradients=None):
    """The last updates and state, with gradients as the extra argument."""
    state, new = tx.init(updates[0]), None
    step = jax.jit(lambda x, state, extra: tx.update(x, state, **extra))
    for k, x in enumerate(updates):
        extra = {} if gradients is None else {"gradient": gradients[k]}
        new, state = step(x, state, extra)
    assert new is not None
    return np.asarray(new["w"]), state


def stream(seed, shape=SHAPE, steps=2):
    return [{"w": np.asarray(gaussian(*shape, seed=seed + k))} for k in range(steps)]


def test_every_block_with_an_inner_transformation_is_here():
    found = {"per_matrix", "quantize_state", "add"}
    families = [x for x in vars(transforms).values() if inspect.ismodule(x)]
    for name, function in itertools.chain(*(vars(x).items() for x in families)):
        if inspect.isfunction(function):
            parameters = inspect.signature(function).parameters
            first = next(iter(parameters.values()), None)
            if first and first.annotation in (Transformation, Transformation | None):
                found.add(name)
    assert found == {*BLOCKS} | OTHERS


def projections(name, state):
    """The projections onto the bases of rows and columns."""
    u = np.asarray(state.basis["w"].vectors)
    if name == "project_low_rank":
        return u @ u.mT, np.eye(SHAPE[-1])
    v = np.asarray(state.inner_state.basis["w"].vectors)
    return u @ u.mT, v @ v.mT


@pytest.mark.broad
@pytest.mark.parametrize("name", BLOCKS)
def test_the_gradient_is_in_the_frame_of_the_inner_transformation(name):
    """Brought back, it is the gradient, or what a projection leaves of it."""
    updates, gradients = stream(1), stream(7)
    got, state = runs(BLOCKS[name](echo()), updates, gradients)
    want = np.asarray((updates if name == "with_gradient" else gradients)[-1]["w"])
    if name.startswith("project"):
        left, right = projections(name, state)
        want = left @ want @ right
        assert np.abs(want - np.asarray(gradients[-1]["w"])).max() > 0.1
    if name == "precondition":
        want, _ = runs(BLOCKS[name](optax.identity()), gradients)
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)


@pytest.mark.broad
def test_the_gradient_keeps_its_size_where_a_norm_is_restored():
    new, _ = runs(om.transforms.preserve_norm(echo()), stream(1), stream(7))
    norm = lambda x: np.linalg.norm(x, axis=(1, 2), keepdims=True)
    want = stream(7)[-1]["w"] / norm(stream(7)[-1]["w"]) * norm(stream(1)[-1]["w"])
    np.testing.assert_allclose(new, want, rtol=1e-9)


@pytest.mark.broad
def test_the_gradient_is_that_of_the_directions():
    """Lengths stay, and directions move as by the gradient in place of the update."""
    params, update, gradient = (
        stream(1, steps=1),
        stream(3, steps=1),
        stream(7, steps=1),
    )

    def moved(direction, update, **extra):
        tx = om.transforms.on_directions(direction, optax.set_to_zero(), 0.1)
        return tx.update(update, tx.init(params[0]), params[0], **extra)[0]["w"]

    got = moved(echo(), update[0], gradient=gradient[0])
    want = moved(optax.identity(), gradient[0])
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)
    assert np.abs(np.asarray(got - moved(optax.identity(), update[0]))).max() > 1e-3


def test_primitives_refuse_a_gradient_of_the_weights():
    w = {"w": np.eye(4)}
    tx = with_gradient(om.spo(optax.sgd(0.1), block=2))
    with pytest.raises(ValueError, match=r"write spo\(with_gradient\(inner\)"):
        jax.eval_shape(tx.update, w, jax.eval_shape(tx.init, w), w)
    tx = om.spo(with_gradient(echo()), block=2)
    jax.eval_shape(tx.update, w, jax.eval_shape(tx.init, w), w)


AVERAGED = {
    "in_eigenbasis": lambda **m: om.in_eigenbasis(
        om.scale_by_second_moment(0.8), decay=0.9, **m
    ),
    "in_eigenbasis-kl": lambda **m: om.in_eigenbasis(
        transforms.scale_by_spectrum(), "kl", decay=0.9, update_interval=2, **m
    ),
    "precondition": lambda **m: om.precondition(decay=0.9, side="short", **m),
    "whiten": lambda **m: om.transforms.whiten(factor_rate=0.5, **m),
}


@pytest.mark.broad
@pytest.mark.parametrize("name", AVERAGED)
def test_behind_a_momentum_statistics_are_those_of_the_gradient(name):
    """A momentum in front, with the gradient, is the block's own momentum."""
    make, momentum, updates = AVERAGED[name], om.momentum(0.7), stream(1, steps=4)
    want, _ = runs(make(momentum=momentum), updates)
    chain = optax.chain(momentum, make())
    got, _ = runs(with_gradient(chain), updates)
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)


def conda(gradients, b1, b2, eps, interval):
    """Conda (arXiv 2509.24218), from its authors' program; on the short side."""
    m = v = u = 0.0
    for t, g in enumerate(gradients, 1):
        g = g if g.shape[0] <= g.shape[1] else g.T
        m = b1 * m + (1 - b1) * g
        if (t - 1) % interval == 0:
            u = np.linalg.svd(m, full_matrices=False)[0]
        v = b2 * v + (1 - b2) * (u.T @ g) ** 2
        size = np.sqrt(1 - b2**t) / (1 - b1**t)
        update = size * u @ (u.T @ m / (np.sqrt(v) + eps))
    return update if gradients[0].shape[0] <= gradients[0].shape[1] else update.T


@pytest.mark.broad
@pytest.mark.parametrize("interval", [1, 3])
@pytest.mark.parametrize("shape", [(4, 6), (6, 4)])
def test_conda_is_a_chain(shape, interval):
    moment = om.scale_by_second_moment(
        0.99, bias_correction=True, eps=1e-3, bounded=False
    )
    tx = with_gradient(
        optax.chain(
            om.momentum(0.9, bias_correction=True),
            om.rotate(moment, policy="eigen_exact", update_interval=interval),
        )
    )
    updates = stream(1, shape, steps=5)
    gradients = [np.asarray(x["w"]) for x in updates]
    want = conda(gradients, 0.9, 0.99, 1e-3, interval)
    np.testing.assert_allclose(runs(tx, updates)[0], want, rtol=1e-9, atol=1e-9)


@pytest.mark.broad
def test_the_direction_that_turns_a_frame_has_the_gradient():
    """A first step of ARO by hand."""
    m, g = (jax.device_put(stream(seed, (4, 6), steps=1)[0]) for seed in (1, 7))
    moment = om.scale_by_second_moment(0.9)
    f = lambda m, g: moment.update({"w": m}, moment.init({"w": m}), gradient={"w": g})
    d = f(m["w"], g["w"])[0]["w"]
    r = om.linalg.cholesky_qr(m["w"] @ d.mT)
    want = r @ f(r.mT @ m["w"], r.mT @ g["w"])[0]["w"]
    got, _ = runs(om.rotate(moment, side="out"), [m], [g])
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)


@pytest.mark.broad
def test_it_goes_inside_of_on_matrices_and_a_recipe_is_whole():
    params = {"up": {"kernel": np.ones((4, 6)), "bias": np.ones(6)}}
    chain = optax.chain(om.momentum(0.9), om.scale_by_second_moment())
    inside = om.on_matrices(with_gradient(chain))
    jax.eval_shape(inside.update, params, inside.init(params))
    tx = with_gradient(om.on_matrices(chain))
    with pytest.raises(ValueError, match=r"write on_matrices\(with_gradient\(chain"):
        jax.eval_shape(tx.update, params, tx.init(params))
    for recipe in (om.soap(0.1), om.aro(0.1, base="adam"), om.galore(0.1, rank=2)):
        plain, wrapped = (
            jax.make_jaxpr(tx.update)(params, tx.init(params), params)
            for tx in (recipe, with_gradient(recipe))
        )
        assert str(plain) == str(wrapped)
