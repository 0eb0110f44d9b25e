"""`monitor`: its numbers, that it changes nothing, and where it works."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import optax_matrix as om
from tests._registry import RECIPES

monitor, read = om.diagnostics.monitor, om.diagnostics.read_monitor
UPDATES = ("update_rms", "update_to_weight", "gradient_cosine", "update_cosine")
SHAPES = {
    "up/kernel": (12, 20),
    "down/kernel": (20, 12),
    "layers/o/kernel": (3, 12, 12),
    "norm/scale": (12,),
}


def tree(seed, dtype=np.float32):
    random = np.random.default_rng(seed)
    leaves = {n: random.standard_normal(s).astype(dtype) for n, s in SHAPES.items()}
    return {name: jnp.asarray(x) for name, x in leaves.items()}


def trained(tx, steps=3, dtype=np.float32):
    """The parameters, updates and gradients of every step, and the last state."""
    params, seen = tree(0, dtype), []
    state, update = tx.init(params), jax.jit(tx.update)
    for step in range(steps):
        gradient = tree(step + 1, dtype)
        updates, state = update(gradient, state, params)
        seen.append((params, updates, gradient))
        params = optax.apply_updates(params, updates)
    return seen, state


def norm(x):
    return np.linalg.norm(np.asarray(x, np.float64))


def cosine(x, y):
    x, y = (np.asarray(a, np.float64).ravel() for a in (x, y))
    return x @ y / np.linalg.norm(x) / np.linalg.norm(y)


def test_measures_of_updates_are_their_formulas():
    seen, state = trained(monitor(om.muon(0.1, weight_decay=0.1), UPDATES))
    values = read(state)
    assert set(values) == set(SHAPES)
    (_, last, _), (params, new, gradient) = seen[-2:]
    for name in ("up/kernel", "down/kernel", "norm/scale"):
        u, w, g = new[name], params[name], gradient[name]
        expected = {
            "update_rms": norm(u) / u.size**0.5,
            "update_to_weight": norm(u) / norm(w),
            "gradient_cosine": -cosine(u, g),
            "update_cosine": cosine(u, last[name]),
        }
        assert values[name] == pytest.approx(expected, rel=1e-5)
    stacked = values["layers/o/kernel"]
    for layer in range(3):
        u, w = new["layers/o/kernel"][layer], params["layers/o/kernel"][layer]
        assert stacked["update_to_weight"][layer] == pytest.approx(norm(u) / norm(w))


@pytest.mark.broad
def test_orthogonality_error_is_that_of_the_direction():
    """Weight decay and learning rate do not count; a scaled polar factor is exact."""
    measures = ("orthogonality_error",)
    tx = om.muon(0.1, polar=om.linalg.polar_svd, weight_decay=0.5)
    exact = read(trained(monitor(tx, measures))[1])
    assert all(np.max(v["orthogonality_error"]) < 1e-5 for v in exact.values())
    assert set(exact) == set(SHAPES) - {"norm/scale"}
    tx = monitor(om.sinkgd(0.1), measures, captures={"direction": (2,)})
    rough = read(trained(tx)[1])["up/kernel"]
    d = rough["direction"][0].astype(np.float64)
    d = d if d.shape[0] < d.shape[1] else d.T
    gram = d @ d.T
    error = gram / np.mean(np.diag(gram)) - np.eye(len(d))
    expected = norm(error) / len(d) ** 0.5
    assert rough["orthogonality_error"] == pytest.approx(expected, rel=1e-4)
    assert expected > 0.1


@pytest.mark.broad
def test_outside_momentum():
    """Zero for a polar factor; signs have entries where the momentum has none."""
    params = {"kernel": jnp.zeros((8, 6))}
    rank_one = jnp.outer(jnp.arange(1.0, 9), jnp.arange(1.0, 7))
    found = {}
    for name, block in {
        "polar": om.orthogonalize(om.linalg.polar_svd),
        "noise": optax.stateless_with_tree_map(
            lambda x, _: jnp.broadcast_to(jnp.eye(*x.shape[-2:]), x.shape)
        ),
    }.items():
        tx = om.on_matrices(optax.chain(om.momentum(0.9), block))
        tx = monitor(tx, ("outside_momentum",))
        _, state = jax.jit(tx.update)({"kernel": rank_one}, tx.init(params))
        found[name] = read(state)["kernel"]["outside_momentum"]
    assert found["polar"] < 1e-6
    u, v = np.arange(1.0, 7), np.arange(1.0, 9)
    inside = (u @ np.eye(6, 8) @ v) ** 2 / (u @ u) / (v @ v)
    assert found["noise"] == pytest.approx(1 - inside / 6, rel=1e-5)


def test_limited_says_when_the_limiter_acts():
    tx = om.on_matrices(om.transforms.limit_norm_growth(1.5))
    tx = monitor(tx, ("limited",))
    params = {"kernel": jnp.ones((4, 4))}
    state, found = tx.init(params), []
    for size in (1.0, 1.2, 9.0, 0.5):
        _, state = jax.jit(tx.update)({"kernel": size * params["kernel"]}, state)
        found.append(read(state)["kernel"]["limited"])
    assert found == [0.0, 0.0, 1.0, 0.0]


def test_bounded_is_the_share_of_entries():
    """A momentum that remembers a spike which its second moment has forgotten."""
    inner = om.in_eigenbasis(
        om.scale_by_second_moment(0.5),
        policy="identity",
        momentum=om.momentum(0.99),
    )
    tx, params = (
        monitor(om.on_matrices(inner), ("bounded",)),
        {"kernel": np.ones((4, 4))},
    )
    state, update = tx.init(params), jax.jit(tx.update)
    spike, rest = np.eye(4), np.full((4, 4), 1e-9)
    _, state = update({"kernel": rest}, state)
    assert read(state)["kernel"]["bounded"] == 0.0
    for gradient in (1e4 * spike + rest, *[rest] * 20):
        _, state = update({"kernel": gradient}, state)
    assert read(state)["kernel"]["bounded"] == pytest.approx(1 / 4)


def test_every_few_steps_the_values_are_those_of_that_step():
    measures = ("update_rms", "update_cosine", "limited")
    tx = om.on_matrices(
        optax.chain(om.momentum(0.5), om.transforms.limit_norm_growth(1.1))
    )
    always = monitor(tx, measures, captures={"momentum": (1,)})
    often = monitor(tx, measures, every=3, captures={"momentum": (1,)})
    states, found = [m.init(tree(0)) for m in (always, often)], [{}, {}]
    updates = [jax.jit(m.update) for m in (always, often)]
    for step in range(5):
        for i, update in enumerate(updates):
            _, states[i] = update(tree(step), states[i], tree(0))
            found[i][step] = read(states[i])["up/kernel"]
    captured = [values[4].pop("momentum") for values in found]
    np.testing.assert_array_equal(*captured)
    for step in range(5):
        at = step - step % 3
        assert found[1][step].items() >= {n: found[0][at][n] for n in measures}.items()
    assert found[0][1]["update_rms"] != found[0][0]["update_rms"]
    assert (states[0].count, states[1].count) == (None, 5)


def test_captures_keep_chosen_steps():
    tx = monitor(om.muon(0.1, b1=0.5, nesterov=False), captures={"polar_input": (0, 2)})
    seen, state = trained(tx, steps=4)
    kept = read(state)["up/kernel"]["polar_input"]
    gradients = [np.asarray(g["up/kernel"]).T for _, _, g in seen]
    assert kept.shape == (2, 20, 12)
    np.testing.assert_allclose(kept[0], gradients[0] / 2, rtol=1e-6)
    third = gradients[0] / 8 + gradients[1] / 4 + gradients[2] / 2
    np.testing.assert_allclose(kept[1], third, rtol=1e-5, atol=1e-6)
    stacked = read(state)["layers/o/kernel"]["polar_input"]
    first = np.asarray(seen[0][2]["layers/o/kernel"]).mT / 2
    np.testing.assert_allclose(stacked[:, 0], first, rtol=1e-6)


@pytest.mark.broad
def test_sections_are_matrices_of_their_own():
    fused = om.MatrixDimensionNumbers(output_sections=(4, 2))
    numbers = om.matrices.by_path(numbers={"qkv": fused})
    tx = om.muon(0.1, dimension_numbers=numbers, polar=om.linalg.polar_svd)
    tx = monitor(tx, ("orthogonality_error",), dimension_numbers=numbers)
    params = {"qkv": jnp.asarray(np.random.default_rng(0).standard_normal((5, 6)))}
    _, state = jax.jit(tx.update)(params, tx.init(params), params)
    assert read(state)["qkv"]["orthogonality_error"].shape == (2,)


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_nothing_changes_for_any_recipe(name):
    """Not one bit of the updates, and all values are finite."""
    measures = (*UPDATES, "orthogonality_error")
    if name.startswith(("poet", "oft")):
        measures = UPDATES  # Finished steps: `spo` has blocks in place of matrices.
    plain, _ = trained(RECIPES[name](1e-3))
    watched, state = trained(monitor(RECIPES[name](1e-3), measures))
    for (_, ours, _), (_, theirs, _) in zip(watched, plain, strict=True):
        jax.tree.map(np.testing.assert_array_equal, ours, theirs)
    for values in read(state).values():
        assert all(np.isfinite(x).all() for x in values.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["muon", "racs", "soap", "fira", "per_matrix"])
def test_blocks_trace_nothing_for_reports_that_nobody_asks_for(name, monkeypatch):
    def traced():
        tx = RECIPES.get(name, lambda _: None)(1e-3)
        if name == "per_matrix":
            tx = om.on_matrices(om.per_matrix(optax.clip_by_global_norm(1.0)))
        params = tree(0)
        state = jax.eval_shape(tx.init, params)
        return jax.jit(tx.update).lower(params, state, params).as_text()

    with_reports = traced()
    for module in ("first_moments._momentum", "orthogonalization._orthogonalize"):
        path = f"optax_matrix.transforms.{module}.report"
        monkeypatch.setattr(path, lambda *_: None)
    assert traced() == with_reports


@pytest.mark.broad
def test_works_in_chain_and_multi_steps():
    tx = optax.chain(
        optax.clip_by_global_norm(1.0),
        monitor(om.muoneq(1e-2), (*UPDATES, "orthogonality_error")),
    )
    values = read(trained(tx)[1])["up/kernel"]
    assert set(values) == {*UPDATES, "orthogonality_error"}
    tx = optax.MultiSteps(monitor(om.muoneq(1e-2), ("update_rms",)), 2)
    seen, state = trained(tx, steps=4)
    emitted = seen[-1][1]["up/kernel"]
    assert read(state)["up/kernel"]["update_rms"] == pytest.approx(
        norm(emitted) / emitted.size**0.5
    )


@pytest.mark.broad
def test_works_in_a_scan():
    tx, params = monitor(om.muon(0.1)), tree(0)

    def step(carry, gradient):
        updates, state = tx.update(gradient, carry[1], carry[0])
        return (optax.apply_updates(carry[0], updates), state), None

    gradients = jax.tree.map(lambda *x: jnp.stack(x), tree(1), tree(2), tree(3))
    (_, state), _ = jax.lax.scan(step, (params, tx.init(params)), gradients)
    _, expected = trained(tx)
    for path, values in read(expected).items():
        assert read(state)[path]["update_rms"] == pytest.approx(
            values["update_rms"], rel=1e-5
        )


@pytest.mark.slow
def test_works_in_nnx_optimizer():
    model = nnx.Linear(4, 8, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(
        model, monitor(om.muon(0.1), (*UPDATES, "orthogonality_error")), wrt=nnx.Param
    )
    gradient = nnx.grad(lambda m: m(jnp.ones((2, 4))).sum())(model)
    optimizer.update(model, gradient)
    values = read(optimizer.opt_state)
    assert set(values) == {"bias", "kernel"}
    assert values["kernel"]["update_rms"] > 0
    assert values["kernel"]["orthogonality_error"] > 0


@pytest.mark.slow
def test_half_precision_and_tiny_updates():
    tx = monitor(om.muon(1e-30), UPDATES)
    values = read(trained(tx)[1])
    assert 1e-32 < values["up/kernel"]["update_rms"] < 1e-30
    values = read(trained(monitor(om.muon(1e-2), UPDATES), dtype=jnp.bfloat16)[1])
    assert 1e-4 < values["up/kernel"]["update_rms"] < 1e-1


def test_zero_gradients_give_zeros():
    tx, params = monitor(om.muon(0.1), (*UPDATES, "outside_momentum")), tree(0)
    zeros = jax.tree.map(jnp.zeros_like, params)
    _, state = jax.jit(tx.update)(zeros, tx.init(params), params)
    for values in read(state).values():
        assert all(np.all(x == 0) for x in values.values())


def test_state_is_stable_and_knows_its_parameters():
    tx = monitor(om.muon(0.1), (*UPDATES, "orthogonality_error"))
    _, state = trained(tx)
    start = tx.init(tree(0))
    described = lambda s: jax.tree.map(lambda x: (x.shape, x.dtype), s)
    assert described(state) == described(start)
    counted = optax.tree.map_params(
        tx, lambda _: 1, start, transform_non_params=lambda _: 0
    )
    # Momenta and counts of the stacks; AdamW of the norm has two moments; one last
    # update.
    stacks = len(start.inner_state.manifest)
    assert sum(jax.tree.leaves(counted)) == 2 * stacks + 2 + len(SHAPES)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: monitor(om.muon(0.1), ("rms",)), "`measures` must be .* got .'rms',"),
        (
            lambda: monitor(om.muon(0.1), "update_rms"),
            "`measures` must be a tuple of names",
        ),
        (lambda: monitor(om.muon(0.1), captures={"x": (1,)}), "`captures` must be of"),
        (lambda: monitor(om.muon(0.1), every=0), "`every` must be a positive int"),
        (
            lambda: monitor(om.muon(0.1), captures={"momentum": ()}),
            "integers from 0 on",
        ),
        (
            lambda: monitor(om.muon(0.1), captures={"momentum": (-1,)}),
            "integers from 0",
        ),
        (
            lambda: monitor(om.muon(0.1), ("limited",)).init(tree(0)),
            "'limited', which needs limit_norm_growth; leave it out",
        ),
        (
            lambda: read(om.muon(0.1).init(tree(0))),
            "must hold the state of diagnostics",
        ),
        (
            lambda: (tx := monitor(om.on_matrices(om.orthogonalize()))).update(
                tree(1), tx.init(tree(0)), None
            ),
            "`params` must be passed",
        ),
    ],
)
def test_mistakes(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_state_without_monitor_is_refused():
    tx, params = monitor(om.muon(0.1), ("orthogonality_error",)), tree(0)
    state = tx.init(params)
    plain = state._replace(inner_state=om.muon(0.1).init(params))
    with pytest.raises(ValueError, match="`state` must"):
        tx.update(tree(1), plain, params)


def test_a_monitor_inside_of_a_monitor():
    """Both have their values, and where both measure the same the outer ones count."""
    inner = monitor(om.muon(0.1), ("update_rms", "orthogonality_error"))
    halved = optax.chain(inner, optax.scale(0.5))
    outer = monitor(halved, ("update_rms", "outside_momentum"))
    _, state = trained(outer)
    _, alone = trained(monitor(om.muon(0.1), ("orthogonality_error",)))
    got, inside = read(state)["up/kernel"], read(state.inner_state)["up/kernel"]
    assert set(got) == {"update_rms", "orthogonality_error", "outside_momentum"}
    assert got["orthogonality_error"] == read(alone)["up/kernel"]["orthogonality_error"]
    assert got["update_rms"] == pytest.approx(inside["update_rms"] / 2)


def test_monitors_inside_of_one_another_agree_on_the_steps_of_a_capture():
    inner = monitor(om.muon(0.1), captures={"direction": (0,)})
    read(trained(monitor(inner, captures={"direction": (0,)}))[1])
    with pytest.raises(
        ValueError, match=r"`captures` and `every` must name the same steps"
    ):
        monitor(inner, captures={"direction": (2,)}).init(tree(0))


def test_measures_of_stacks_whose_moments_have_eight_bits():
    """After one step, before which there was no moment to round."""
    measures, captures = ("orthogonality_error",), {"polar_input": (0,)}
    values = [
        read(trained(monitor(tx, measures, captures=captures), steps=1)[1])
        for tx in (om.muon(0.1), om.muon(0.1, placement=om.quantized(min_size=1)))
    ]
    jax.tree.map(np.testing.assert_array_equal, *values)
    assert "polar_input" in values[0]["layers/o/kernel"]


@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.float32])
def test_a_scan_carries_updates_of_another_dtype(dtype):
    """Those of a traced rate are float32 whatever the parameters are."""
    tx, params = monitor(optax.scale(jnp.float32(0.1)), UPDATES), tree(0, dtype)
    step = lambda state, grads: (tx.update(grads, state, params)[1], None)
    gradients = jax.tree.map(lambda x: jnp.stack([x, 2 * x]), params)
    state, _ = jax.lax.scan(step, tx.init(params), gradients)
    assert read(state)["norm/scale"]["update_cosine"] == pytest.approx(1, abs=1e-2)


def test_complex_leaves():
    u = jnp.array([3 + 4j, 0, 0, 1j], jnp.complex64)
    w = jnp.array([1, 1j, 1, 1], jnp.complex64)
    tx = monitor(optax.scale(-1.0), UPDATES)
    _, state = tx.update({"b": u}, tx.init({"b": w}), {"b": w})
    _, state = tx.update({"b": u * 1j}, state, {"b": w})
    expected = {
        "update_rms": 26**0.5 / 2,
        "update_to_weight": 26**0.5 / 2,
        "gradient_cosine": 1.0,
        "update_cosine": 0.0,  # A quarter of a turn.
    }
    assert read(state)["b"] == pytest.approx(expected, abs=1e-6)
