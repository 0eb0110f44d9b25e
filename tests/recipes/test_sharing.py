"""ARO with one rotation for all that stands on one place of the residual stream."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _meshes import collectives, make_mesh
from _reference import rotations as reference
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec as P

import optax_matrix as om
from examples.pretrain.config import SIZES
from examples.pretrain.model import Llama

TINY = dataclasses.replace(SIZES["tiny"], embed=16, mlp=24, heads=2, layers=2)


def _tree(scan=False):
    config = dataclasses.replace(TINY, kv_heads=1, scan=scan)
    model = nnx.eval_shape(lambda: Llama(config, rngs=nnx.Rngs(0)))
    params = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    rng = np.random.default_rng(0)
    draw = lambda x: np.float32(rng.standard_normal(x.shape))
    return jax.tree.map(draw, params), om.matrices.infer(model)


def _rotations(state):
    return [
        x for x in jax.tree.leaves(state) if x.ndim == 3 and x.shape[1:] == (16, 16)
    ]


@pytest.mark.broad
@pytest.mark.parametrize(
    ("sharing", "sets"),
    [("global", 1), pytest.param("chain", 3, marks=pytest.mark.slow)],
)
def test_one_factorisation_for_each_place(sharing, sets):
    """1 and L + 1 of them, in place of 7 L."""
    params, rule = _tree()
    seen = []

    def qr(x, *, previous=None):
        seen.append(x.shape)
        return om.linalg.qr_householder(x, previous=previous)

    tx = om.scale_by_aro(sharing=sharing, dimension_numbers=rule, qr=qr)
    state = tx.init(params)
    seen.clear()
    updates, state = jax.jit(tx.update)(params, state)
    assert seen == [(sets, 16, 16)]
    rms = lambda x: float(jnp.sqrt(jnp.mean(x**2)))
    kernels = updates["layers"][0]["attn"]["q"]["kernel"]
    assert rms(kernels) == pytest.approx(0.2, rel=1e-3)


@pytest.mark.slow
def test_scanned_layers_are_the_same_layers():
    results = []
    for scan in (False, True):
        params, rule = _tree(scan)
        if not scan:
            plain = params
        else:
            stack = lambda *xs: jnp.stack(xs)
            layers = [plain["layers"][i] for i in plain["layers"]]
            params = {**plain, "layers": jax.tree.map(stack, *layers)}
        tx = om.scale_by_aro(sharing="chain", dimension_numbers=rule)
        updates, _ = jax.jit(tx.update)(params, tx.init(params))
        up = updates["layers"]
        results.append(
            up["mlp"]["up"]["kernel"][1] if scan else up[1]["mlp"]["up"]["kernel"]
        )
    np.testing.assert_allclose(*results, atol=1e-4)


@pytest.mark.daily("row_norm")
@pytest.mark.broad
@pytest.mark.parametrize(
    "base", ["row_norm", "adam", pytest.param("sinkhorn", marks=pytest.mark.slow)]
)
def test_joint_differs_from_member_only_where_a_base_looks_across(base):
    params, rule = _tree()
    both = []
    for joint in (True, False):
        tx = om.scale_by_aro(
            base=base, sharing="global", joint=joint, dimension_numbers=rule
        )
        updates, _ = jax.jit(tx.update)(params, tx.init(params))
        both.append(updates["layers"][0]["attn"]["o"]["kernel"])
    off = float(jnp.linalg.norm(both[0] - both[1]) / jnp.linalg.norm(both[0]))
    assert (off > 1e-2) == (base != "adam")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sharing", "kind"),
    [("global", "explicit"), ("chain", "auto"), ("chain", "explicit")],
)
def test_owners_share_across_devices(cpus, sharing, kind):
    params, rule = _tree()
    reference = om.aro(1e-2, sharing=sharing, dimension_numbers=rule)
    state = reference.init(params)
    step = jax.jit(reference.update)
    for _ in range(2):
        want, state = step(params, state, params)

    mesh = make_mesh("fsdp4-tp2", kind, cpus)
    spec = lambda x: P("fsdp", "tp") if x.ndim == 2 else P("fsdp")
    shardings = jax.tree.map(lambda x: NamedSharding(mesh, spec(x)), params)
    sharded = jax.device_put(params, shardings)
    tx = om.aro(
        1e-2,
        sharing=sharing,
        dimension_numbers=rule,
        placement=om.owners(("fsdp", "tp"), param_specs=shardings),
    )
    places = om.state_specs(tx, sharded, shardings)
    places = jax.tree.map(lambda spec: NamedSharding(mesh, spec), places)
    new = jax.jit(tx.init, out_shardings=places)(sharded)
    step = jax.jit(tx.update, out_shardings=(shardings, places))
    for _ in range(2):
        got, new = step(sharded, new, sharded)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), got, want)
    (rotation,) = [
        x for x in jax.tree.leaves(new) if x.shape[1:] == (16, 16) and x.shape[0] < 4
    ]
    assert all(np.array_equal(s.data, rotation) for s in rotation.addressable_shards)
    assert om.to_portable(new, sharded).keys() == om.to_portable(state, params).keys()


@pytest.mark.slow
@pytest.mark.parametrize("sharing", ["global", "chain"])
@pytest.mark.parametrize(
    ("base", "reductions"), [("sinkhorn", 12), ("row_norm", 4), ("sign", 2)]
)
def test_all_reduces_of_a_step(cpus, base, reductions, sharing):
    """The peak, the alignment, and the row norms of a joint base, twice."""
    mesh = make_mesh("fsdp4-tp2", "explicit", cpus)
    sides = {"up": "in", "down": "out"}
    numbers = {n: om.MatrixDimensionNumbers(residual=s) for n, s in sides.items()}
    rule = om.matrices.by_path(numbers=numbers)
    layer = {"up": jnp.ones((8, 4)), "down": jnp.ones((4, 8))}
    params = {f"layers_{i}": layer for i in range(8)}
    params = jax.device_put(params, NamedSharding(mesh, P("fsdp", "tp")))
    tx = om.scale_by_aro(
        base=base,
        sharing=sharing,
        dimension_numbers=rule,
        placement=om.owners(("fsdp", "tp")),
    )
    lowered = jax.jit(tx.update).lower(params, tx.init(params))
    assert lowered.as_text().count("stablehlo.all_reduce") == reductions
    # The compiler may join some of them.
    assert 0 < collectives(lowered.compile())["all-reduce"] <= reductions


@pytest.mark.broad
def test_a_checkpoint_goes_on_with_more_layers_and_another_sharing():
    rule = om.matrices.by_path(numbers={".": om.MatrixDimensionNumbers(residual="in")})
    tree = lambda n: {f"layers_{i}": {"up": jnp.ones((4, 6))} for i in range(n)}
    tx = lambda sharing: om.scale_by_aro(sharing=sharing, dimension_numbers=rule)
    old = om.to_portable(tx("chain").init(tree(2)), tree(2))
    old = {key: x + 3 for key, x in old.items()}
    rotation = "inner_state/1/rotation"
    assert old[rotation].shape == (3, 4, 4)
    for sharing, layers, sets in (("chain", 3, 4), ("global", 2, 1)):
        fresh = tx(sharing).init(tree(layers))
        fill = functools.partial(om.from_portable, old, fresh, tree(layers))
        with pytest.raises(
            ValueError, match=rf"no state for .*\({sets}, 4, 4\).*'init'"
        ):
            fill()
        new = om.to_portable(fill(missing="init"), tree(layers))
        want = np.broadcast_to(np.eye(4), (sets, 4, 4))
        np.testing.assert_array_equal(new[rotation], want)
        for name in ("layers_0/up", "layers_1/up"):
            assert np.all(new[f"inner_state/0/mu/{name}"] == 3)


def test_what_sharing_needs_is_said():
    with pytest.raises(ValueError, match=r"`sharing` must be one of .*'pairs'"):
        om.aro(1e-3, sharing="pairs")
    with pytest.raises(ValueError, match=r"`sharing` needs to know which side"):
        om.aro(1e-3, sharing="global").init({"dense": np.ones((4, 8), np.float32)})


@pytest.mark.broad
@pytest.mark.usefixtures("x64")
def test_members_weigh_in_the_shared_rotation_by_their_own_base():
    """Rows of n entries have the norm sqrt(n) (Eq. 11), which the sum of M D^T sees."""
    rng = np.random.default_rng(0)
    kernels = {"q": (4, 4), "up": (4, 7), "down": (7, 4)}
    stream = [{k: rng.standard_normal(s) for k, s in kernels.items()} for _ in range(3)]
    tree = lambda x: {"layers_0": {k: {"kernel": x[k]} for k in x}}
    tx = om.scale_by_aro(base="row_norm", sharing="global", joint=False)
    state, momenta, r = tx.init(tree(stream[0])), dict.fromkeys(kernels, 0.0), np.eye(4)
    update = jax.jit(tx.update)
    for gradient in stream:
        updates, state = update(tree(gradient), state)
        momenta = {k: 0.95 * m + 0.05 * gradient[k] for k, m in momenta.items()}
        sides = {k: m.T if k == "down" else m for k, m in momenta.items()}
        base = lambda x, r: reference.row_norm(r.T @ x)[0]
        gram = sum(x @ base(x, r).T for x in sides.values())
        r, triangle = np.linalg.qr(gram)
        r = r * np.sign(np.diag(triangle))
        for k, x in sides.items():
            want = r @ base(x, r)
            want *= 0.2 / np.sqrt(np.mean(want**2))
            got = updates["layers_0"][k]["kernel"]
            np.testing.assert_allclose(got.T if k == "down" else got, want, atol=1e-9)
