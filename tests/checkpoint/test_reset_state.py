"""`reset_state`: chosen matrices as in a fresh state, all others bit for bit."""

import flax.nnx as nnx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _matrices import gaussian, ones
from _registry import RECIPES, SHAPES, tree
from _tiers import tiered
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import optax_matrix as om
from optax_matrix.checkpoint import reset_state, to_portable

PARAMS = tree(0, scale=0.1)
PATHS = {"/".join(k.key for k in keys) for keys, _ in jax.tree.leaves_with_path(PARAMS)}
# Matrices as a whole, one layer of two, and a leaf that is no matrix.
WHERE = {
    "tall": True,
    "wide": {"kernel": False},
    "square": {"kernel": True, "bias": True},
    "layers": {"kernel": np.array([True, False])[:, None, None]},
    "embed": {"embedding": False},
    "temperature": False,
}
NOT_PER_LAYER = {"manifest", "sides", "paths", "values"}  # Of labels and of `monitor`.
WHOLE = {"tall/kernel", "square/kernel", "square/bias"}


def trained(tx, params, steps=3):
    state, update = jax.jit(tx.init)(params), jax.jit(tx.update)
    for seed in range(steps):
        _, state = update(tree(seed + 1), state, params)
    return state


def path_of(key):
    return next((p for p in PATHS if key == p or key.endswith(f"/{p}")), None)


def assert_reset(new, old, fresh, params=PARAMS):
    """The new state is fresh where WHERE says so, and the old one elsewhere."""
    new, old, fresh = (to_portable(state, params) for state in (new, old, fresh))
    assert set(new) == set(old)
    moved = set()
    for key, got in new.items():
        path, want = path_of(key), np.asarray(old[key])
        if path in WHOLE:
            want = np.asarray(fresh[key])
        elif path == "layers/kernel" and not NOT_PER_LAYER & set(key.split("/")):
            want = np.concatenate([np.asarray(fresh[key])[:1], want[1:]])
        # A norm is a sum, which two programs round differently.
        rtol = 1e-6 if "radius" in key else 0
        np.testing.assert_allclose(got, want, rtol, err_msg=key)
        if not np.array_equal(old[key], want):
            moved.add(path)
    return moved


@pytest.mark.broad
@pytest.mark.parametrize("name", tiered(RECIPES))
def test_chosen_matrices_are_fresh_and_others_untouched(name):
    tx = RECIPES[name](1e-2)
    old = trained(tx, PARAMS)
    reset = jax.jit(lambda state, where: reset_state(tx, state, PARAMS, where))
    new = reset(old, jax.tree.map(jnp.asarray, WHERE))
    same = lambda a, b: a.dtype == b.dtype and a.shape == b.shape
    assert all(jax.tree.leaves(jax.tree.map(same, new, old)))
    moved = assert_reset(new, old, jax.jit(tx.init)(PARAMS))
    assert "square/bias" in moved
    if jax.tree.leaves(old.inner_state):
        has_state = {path_of(key) for key in to_portable(old, PARAMS)} - {None}
        stateful = any("inner_state" in key for key in to_portable(old, PARAMS))
        assert not stateful or moved >= (WHOLE | {"layers/kernel"}) & has_state
    jax.jit(tx.update)(tree(7), new, PARAMS)


WRAPPED = {
    "chain": lambda tx: optax.chain(optax.clip_by_global_norm(1.0), tx),
    "accumulation": lambda tx: optax.MultiSteps(tx, 2),
    "if_finite": lambda tx: optax.apply_if_finite(tx, 3),
    "partition": lambda tx: optax.partition(
        {"a": tx, "b": optax.adam(1e-3)},
        lambda p: {k: "b" if k == "embed" else "a" for k in p},
    ),
    "outer momentum": lambda tx: optax.chain(tx, optax.trace(0.9)),
    "quantized": lambda _: om.muon(
        1e-2,
        placement=om.quantized(min_size=1, block_size=4),
        other=om.adamw_8bit(1e-2, min_size=1, block_size=4),
    ),
    "monitor": lambda tx: om.diagnostics.monitor(tx, ("update_rms",)),
}


@pytest.mark.daily("partition", "outer momentum", "monitor")
@pytest.mark.filterwarnings("ignore:These parameters are read without")
@pytest.mark.quick("partition", "outer momentum")
@pytest.mark.parametrize("name", WRAPPED)
def test_within_wrappers(name):
    tx = WRAPPED[name](om.muon(1e-2))
    old = trained(tx, PARAMS)
    new = jax.jit(lambda state: reset_state(tx, state, PARAMS, WHERE))(old)
    moved = assert_reset(new, old, jax.jit(tx.init)(PARAMS))
    assert moved >= WHOLE | {"layers/kernel"}


@pytest.mark.parametrize("inject", [om.inject_hyperparams, optax.inject_hyperparams])
def test_within_injected_hyperparameters(inject):
    tx = inject(lambda learning_rate: om.muon(learning_rate))(learning_rate=1e-2)
    old = trained(tx, PARAMS)
    old.hyperparams["learning_rate"] = np.float32(3e-3)
    new = jax.jit(lambda state: reset_state(tx, state, PARAMS, WHERE))(old)
    moved = assert_reset(new, old, jax.jit(tx.init)(PARAMS))
    assert moved >= WHOLE | {"layers/kernel"}
    assert new.hyperparams["learning_rate"] == np.float32(3e-3)


@pytest.mark.broad
@pytest.mark.daily("kept-AxisType.Auto", "owners-AxisType.Explicit")
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("own", [False, True], ids=["kept", "owners"])
@pytest.mark.parametrize(
    "jitted",
    [
        pytest.param(False, id="eager", marks=pytest.mark.slow),
        pytest.param(True, id="jit"),
    ],
)
def test_on_a_mesh(kind, own, jitted):
    """With owners, too, and the state stays where it lies."""
    mesh = jax.make_mesh((2,), ("d",), (kind,), devices=jax.devices()[:2])
    spec = lambda x: P("d") if x.ndim == 2 and x.shape[0] % 2 == 0 else P()
    shardings = jax.tree.map(lambda x: NamedSharding(mesh, spec(x)), PARAMS)
    params = jax.device_put(PARAMS, shardings)
    given = None if kind == AxisType.Explicit else shardings
    placement = om.owners("d", param_specs=given) if own else None
    tx = om.normuon(1e-2, placement=placement)
    fresh, update = tx.init(params), jax.jit(tx.update)
    old = fresh
    for seed in range(3):
        _, old = update(jax.device_put(tree(seed), shardings), old, params)
    reset = lambda state, params: reset_state(tx, state, params, WHERE)
    new = (jax.jit(reset) if jitted else reset)(old, params)
    assert assert_reset(new, old, fresh) >= WHOLE | {"layers/kernel"}
    for a, b in zip(jax.tree.leaves(new), jax.tree.leaves(old), strict=True):
        assert a.sharding.is_equivalent_to(b.sharding, a.ndim)
    update(params, new, params)


def changed(tx, where, shape=(4, 4)):
    """Names of the state's fields that a partial mask changes, and both states."""
    draw = lambda s: {"kernel": np.float32(gaussian(*shape, seed=s))}
    params, update = draw(0), jax.jit(tx.update)
    state = jax.jit(tx.init)(params)
    for seed in range(3):
        _, state = update(draw(seed + 1), state, params)
    new = to_portable(reset_state(tx, state, params, {"kernel": where}), params)
    old = to_portable(state, params)
    names = {
        key.removesuffix("/kernel").split("/")[-1]
        for key in old
        if not np.array_equal(old[key], new[key])
    }
    return names, old, new


UNIT = np.array([False, True, False, False])  # Of a kernel (in, out): a column.


@pytest.mark.quick("mars_adamw")
@pytest.mark.parametrize(
    ("name", "options", "fields"),
    [
        ("muon", {}, {"mu"}),
        ("normuon", {}, {"mu", "row_scale"}),
        ("racs", {}, {"row_scale"}),
        ("mars_adamw", {}, {"last", "mu", "nu"}),
        pytest.param("shampoo", {"b1": 0.9}, {"mu"}, marks=pytest.mark.slow),
        pytest.param("soap", {}, {"mu"}, marks=pytest.mark.slow),
        pytest.param("galore", {"rank": 2}, set(), marks=pytest.mark.slow),
        pytest.param("dion", {}, {"momentum"}, marks=pytest.mark.slow),
    ],
)
def test_a_unit_takes_its_rows_and_leaves_what_all_share(name, options, fields):
    """Also of a square matrix, where a Gram matrix has the shape of a momentum."""
    names, old, new = changed(getattr(om, name)(1e-2, **options), UNIT)
    assert names == fields
    for key in old:
        if key.removesuffix("/kernel").split("/")[-1] in fields:
            assert not np.asarray(new[key])[0, 1].any()  # Rows are output units.
            rest = np.flatnonzero(~UNIT)
            np.testing.assert_array_equal(new[key][0, rest], old[key][0, rest])


@pytest.mark.broad
def test_an_input_takes_its_columns():
    names, _, new = changed(om.racs(1e-2), UNIT[:, None])
    assert names == {"col_scale"}
    names, _, new = changed(om.muon(1e-2), UNIT[:, None])
    (mu,) = (x for key, x in new.items() if "/mu/" in key)
    assert not mu[0, :, 1].any()
    assert mu[0, :, 0].all()


@pytest.mark.broad
def test_a_reset_momentum_is_that_of_gradients_without_the_unit():
    """An average of gradients in which the unit's entries were never seen."""
    tx, params = om.muon(1e-2), {"kernel": jnp.ones((6, 4))}
    grads = [{"kernel": jax.random.normal(jax.random.key(i), (6, 4))} for i in range(3)]
    seen = unseen = tx.init(params)
    for g in grads:
        _, seen = jax.jit(tx.update)(g, seen, params)
        _, unseen = jax.jit(tx.update)(
            {"kernel": jnp.where(UNIT, 0, g["kernel"])}, unseen, params
        )
    reset = reset_state(tx, seen, params, {"kernel": UNIT})
    jax.tree.map(np.testing.assert_array_equal, reset, unseen)


@pytest.mark.broad
def test_sections_and_heads_of_a_fused_kernel():
    numbers = {"qkv": om.MatrixDimensionNumbers(0, 1, output_sections=(4, 2, 2))}
    params = {"qkv": jnp.ones((6, 8))}
    tx = om.on_matrices(optax.trace(0.9), dimension_numbers=numbers)
    g = {"qkv": jax.random.normal(jax.random.key(0), (6, 8))}
    _, state = jax.jit(tx.update)(g, tx.init(params), params)
    head = np.arange(8) // 2 == 2  # The keys.
    new = reset_state(tx, state, params, {"qkv": head})
    want = {"qkv": jnp.where(head, 0, g["qkv"])}
    _, want = jax.jit(tx.update)(want, tx.init(params), params)
    jax.tree.map(np.testing.assert_array_equal, new, want)


@pytest.mark.broad
def test_eight_bit_moments_start_afresh_in_part():
    """A code of zero is zero whatever the scale of its block, and scales stay."""
    placement = om.quantized(min_size=1, block_size=4)
    tx = om.normuon(1e-2, placement=placement, other=om.adamw_8bit(1e-2, min_size=1))
    params = {"kernel": jnp.ones((6, 4)), "bias": jnp.ones(4)}
    g = jax.tree.map(
        lambda x: 1 + jax.random.uniform(jax.random.key(0), x.shape), params
    )
    _, state = jax.jit(tx.update)(g, tx.init(params), params)
    new = reset_state(tx, state, params, UNIT)
    jax.tree.map(
        np.testing.assert_array_equal, new.inner_state.scales, state.inner_state.scales
    )
    (codes,), (scales,) = (
        x.values()
        for x in (
            new.inner_state.inner_state[0].mu,
            new.inner_state.scales["signed_4"]["0"]["mu"],
        )
    )
    mu = om.quantization.dequantize(codes, scales, block_size=4, batch_axes=1)
    (old,) = state.inner_state.inner_state[0].mu.values()
    assert not mu[0, 1].any()
    np.testing.assert_array_equal(codes[0, ~UNIT], old[0, ~UNIT])
    assert codes.dtype == np.uint8


@pytest.mark.broad
def test_shared_rotations_stay():
    kernels = lambda i: {"up": {"kernel": tree(i)["wide"]["kernel"]}}
    params = {"layers": {str(i): {"mlp": kernels(i)} for i in range(2)}}
    tx = om.aro(1e-2, sharing="chain")
    update, state = jax.jit(tx.update), tx.init(params)
    for _ in range(2):
        _, state = update(params, state, params)
    where = {"layers": {"0": True, "1": False}}
    old, new = (
        to_portable(s, params) for s in (state, reset_state(tx, state, params, where))
    )
    changed = {key for key in old if not np.array_equal(old[key], new[key])}
    assert changed == {key for key in old if key.endswith("mu/layers/0/mlp/up/kernel")}
    assert len(changed) == 1


@pytest.mark.broad
@pytest.mark.skipif(not hasattr(nnx, "as_pure"), reason="Flax before 0.12.7")
def test_state_of_nnx():
    model = nnx.Linear(6, 4, rngs=nnx.Rngs(0))
    tx = om.muon(1e-2)
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    params = nnx.state(model, nnx.Param)
    optimizer.update(model, jax.tree.map(jnp.cos, params))
    where = jax.tree.map(lambda _: UNIT, nnx.as_pure(params))
    for held, given in (
        (optimizer.opt_state, params),
        (nnx.as_pure(optimizer.opt_state), nnx.as_pure(params)),
    ):
        new = reset_state(tx, held, given, where if given is not params else UNIT)
        assert jax.tree.structure(new) == jax.tree.structure(held)
        old, got = (to_portable(s, params) for s in (held, new))
        (mu,) = (x for key, x in got.items() if key.endswith("mu/kernel"))
        assert not mu[0, 1].any()
        assert mu[0, ~UNIT].all()
        changed = [k for k in old if not np.array_equal(old[k], got[k])]
        assert len(changed) == 3  # The momentum, and AdamW's moments of the bias.


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({"kernel": True, "tpyo": True}, "`where` must be a tree or prefix tree"),
        ({"kernel": np.ones(3, bool)}, r"`where` .* shape \(3,\) for 'kernel' of"),
        ({"kernel": 1.0}, "`where` must hold bools, got .*float.* for 'kernel'"),
    ],
)
def test_wrong_masks_are_refused(where, message):
    tx, params = om.muon(1e-2), {"kernel": ones(6, 4)}
    with pytest.raises(ValueError, match=message):
        reset_state(tx, tx.init(params), params, where)


def test_another_state_is_refused():
    tx, params = om.muon(1e-2), {"kernel": ones(6, 4)}
    with pytest.raises(ValueError, match="`state` must be what `init`"):
        reset_state(tx, optax.adam(1e-3).init(params), params, True)
    compiled = optax.GradientTransformation(jax.jit(tx.init), tx.update)
    compiled.init(params)
    with pytest.raises(ValueError, match="`tx` must be the transformation itself"):
        reset_state(compiled, tx.init(params), params, True)


def test_the_registry_has_all_shapes_that_are_reset():
    assert set(WHERE) == set(SHAPES)
