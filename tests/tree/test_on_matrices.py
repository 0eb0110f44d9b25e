"""The wrapper: any tree in, stacks inside, the same tree out."""

import equinox as eqx
import flax.linen as nn
import flax.nnx as nnx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _steps import first_update
from flax.core import FrozenDict, freeze
from jax.tree_util import Partial

import optax_matrix as om
from optax_matrix.linalg import scale_rows
from optax_matrix.matrices.rules import by_path
from optax_matrix.matrices.view import MatrixDimensionNumbers
from optax_matrix.transforms import equilibrate_with_ema
from optax_matrix.transforms.stochastic_primitives._fingerprint import fingerprint
from optax_matrix.tree import on_matrices, per_matrix
from optax_matrix.tree.state import OnMatricesState


def rows_to_unit_norm():
    """A block that knows rows from columns."""
    f = lambda x, _: x / jnp.linalg.norm(x, axis=-1, keepdims=True)
    return optax.stateless_with_tree_map(f)


def _tx(**kwargs):
    """Not probed, which would compile four programs: tests of the probe are below."""
    chain = optax.chain(optax.trace(0.9), rows_to_unit_norm())
    return on_matrices(chain, probe=False, **kwargs)


def _draw(*shape, seed=0, dtype=np.float32):
    return np.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)


def _dtype(x):
    return x.dtype


def _expected(x):
    """Unit norm of the output neurons of Flax kernels ``(..., in, out)``."""
    return x / np.linalg.norm(x, axis=-2, keepdims=True)


@pytest.mark.broad
def test_rows_are_output_neurons_and_others_pass_through():
    params = {
        "tall": _draw(6, 2),
        "wide": _draw(2, 6),
        "square": _draw(4, 4),
        "stack": _draw(3, 2, 6),
        "bias": _draw(6),
        "scalar": _draw(),
    }
    tx = _tx()
    updates, _ = jax.jit(tx.update)(params, tx.init(params), params)
    for name in ("tall", "wide", "square", "stack"):
        np.testing.assert_allclose(updates[name], _expected(params[name]), rtol=1e-6)
    for name in ("bias", "scalar"):
        np.testing.assert_array_equal(updates[name], params[name])


@pytest.mark.broad
def test_heads_and_fused_kernels_are_separate_matrices():
    x = _draw(6, 8)
    frobenius = optax.stateless_with_tree_map(
        lambda x, _: x / jnp.linalg.norm(x, axis=(-2, -1), keepdims=True)
    )
    rule = by_path(numbers={"w": MatrixDimensionNumbers(output_sections=(4, 2, 2))})
    tx = on_matrices(frobenius, dimension_numbers=rule)
    (update,) = jax.jit(tx.update)({"w": x}, tx.init({"w": x}))[0].values()
    for lo, hi in ((0, 4), (4, 6), (6, 8)):
        np.testing.assert_allclose(
            update[:, lo:hi], x[:, lo:hi] / np.linalg.norm(x[:, lo:hi]), rtol=1e-6
        )


def test_build_gets_the_static_layout_and_traced_hyperparameters():
    seen = []

    def build(layout, scale):
        seen.append({(g.count, g.rows, g.cols) for g in layout.groups.values()})
        return optax.scale(scale)

    params = {"a": _draw(3, 5), "c": _draw(3, 5)}

    @jax.jit
    def run(scale):
        tx = on_matrices(Partial(build, scale=scale), probe=False)
        return tx.update(params, tx.init(params))[0]

    np.testing.assert_allclose(run(2.0)["a"], 2 * params["a"])
    assert seen
    assert all(s == {(2, 5, 3)} for s in seen)


def test_build_may_read_traced_numbers_of_the_function_around_it():
    params = {"w": _draw(3, 5)}

    @jax.jit
    def run(scale, key):
        noise = 0.0 * jax.random.normal(key)
        tx = on_matrices(lambda _: optax.scale(scale + noise))
        return tx.update(params, tx.init(params))[0]

    got = run(2.0, jax.random.key(0))["w"]
    np.testing.assert_allclose(got, 2 * params["w"])


@pytest.mark.broad
def test_coupling_is_seen_where_numbers_are_traced():
    """Also if they are computed while the chain is built."""

    @jax.jit
    def run(scale):
        build = lambda _: optax.chain(optax.trace(0.9), optax.scale(scale / 2), norm)
        return on_matrices(build).init({"w": _draw(3, 5)})

    norm = optax.clip_by_global_norm(1e-3)
    with pytest.raises(ValueError, match="each matrix of a stack by itself"):
        run(2.0)


@pytest.mark.broad
def test_bfloat16_leaves_come_back_in_bfloat16_with_stable_state():
    params = {"w": _draw(4, 6, dtype=jnp.bfloat16)}
    tx = on_matrices(optax.trace(0.9, accumulator_dtype=jnp.float32))
    state = tx.init(params)
    updates, new = tx.update(params, state, params)
    assert updates["w"].dtype == jnp.bfloat16
    assert jax.tree.map(_dtype, new) == jax.tree.map(_dtype, state)


@pytest.mark.broad
def test_float32_gradients_of_bfloat16_parameters():
    params = {"w": _draw(4, 6, dtype=jnp.bfloat16)}
    grads = {"w": _draw(4, 6, seed=1)}
    tx = _tx()
    state = tx.init(params)
    updates, new = tx.update(grads, state, params)
    assert updates["w"].dtype == jnp.bfloat16
    assert jax.tree.map(_dtype, new) == jax.tree.map(_dtype, state)


@pytest.mark.broad
def test_none_and_masked_nodes_are_skipped():
    params = {"w": _draw(3, 5), "none": None, "masked": optax.MaskedNode()}
    tx = _tx()
    updates, _ = tx.update(params, tx.init(params), params)
    assert updates["none"] is None
    assert updates["masked"] == optax.MaskedNode()
    np.testing.assert_allclose(updates["w"], _expected(params["w"]), rtol=1e-6)


def test_tree_without_matrices():
    params = {"bias": _draw(3)}
    tx = _tx()
    updates, state = jax.jit(tx.update)(params, tx.init(params), params)
    np.testing.assert_array_equal(updates["bias"], params["bias"])
    assert jax.tree.leaves(state) == []


@pytest.mark.broad
def test_bare_array():
    x = _draw(3, 5)
    tx = _tx()
    np.testing.assert_allclose(tx.update(x, tx.init(x))[0], _expected(x), rtol=1e-6)


@pytest.mark.broad
def test_state_of_a_bare_array_is_saved_and_reset():
    x = _draw(8, 8)
    tx = om.muon(0.1)
    _, state = tx.update(x, tx.init(x), x)
    back = om.from_portable(om.to_portable(state, x), tx.init(x), x)
    jax.tree.map(np.testing.assert_array_equal, back, state)
    adam = optax.inject_hyperparams(optax.adam)(0.1)
    _, held = adam.update(x, adam.init(x), x)
    for ours, old in ((tx, state), (adam, held)):
        new = om.checkpoint.reset_state(ours, old, x, True)
        moments = [m for m in jax.tree.leaves(new) if m.ndim > 1 and m.dtype == x.dtype]
        assert moments
        assert not any(m.any() for m in moments)
    with pytest.raises(ValueError, match="`params` must have names, by which arrays"):
        om.adopt_state(held, om.muon(0.1), x)


@pytest.mark.broad
def test_nnx_optimizer_with_partitioned_parameters():
    init = nnx.with_partitioning(
        nnx.initializers.lecun_normal(), ("embed", "mlp"), eager_sharding=False
    )
    model = nnx.Linear(4, 8, kernel_init=init, rngs=nnx.Rngs(0))
    before = np.asarray(model.kernel[...])
    optimizer = nnx.Optimizer(model, _tx(), wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer):
        grads = nnx.grad(lambda m: (m(jnp.eye(4)) ** 2).sum())(model)
        optimizer.update(model, grads)
        return grads

    grads = step(model, optimizer)
    kernel = np.asarray(grads["kernel"][...])
    np.testing.assert_allclose(model.kernel[...], before + _expected(kernel), rtol=1e-5)


@pytest.mark.broad
def test_linen_boxes_and_frozen_dicts():
    init = nn.with_logical_partitioning(nn.initializers.lecun_normal(), ("a", "b"))
    boxed = nn.Dense(6, kernel_init=init).init(jax.random.key(0), jnp.ones((1, 4)))
    tx = _tx()
    updates, _ = tx.update(boxed, tx.init(boxed), boxed)
    kernel = updates["params"]["kernel"]
    assert isinstance(kernel, nn.LogicallyPartitioned)
    want = _expected(boxed["params"]["kernel"].value)
    np.testing.assert_allclose(kernel.value, want, rtol=1e-6)
    frozen = freeze(nn.unbox(boxed))
    updates, _ = tx.update(frozen, tx.init(frozen), frozen)
    assert isinstance(updates, FrozenDict)
    np.testing.assert_allclose(updates["params"]["kernel"], want, rtol=1e-6)


@pytest.mark.broad
def test_equinox_module():
    model = eqx.nn.MLP(4, 3, 8, 1, key=jax.random.key(0))
    params = eqx.filter(model, eqx.is_inexact_array)
    # Equinox stores (out, in): the output axis comes first.
    numbers = MatrixDimensionNumbers(reduction_axis=1, output_axis=0)
    tx = _tx(dimension_numbers=by_path(numbers={"weight": numbers}))
    updates, _ = tx.update(params, tx.init(params), params)
    weight = params.layers[0].weight
    want = weight / np.linalg.norm(weight, axis=1, keepdims=True)
    np.testing.assert_allclose(updates.layers[0].weight, want, rtol=1e-6)


def test_abstract_init_equals_concrete_init():
    params = {"w": _draw(3, 5), "stack": _draw(2, 3, 5), "bias": _draw(5)}
    tx = _tx()
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), params)
    of = lambda tree: jax.tree.map(lambda x: (x.shape, x.dtype), tree)
    state = tx.init(params)
    assert of(jax.eval_shape(tx.init, shapes)) == of(state)
    assert of(jax.eval_shape(tx.update, shapes, state)[1]) == of(state)


@pytest.mark.broad
def test_works_inside_optax_wrappers():
    params = {"w": _draw(3, 5), "bias": _draw(5)}
    plain = _tx()
    want, _ = plain.update(params, plain.init(params), params)
    for wrap in (
        lambda tx: optax.apply_if_finite(tx, 3),
        lambda tx: optax.MultiSteps(tx, 1),
        lambda tx: optax.masked(tx, {"w": True, "bias": True}),
        lambda tx: optax.partition({"m": tx}, "m"),
        lambda tx: optax.chain(tx, optax.identity()),
    ):
        tx = wrap(_tx())
        got, _ = jax.jit(tx.update)(params, tx.init(params), params)
        np.testing.assert_allclose(got["w"], want["w"], rtol=1e-6)


def test_map_params_sees_the_arrays_of_matrices():
    params = {"w": _draw(3, 5), "bias": _draw(5)}
    tx = optax.chain(_tx(), optax.scale_by_adam())
    state = tx.init(params)
    mapped = optax.tree.map_params(tx, lambda x: np.asarray(x) + 1, state)
    np.testing.assert_array_equal(mapped[1].mu["w"], np.ones((3, 5)))
    (trace,) = mapped[0].inner_state[0].trace.values()
    np.testing.assert_array_equal(trace, np.ones((1, 5, 3)))
    jax.tree.map(np.testing.assert_array_equal, mapped[0].manifest, state[0].manifest)


def test_extra_args_are_handed_on_traced_or_not():
    def update(updates, state, params=None, *, value, tag, **unknown):
        del params, unknown
        assert tag == "fixed"
        return jax.tree.map(lambda u: u * value, updates), state

    inner = optax.GradientTransformationExtraArgs(lambda _: optax.EmptyState(), update)
    tx, x = on_matrices(inner, probe=False), {"w": _draw(3, 5)}
    run = jax.jit(lambda v: tx.update(x, tx.init(x), value=v, tag="fixed", more=1)[0])
    np.testing.assert_allclose(run(3.0)["w"], 3 * x["w"])


def test_parameters_reach_only_those_who_ask():
    params, grads = {"w": _draw(3, 5)}, {"w": _draw(3, 5, seed=1)}
    decay = optax.add_decayed_weights(0.1)
    tx = on_matrices(decay, needs_params=True)
    updates, _ = first_update(tx, grads, params)
    np.testing.assert_allclose(updates["w"], grads["w"] + 0.1 * params["w"], rtol=1e-6)
    with pytest.raises(ValueError, match="`params` must be passed"):
        jax.eval_shape(lambda: tx.update(grads, tx.init(params)))


@pytest.mark.daily(
    "clip_by_global_norm",
    "scale_by_factored_rms",
    "clip_by_block_rms",
    "scale_by_trust_ratio",
)
@pytest.mark.broad
@pytest.mark.parametrize(
    "inner",
    [
        pytest.param(optax.clip_by_global_norm(1.0), id="clip_by_global_norm"),
        pytest.param(optax.clip_by_block_rms(1e-3), id="clip_by_block_rms"),
        pytest.param(
            optax.scale_by_factored_rms(min_dim_size_to_factor=2),
            id="scale_by_factored_rms",
        ),
        pytest.param(optax.add_noise(0.1, 0.5, 0), id="add_noise"),
        pytest.param(
            optax.chain(optax.trace(0.9), optax.scale_by_trust_ratio(), optax.scale(2)),
            id="scale_by_trust_ratio",
        ),
    ],
)
def test_coupling_transformations_are_refused(inner):
    tx = on_matrices(inner, needs_params=True)
    with pytest.raises(ValueError, match=r"but it gives a matrix .*per_matrix"):
        tx.init({"w": _draw(3, 5)})


@pytest.mark.broad
@pytest.mark.parametrize(
    "inner",
    [
        optax.scale_by_adam(),
        optax.chain(optax.trace(0.9, nesterov=True), rows_to_unit_norm()),
        optax.scale_by_rms(),
        per_matrix(optax.clip_by_global_norm(1.0)),
        per_matrix(optax.scale_by_factored_rms(min_dim_size_to_factor=2)),
    ],
)
def test_transformations_that_act_per_matrix_are_accepted(inner):
    on_matrices(inner, needs_params=True).init({"w": _draw(3, 5), "v": _draw(2, 7, 3)})


def test_probe_lets_a_build_read_the_views():
    def build(layout):
        for group in layout.groups.values():
            for member in group.members:
                assert layout.views[member.path].pieces[member.piece].rows >= group.rows
        return optax.trace(0.9)

    on_matrices(build).init({"w": _draw(3, 50)})


def test_tiny_coupling_is_seen():
    tiny = optax.chain(optax.clip_by_global_norm(1e-9))
    with pytest.raises(ValueError, match="each matrix of a stack by itself"):
        on_matrices(tiny).init({"w": _draw(3, 5)})


def _of_stacks(f):
    return optax.stateless_with_tree_map(lambda x, _: f(x))


@pytest.mark.quick("one")
@pytest.mark.parametrize(
    "coupled",
    [
        lambda x: x / x.shape[0],
        lambda x: x.at[-1].add(x[0].mean()),
        lambda x: x * (1 + 1e-9 * jnp.sum(x * x)),
        lambda x: jnp.roll(x, 1, axis=0),
        lambda x: x.at[-3:].multiply(x.shape[0]),
    ],
    ids=["number of all", "one", "all", "neighbor", "three of eight"],
)
def test_any_coupling_is_seen(coupled):
    with pytest.raises(ValueError, match="each matrix of a stack by itself"):
        on_matrices(_of_stacks(coupled)).init({"w": _draw(3, 5)})


def test_a_chain_that_needs_parameters_says_so():
    decay = optax.chain(om.momentum(0.9), optax.add_decayed_weights(0.1))
    w = {"w": _draw(3, 5)}
    with pytest.raises(ValueError, match="`needs_params` must be True, because"):
        on_matrices(decay).init(w)
    tx = on_matrices(decay, probe=False)
    with pytest.raises(ValueError, match="`needs_params` must be True, because"):
        tx.update(w, tx.init(w), w)
    with pytest.raises(TypeError, match="'value'") as caught:
        on_matrices(optax.contrib.reduce_on_plateau()).init(w)
    assert any("unless probe=False" in x for x in caught.value.__notes__)


def test_coupling_by_signs_of_parameters_is_seen():
    """One whose size and NaN have no effect, on one matrix of eight."""
    signs = lambda u, p: u + jnp.sign(jnp.roll(p, 1, axis=0))
    inner = optax.stateless(lambda u, p: jax.tree.map(signs, u, p))
    with pytest.raises(ValueError, match="each matrix of a stack by itself"):
        on_matrices(inner, needs_params=True).init({"w": _draw(3, 5)})


def test_rounding_that_few_matrices_amplify_is_no_coupling():
    """Stacks of another size round differently; one matrix of eight stands for that."""
    rounds = lambda x: x.at[-1].multiply(1 + 1e-2 * x.shape[0])
    on_matrices(_of_stacks(rounds)).init({"w": _draw(3, 5)})


def test_arguments_of_a_function_of_the_layout_fail_at_init():
    tx = on_matrices(lambda _: equilibrate_with_ema(scale_rows, 2.0))
    with pytest.raises(ValueError, match="`decay` must be in"):
        tx.init({"w": _draw(3, 5)})


@pytest.mark.broad
def test_bits_that_rounding_changes_are_no_coupling():
    """Products of nine matrices may round differently than those of eight."""

    def update_fn(updates, state, params=None):
        del state, params
        (stack,) = updates.values()
        rounding = 1 + 1e-6 * len(stack)
        return updates, jax.tree.map(lambda x: fingerprint(rounding * x), updates)

    init_fn = lambda params: jax.tree.map(fingerprint, params)
    tx = on_matrices(optax.GradientTransformation(init_fn, update_fn))
    tx.init({"kernel": _draw(3, 5)})


@pytest.mark.broad
def test_per_matrix_equals_a_loop_over_leaves():
    inner = optax.chain(optax.clip_by_global_norm(1.0), optax.scale_by_adam())
    leaves = [_draw(3, 5, seed=i) * 10.0 ** (i - 1) for i in range(3)]
    params = {f"w{i}": x for i, x in enumerate(leaves)}
    tx = on_matrices(per_matrix(inner))
    state, states = tx.init(params), [inner.init(x) for x in leaves]
    for _ in range(3):
        updates, state = jax.jit(tx.update)(params, state)
        for i, x in enumerate(leaves):
            want, states[i] = jax.jit(inner.update)(x, states[i])
            np.testing.assert_allclose(updates[f"w{i}"], want, rtol=1e-5, atol=1e-7)


def test_state_of_other_parameters_is_refused():
    tx = _tx()
    old, new = {"a": _draw(3, 5)}, {"renamed": _draw(3, 5)}
    with pytest.raises(ValueError, match=r"`state` must belong.*to_portable"):
        jax.eval_shape(lambda: tx.update(new, tx.init(old), new))


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"max_batch": 0}, "`max_batch` must be a positive int"),
        ({"placement": "fsdp"}, "`placement` must be None"),
    ],
)
def test_bad_arguments_fail_in_the_factory(kwargs, message):
    with pytest.raises(ValueError, match=message):
        on_matrices(optax.trace(0.9), **kwargs)


def test_bad_build_fails_in_the_factory():
    message = r"`build` must be a transformation, .*optax.chain\(\*blocks\).*got list"
    with pytest.raises(ValueError, match=message):
        on_matrices([optax.trace(0.9)])


@pytest.mark.broad
def test_max_batch_changes_nothing_but_the_stacks():
    params = {f"w{i}": _draw(3, 5, seed=i) for i in range(5)}
    few, many = _tx(max_batch=2), _tx()
    assert len(few.init(params).manifest) == 3
    assert len(many.init(params).manifest) == 1
    jax.tree.map(
        np.testing.assert_array_equal,
        jax.jit(few.update)(params, few.init(params))[0],
        jax.jit(many.update)(params, many.init(params))[0],
    )


def test_state_is_a_plain_named_tuple():
    state = _tx().init({"w": _draw(3, 5)})
    assert isinstance(state, OnMatricesState)
    assert all(isinstance(x, jax.Array) for x in jax.tree.leaves(state))


@pytest.mark.broad
def test_a_mask_that_needs_the_whole_tree_is_refused_with_a_way_that_works():
    params = {"up": {"kernel": _draw(3, 5), "bias": jnp.ones(5)}}

    def mask(params):
        return {"up": {"kernel": params["up"]["kernel"].ndim > 1, "bias": False}}

    masked = lambda mask: optax.adamw(1e-3, mask=mask)
    with pytest.raises(ValueError, match=r"call it first.* mask=mask\(params\)"):
        on_matrices(optax.scale(1.0), other=masked(mask)).init(params)
    for other in (masked(mask(params)), lambda params: masked(mask(params))):
        tx = on_matrices(optax.scale(1.0), other=other)
        updates, _ = tx.update(params, tx.init(params), params)
        np.testing.assert_allclose(updates["up"]["bias"], -1e-3, rtol=1e-4)


@pytest.mark.broad
def test_what_leaves_are_is_decided_once_for_each_tree():
    """By `init`; `update` asks again only after a restart or for another tree."""
    calls = []

    def numbers_of(params):
        calls.append(len(params))
        of = lambda x: MatrixDimensionNumbers() if x.ndim == 2 else None
        return jax.tree.map(of, params)

    tree = {"a": _draw(3, 5), "b": _draw(5)}
    tx = _tx(dimension_numbers=numbers_of)
    state = tx.init(tree)
    asked = len(calls)
    for _ in range(2):
        updates, _ = jax.jit(tx.update)(tree, state)
    assert len(calls) == asked
    again = _tx(dimension_numbers=numbers_of)
    got, _ = jax.jit(again.update)(tree, state)
    assert len(calls) == asked + 1
    np.testing.assert_array_equal(got["a"], updates["a"])
    # One tree's views are not another's of the same names, nor those of other shapes.
    other = {"a": _draw(5), "b": _draw(3, 5)}
    got, _ = tx.update(other, tx.init(other))
    assert not np.array_equal(got["b"], other["b"])
    np.testing.assert_array_equal(got["a"], other["a"])
    got, _ = tx.update(tree, state)
    np.testing.assert_allclose(got["a"], updates["a"], rtol=1e-6)


def test_a_block_that_changes_shapes_is_told_so():
    transpose = optax.stateless_with_tree_map(lambda x, _: x.mT)
    with pytest.raises(ValueError, match="`build` must return updates of the shape"):
        on_matrices(transpose).init({"kernel": np.ones((3, 5), np.float32)})
