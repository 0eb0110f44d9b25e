"""Wrong arguments of recipes: a ValueError names the argument, whatever is wrong."""

import inspect
import math
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _matrices import ones
from _registry import TABLE, small
from _walks import walk

import optax_matrix as om
from optax_matrix._arguments import is_number

PARAMS = {"up": {"kernel": ones(4, 6), "bias": ones(6)}}
BOUNDS = ("limiter", "max_shrink", "max_norm", "max_rms", "max_entry")
NUMBERS = {
    "negative": -1.0,
    "nan": math.nan,
    "infinite": math.inf,
    "text": "0.9",
    "flag": True,
    "object": object(),
    "vector": np.full(3, 0.5),
    "jax vector": np.full(3, 0.5, np.float32),
    "shape": jax.ShapeDtypeStruct((), jnp.float32),
    "complex": 0.5 + 0j,
    "class": float,
}


def _given(name, **arguments):
    return small(name)(**{"learning_rate": 1e-3, **arguments})


def _numbers():
    for name, recipe in TABLE.items():
        for key, parameter in inspect.signature(recipe).parameters.items():
            if is_number(parameter.annotation):
                yield name, key


@pytest.mark.parametrize("name", ["adamuon", "mars_adamw", "muonh"])
def test_adam_needs_an_epsilon(name):
    """Its quotient is NaN for a gradient of zero without one."""
    with pytest.raises(ValueError, match="`eps` must be positive"):
        _given(name, eps=0.0)


@walk(("name", "key"), list(_numbers()))
def test_what_is_no_number_is_refused_by_name(name, key):
    for kind, value in NUMBERS.items():
        if kind == "infinite" and key in BOUNDS:
            continue  # An infinite bound is none, where it is not refused.
        with pytest.raises(ValueError, match=f"`{key}` must"):
            _given(name, **{key: value})


@pytest.mark.parametrize("value", [np.full(3, 0.5), np.bool_(True), np.complex64(1)])
def test_traced_values_must_be_numbers_too(value):
    for name, key in (("dion", "b1"), ("muon", "learning_rate"), ("soap", "b3")):
        with pytest.raises(ValueError, match=f"`{key}` must be a number"):
            jax.jit(lambda x, n=name, k=key: _given(n, **{k: x}).init(PARAMS))(value)


@walk("name", TABLE)
def test_dtypes_are_refused_by_name(name):
    values = (ones(3), np.ones(3), np.float32(1), jnp.int8, "bf16", 3, object())
    for value in (*values, jax.ShapeDtypeStruct((2,), jnp.float32)):
        with pytest.raises(ValueError, match="`mu_dtype` must be a floating dtype"):
            _given(name, mu_dtype=value)
    for value in (jnp.bfloat16, "float32", np.dtype("float32"), np.float32):
        _given(name, mu_dtype=value)


@walk("name", TABLE)
def test_masks_are_refused_by_name(name):
    wrong = ("bias", 0.5, 1, {"up": "kernel"}, {"up": {"kernel": 1.0}}, ["bias"])
    for value in (*wrong, np.ones(2, bool)):
        with pytest.raises(ValueError, match="`weight_decay_mask` must be a tree of"):
            _given(name, weight_decay_mask=value)
    right = (
        None,
        True,
        {"up": {"kernel": np.bool_(True), "bias": False}},
        {"up": True},
    )
    for value in (*right, lambda params: jax.tree.map(lambda p: p.ndim > 1, params)):
        _given(name, weight_decay_mask=value)


def _functions(argument):
    for name, recipe in TABLE.items():
        if argument in inspect.signature(recipe).parameters:
            yield name


JUNK = {
    "class": int,
    "number": lambda *_, **__: 3,
    "pair": lambda x, **_: jnp.linalg.qr(x),
    "shape": lambda x, **_: x[..., :1],
    "missing argument": lambda: 3,
    "error": lambda x, **_: x @ ones(1000, 2),
}


@walk(("argument", "name"), [(a, n) for a in ("qr", "polar") for n in _functions(a)])
def test_functions_that_do_something_else_are_refused_by_name(argument, name):
    for junk in JUNK.values():
        with pytest.raises(ValueError, match=f"`{argument}` must"):
            _given(name, **{argument: junk})


@pytest.mark.parametrize("name", ["alice", "galore", "aro", "soap", "dion"])
def test_a_function_of_the_user_is_accepted(name):
    def qr(x, previous=None):
        del previous
        return jnp.linalg.qr(x)[0]

    _given(name, qr=qr)
    _given(name, qr=om.linalg.qr_householder)
    om.muon(1e-3, polar=om.linalg.polar_svd)


PATTERNS = {
    "include": ({"include": "lm_haed"}, "`include` .*'lm_haed'.* up/bias, up/kernel"),
    "exclude": ({"exclude": "layers/11/"}, "`exclude` .*'layers/11/'"),
    "numbers": ({"numbers": {"up": None, "qkv": None}}, "`numbers` .*'qkv'"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PATTERNS)
def test_an_expression_that_matches_no_leaf_gives_a_warning_at_init(name):
    options, message = PATTERNS[name]
    rule = om.matrices.by_path(**options)
    nested = om.matrices.by_path(exclude="bias", otherwise=rule)
    for numbers in (rule, nested):
        for tx in (
            om.muon(1e-3, dimension_numbers=numbers),
            om.scale_by_muon(dimension_numbers=numbers),
            om.aro(1e-3, full_model=True, dimension_numbers=numbers),
        ):
            with pytest.warns(om.matrices.UnmatchedPatternWarning, match=message):
                state = tx.init(PARAMS)
            tx.update(PARAMS, state, PARAMS)  # Once is enough.
            with warnings.catch_warnings():  # For layers that some models lack.
                warnings.simplefilter("ignore", om.matrices.UnmatchedPatternWarning)
                tx.init(PARAMS)


@pytest.mark.parametrize(
    "options",
    [
        {"include": "kernel", "exclude": "bias", "numbers": {"up/kernel": None}},
        {"exclude": "frozen"},
        {},
    ],
)
def test_expressions_that_match_give_none(options):
    """A leaf that is None counts: it may be frozen, as in Equinox."""
    params = {**PARAMS, "frozen": None}
    rule = om.matrices.by_path(**options)
    om.muon(1e-3, dimension_numbers=rule).init(params)
    om.tree.describe(params, om.matrices.by_path(exclude="not there"))


def test_part_of_a_tree_gives_none():
    """Another optimizer may have the leaves that an expression means."""
    rule = om.matrices.by_path(exclude="embed")
    params = {"embed": ones(8, 4), **PARAMS}
    labels = {"embed": "frozen", "up": "trained"}
    trained = om.muon(1e-3, dimension_numbers=rule)
    tx = optax.partition({"trained": trained, "frozen": optax.set_to_zero()}, labels)
    tx.init(params)


@pytest.mark.slow
def test_recipes_own_expressions_give_none():
    params = {"kernel": jnp.ones((4, 6))}  # Neither embedding nor head.
    for name in TABLE:
        _given(name).init(params)
    om.aro(1e-3, full_model=True).init(params)
