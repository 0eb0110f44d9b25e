"""Mistakes that newcomers make: one sentence that names what to do, at once."""

import functools
import inspect

import _registry
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import optax
import pytest
from _matrices import ones, zeros
from _steps import first_update
from _walks import walk

import optax_matrix as om
from examples import train_sharded

PARAMS = {"up": {"kernel": ones(4, 8), "bias": zeros(8)}}
CORE = ("muon", "soap", "poet")
ELEMENTWISE = (
    *("match_rms", "in_float32", "scale_by_second_moment", "scale_by_amsgrad"),
    *("quantize_state", "with_gradient", "add"),
)
every_recipe = pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in CORE else pytest.mark.slow)
        for name in _registry.RECIPES
    ],
)


@pytest.fixture
def as_users_run_it():
    """Without the checks of shapes that only tests have."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.parametrize("shape", [(), (5,)])
@walk("name", _registry.BLOCKS)
@pytest.mark.usefixtures("as_users_run_it")
def test_a_block_refuses_vectors_or_handles_them(name, shape):
    tx, params = _registry.BLOCKS[name](), {"bias": np.ones(shape, np.float32)}
    step = lambda: tx.update(params, tx.init(params), params)
    if name in ELEMENTWISE:
        assert jax.eval_shape(step)[0]["bias"].shape == shape
    else:
        with pytest.raises(ValueError, match="must be matrices"):
            jax.eval_shape(step)


def test_two_blocks_are_one_chain():
    with pytest.raises(TypeError, match=r"on_matrices\(optax.chain\(a, b\)\).*`other`"):
        om.on_matrices(om.momentum(0.9), om.orthogonalize())


NO_TREES = [om.muoneq(1e-2), optax.adamw(1e-3), om.muoneq, optax.adamw, jax.nn.relu]


@pytest.mark.parametrize("given", NO_TREES, ids=lambda x: type(x).__name__)
def test_describe_takes_parameters_and_names(given):
    with pytest.raises(ValueError, match="`params` must be the parameters") as error:
        om.describe(given)
    assert "0x" not in str(error.value)
    for argument in ("matrix", "other"):
        said = f"`{argument}` must be the name to print, got \\w+; pass a string"
        with pytest.raises(ValueError, match=said) as error:
            om.describe(PARAMS, **{argument: given})
        assert "0x" not in str(error.value)


@pytest.mark.parametrize(
    "wrap", [lambda tx: tx, lambda tx: optax.chain(optax.clip(1.0), tx)]
)
def test_an_optimizer_of_trees_is_no_block(wrap):
    with pytest.raises(ValueError, match="contains muoneq, which finds the matrices"):
        jax.eval_shape(om.on_matrices(wrap(om.muoneq(1e-3))).init, PARAMS)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda _: om.muoneq(optax.adam(1e-3)), "or a schedule, got an optimizer"),
        (lambda tree: om.muoneq(tree), "or a schedule, got dict; pass a float"),
        (lambda tree: om.muoneq(1e-3, b1=tree), "must be in .*, got dict; pass"),
        (lambda tree: om.muoneq(1e-3, max_batch=tree), "positive int, got dict; pass"),
        (lambda tree: om.extract_adapter(tree, tree, tree), "positive int, got dict"),
        (lambda _: om.muoneq(jnp.ones((9, 99))), r"an array of shape \(9, 99\)"),
        (lambda _: om.muoneq(1e-3, b1=-0.5), r"must be in \[0, 1\), got -0.5;"),
    ],
)
def test_errors_do_not_print_trees_and_optimizers(make, said):
    """In place of a number: as large as a model, and without a word on what it is."""
    with pytest.raises(ValueError, match=said) as error:
        make({"up": {"kernel": jnp.ones((64, 64))}})
    assert len(str(error.value)) < 250


def test_a_transformation_is_no_factory():
    with pytest.raises(ValueError, match=r"write om.inject_hyperparams\(om.muoneq\)"):
        om.inject_hyperparams(om.muoneq(1e-3))


@pytest.mark.parametrize(
    ("schedule", "said"),
    [
        (optax.constant_schedule, "is <function"),
        (lambda count: None, "is None"),  # noqa: ARG005
        (lambda count, total: 1e-3, "raises TypeError: .*'total'"),  # noqa: ARG005
        (lambda count: jnp.ones(3), r"is an array of shape \(3,\)"),  # noqa: ARG005
    ],
)
@every_recipe
def test_a_schedule_gives_a_number(name, schedule, said):
    factory = _registry.RECIPES[name]
    for argument in ("learning_rate", "weight_decay"):
        rest = {} if argument == "learning_rate" else {"learning_rate": 1e-2}
        with pytest.raises(ValueError, match=rf"{argument}\(count\) {said}"):
            factory(**rest, **{argument: schedule})


@pytest.mark.broad
def test_a_schedule_may_need_the_value_of_the_count():
    tx = om.muoneq(lambda count: 0.1 if count < 1 else 0.0, weight_decay=0.0)
    assert tx.update(PARAMS, tx.init(PARAMS))[0]["up"]["kernel"].any()


polar = functools.partial(functools.partial, om.linalg.newton_schulz)
COEFFICIENTS = ((3.4445, -4.775, 2.0315),)


@walk(
    ("name", "word", "instead"),
    [
        *[("muon", word, {"learning_rate": 1e-2}) for word in ("lr", "params")],
        ("muon", "muon_params", {"learning_rate": 1e-2}),
        ("muon", "adamw_params", {"learning_rate": 1e-2}),
        ("muon", "beta", {"b1": 0.9}),
        ("muon", "beta1", {"b1": 0.9}),
        ("muon", "muon_beta", {"b1": 0.9}),
        ("adamuon", "beta2", {"b2": 0.95}),
        ("muon", "adam_lr", {"other_learning_rate": 1e-2}),
        ("muon", "adam_eps", {"other": optax.adamw(1e-2, eps=1e-8)}),
        ("muon", "epsilon", {"polar": polar(eps=1e-7)}),
        ("muon", "backend_steps", {"polar": polar(steps=5)}),
        ("muon", "use_kimi_scaling", {"scaling": "max"}),
        ("muon", "muon_consistent_rms", {"scaling": "max"}),
        ("muon", "max_grad_norm", {}),
        ("muon", "momentum", {"b1": 0.9}),
        ("muon", "ns_steps", {"polar": polar(steps=5)}),
        ("muon", "ns_coeffs", {"polar": polar(coefficients=COEFFICIENTS)}),
        ("muon", "ns_coefficients", {"polar": polar(coefficients=COEFFICIENTS)}),
        ("muon", "eps", {"polar": polar(eps=1e-7)}),
        ("muon", "adaptive", {}),
        ("muon", "preconditioning", {}),
        ("muon", "consistent_rms", {"scaling": "max"}),
        ("muon", "adjust_lr_fn", {"scaling": "out/in"}),
        ("muon", "adam_b1", {"other": optax.adamw(1e-2, b1=0.9)}),
        ("muon", "adam_b2", {"other": optax.adamw(1e-2, b2=0.999)}),
        ("muon", "adam_eps_root", {"other": optax.adamw(1e-2, eps_root=0.0)}),
        ("muon", "adamw_betas", {"other": optax.adamw(1e-2, b1=0.9, b2=0.95)}),
        ("muon", "adamw_eps", {"other": optax.adamw(1e-2, eps=1e-8)}),
        ("muon", "eps_root", {"other": optax.adamw(1e-2, eps_root=0.0)}),
        ("muon", "adamw_lr", {"other_learning_rate": 1e-2}),
        ("muon", "adam_learning_rate", {"other_learning_rate": 1e-2}),
        ("muon", "muon_weight_dimension_numbers", {"dimension_numbers": None}),
        ("scale_by_muon", "weight_dimension_numbers", {"dimension_numbers": None}),
        ("scale_by_muon", "learning_rate", {}),
        ("muon", "wd", {"weight_decay": 0.1}),
        ("muon", "mask", {"weight_decay_mask": None}),
        ("muon", "world_size", {"placement": om.owners("fsdp")}),
        ("soap", "betas", {"b1": 0.9, "b2": 0.95}),
        ("soap", "shampoo_beta", {"b3": 0.9}),
        ("soap", "precondition_frequency", {"update_interval": 10}),
        ("soap", "max_precond_dim", {"max_dim": 10_000}),
        ("soap", "merge_dims", {}),
        ("soap", "precondition_1d", {}),
        ("soap", "normalize_grads", {}),
        ("soap", "data_format", {}),
        ("soap", "correct_bias", {"bias_correction": True}),
        ("kron", "max_size_triangular", {"max_dim": 4096}),
        ("kron", "max_skew_triangular", {"max_skew": 2}),
        ("kron", "preconditioner_init_scale", {"init_scale": 1.0}),
        ("kron", "preconditioner_lr", {"factor_rate": 0.1}),
        ("kron", "preconditioner_update_probability", {"update_interval": 10}),
        ("galore", "update_proj_gap", {"update_interval": 200}),
        ("galore", "proj_type", {"side": "short"}),
        ("galore", "no_deprecation_warning", {}),
    ],
)
def test_words_of_other_programs(name, word, instead):
    """The hint names what to write, and that is accepted."""
    factory, rate = getattr(om, name), {"learning_rate": 1e-2}
    if name.startswith("scale_by_") or word in {"lr", "params"}:
        rate = {}
    with pytest.raises(TypeError) as error:
        factory(**rate, **{word: 1})
    said = str(error.value)
    assert all(argument in said for argument in instead), said
    assert instead or "leave it out" in said or "scale_by_learning_rate" in said
    tx = factory(**{**rate, **instead})
    if word != "world_size":  # That needs a mesh.
        jax.eval_shape(tx.init, PARAMS)


def test_words_are_answered_inside_of_inject_hyperparams():
    with pytest.raises(TypeError, match="here `beta` is called `b1`"):
        om.inject_hyperparams(om.muon)(1e-2, beta=0.9)


STATE = jax.eval_shape(om.muon(0.1).init, PARAMS)
SCHEDULE = optax.constant_schedule(1.0)
Numbers = om.MatrixDimensionNumbers


def moved_to_a_matrix():
    """A head of AdamW's that is a matrix under its new name."""
    tree = lambda name: {**PARAMS, name: {"kernel": ones(8, 6)}}
    init = jax.jit(om.muon(0.1).init)
    portable = om.to_portable(init(tree("lm_head")), tree("lm_head"))
    state = init(tree("out"))
    om.from_portable(portable, state, tree("out"), rename={"lm_head": "out"})


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: om.sinkgd(0.1, precision="three"), "`precision` must be one of"),
        (lambda: om.galore(0.1, precision=[]), "`precision` must be 'default'"),
        (lambda: om.muon(0.1, polar=polar(step=3)), "argument 'step'"),
        (lambda: om.muon(0.1, polar=polar(steps="5")), r"polar\(stack\) raises"),
        (lambda: om.muon(0.1, placement=om.quantized), r"quantized\(...\), got <func"),
        (lambda: om.muon("0.02"), "pass a float, a traced scalar or a schedule"),
        (lambda: om.scale_by_path({"up": SCHEDULE}), "recipe, by optax.partition"),
        (lambda: om.scale_by_path("up"), "`factors` must be a dict of numbers"),
        (lambda: om.to_portable(PARAMS, STATE), r"write to_portable\(state, params\)"),
        (moved_to_a_matrix, "has, but under other fields than 'inner_state/"),
        (
            lambda: om.matrices.by_path(numbers=Numbers(0, 1)),
            "`numbers` must be a dict",
        ),
        (lambda: Numbers(None, 1), "`reduction_axis` must be the number of an axis"),
        (
            lambda: Numbers("in", "out"),
            "`reduction_axis` must be the number of an axis",
        ),
        (lambda: Numbers(layer_axis="layers"), "`layer_axis` must be the number of an"),
        (
            lambda: om.checkpoint.reset_state(STATE, om.muon(0.1), PARAMS, True),
            "`tx` must be an op",
        ),
        (
            lambda: om.checkpoint.reset_state(om.muon(0.1), STATE, PARAMS, "up"),
            "must hold bools",
        ),
        (lambda: om.adopt_state(om.muon(0.1), {}, PARAMS), "`tx` must be an optimizer"),
        (
            lambda: om.diagnostics.state_bytes(PARAMS, om.muon(0.1)),
            "`tx` must be an op",
        ),
        (
            lambda: om.initialize_matrices(
                PARAMS, jax.random.key(0), jax.nn.initializers.lecun_normal
            ),
            r"are made by a call: lecun_normal\(\)",
        ),
        (lambda: om.initialize_matrices(PARAMS, 0), r"pass jax.random.key\(0\)"),
        (lambda: om.on_matrices(om.momentum), r"call it: build=momentum\(...\)"),
        (lambda: om.on_matrices(om.momentum(0.9), other=optax.adamw), "other=adamw"),
        (lambda: om.on_matrices(om.momentum(0.9), other=om.adamw_8bit), "adamw_8bit"),
        (
            lambda: om.galore(0.1, basis=om.transforms.subspace_basis),
            "basis=subspace_basis",
        ),
        (lambda: om.muon(0.1, polar=om.orthogonalize), "polar=orthogonalize"),
        (
            lambda: om.muon(0.1, weight_decay_mask=lambda w: w.ndim > 1).init(PARAMS),
            r"write lambda params: jax.tree.map\(rule, params\)",
        ),
        (
            lambda: om.reparameterize(block=2).optimizer(1e-3, 1e-3),
            "`rotations` must be",
        ),
        (
            lambda: om.spo(optax.adam(0.1), block=2).init(PARAMS["up"]),
            "must be matrices",
        ),
    ],
)
def test_plausible_mistakes(call, said):
    with pytest.raises((TypeError, ValueError), match=said):
        call()


def test_a_function_of_optax_may_be_a_kernel():
    kernel = optax.projections.projection_l2_ball
    params = {"kernel": ones(3, 4)}
    tx = om.orthogonalize(kernel)
    updates, _ = first_update(tx, params)
    np.testing.assert_allclose(updates["kernel"], jax.jit(kernel)(params["kernel"]))


def test_a_function_that_copies_the_name_of_optaxs_is_ones_own():
    @functools.wraps(optax.adamw)
    def other(params):
        del params
        return optax.adamw(0.1)

    tx = om.on_matrices(om.momentum(0.9), other=other)
    jax.eval_shape(tx.init, PARAMS)


def test_the_options_of_a_kernel_of_ones_own_are_its_own():
    def polar(x, kernel):
        return x if kernel == "fast" else None

    om.muon(0.1, polar=functools.partial(polar, kernel="fast"))
    with pytest.raises(ValueError, match="returns None"):
        om.muon(0.1, polar=functools.partial(polar, kernel="slow"))


def test_a_name_of_another_package():
    with pytest.raises(AttributeError, match=r"is `om\.stacks\.map_matrices`"):
        om.map_matrices  # noqa: B018


def test_a_number_of_steps_for_the_kernel():
    with pytest.raises(ValueError, match=r"linalg.newton_schulz, steps=7\)") as error:
        om.muon(1e-2, polar=7)
    assert "its name" not in str(error.value)


def test_a_word_that_a_method_has_nothing_for():
    with pytest.raises(TypeError, match="it has nothing like `shampoo_beta`; its arg"):
        om.muon(1e-2, shampoo_beta=0.9)


def test_parameters_in_front_of_the_rate():
    with pytest.raises(TypeError, match=r"f\(learning_rate\).init\(params\)"):
        om.muoneq(PARAMS, 1e-2)


def test_a_learning_rate_for_a_direction():
    with pytest.raises(TypeError, match=r"scale_by_learning_rate\(rate\)"):
        om.scale_by_muoneq(3e-3)


@walk("word", inspect.signature(optax.contrib.muon).parameters)
def test_every_word_of_optax_is_known_or_answered(word):
    if word not in inspect.signature(om.muon).parameters:
        with pytest.raises(TypeError) as error:
            om.muon(1e-2, **{word: 1})
        assert "its arguments are" not in str(error.value)


@pytest.mark.quick("muon", "kernel-soap")
@pytest.mark.daily("muon", "soap", "kernel-poet")
@every_recipe
@pytest.mark.parametrize("missing", ["kernel", "bias"])
def test_a_gradient_of_none(name, missing):
    tx = _registry.RECIPES[name](1e-2)
    state = jax.eval_shape(tx.init, PARAMS)
    grads = {"up": PARAMS["up"] | {missing: None}}
    with pytest.raises(ValueError, match=f"got None for 'up/{missing}'; pass zeros"):
        jax.eval_shape(tx.update, grads, state, PARAMS)


@pytest.mark.quick("muon")
@every_recipe
def test_parameters_that_no_gradient_is_for_may_be_left_out_from_the_start(name):
    tx = _registry.RECIPES[name](1e-2)
    part = {"up": {"kernel": PARAMS["up"]["kernel"], "bias": None}}
    state = jax.eval_shape(tx.init, part)
    updates, _ = jax.eval_shape(tx.update, part, state, PARAMS)
    assert updates["up"]["bias"] is None


@every_recipe
def test_a_random_key_among_the_parameters(name):
    tx = _registry.RECIPES[name](1e-2)
    with pytest.raises(ValueError, match="random key at 'dropout/key'"):
        tx.init(PARAMS | {"dropout": {"key": jax.random.key(0)}})


@every_recipe
def test_parameters_are_missing_only_where_something_uses_them(name):
    factory = _registry.RECIPES[name]
    tx = factory(1e-2, weight_decay=0.1)
    state = jax.eval_shape(tx.init, PARAMS)
    with pytest.raises(ValueError, match="`params` must be passed to `update`"):
        jax.eval_shape(tx.update, PARAMS, state)
    tx = factory(1e-2, weight_decay=0.0)
    if name.partition("-")[0] not in {"poet", "oft", "muonh"}:  # Finished steps.
        jax.eval_shape(lambda: tx.update(PARAMS, tx.init(PARAMS)))


@every_recipe
@pytest.mark.parametrize("mask", [{"kernl": True}, {"up": {"kernel": True}}])
def test_a_mask_of_another_tree(name, mask):
    tx = _registry.RECIPES[name](1e-2, weight_decay=0.1, weight_decay_mask=mask)
    with pytest.raises(ValueError, match="`weight_decay_mask` must be a tree of True"):
        jax.eval_shape(tx.init, PARAMS)


@pytest.mark.broad
def test_updates_that_lack_a_parameter():
    tx = om.muoneq(1e-3)
    state, part = tx.init(PARAMS), {"up": {"kernel": PARAMS["up"]["kernel"]}}
    with pytest.raises(ValueError, match="has the extra entries other/0/mu/up/bias"):
        tx.update(part, state, part)


def test_an_axis_that_the_example_does_not_know():
    with pytest.raises(SystemExit, match="axes of fsdp, tp and data, got fspd"):
        train_sharded.make_mesh({"fspd": 4, "tp": 2})
