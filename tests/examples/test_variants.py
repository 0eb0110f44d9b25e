"""POET and LoRA by name: what they train, from where, and their options."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import optax_matrix as om
from examples.pretrain import factors
from examples.pretrain.config import SIZES
from examples.pretrain.errors import UserError
from examples.pretrain.optimizers import find
from examples.pretrain.step import Trainer, initial_weights
from optax_matrix.transforms.stochastic_primitives._spo_step import SpoState

MODEL = dataclasses.replace(
    SIZES["tiny"], embed=16, mlp=24, heads=2, kv_heads=1, layers=1, context=8
)


def _matrices(params):
    flat = jax.tree.leaves_with_path(params)
    kernels = {jax.tree_util.keystr(keys): x for keys, x in flat}
    return {path: x for path, x in kernels.items() if "layers" in path and x.ndim == 2}


def _train(name, rate=0.02, steps=4):
    """Weights before and after some updates."""
    trainer = Trainer(MODEL, find(name), steps, 1)
    state = trainer.init(0)
    before = jax.tree.map(np.asarray, state.params)
    batch = np.random.default_rng(0).integers(0, 255, (1, 2, 9), np.uint8)
    for _ in range(steps):
        state, _ = trainer.update(state, batch, np.float32(rate))
    return before, state.params


@pytest.mark.slow
def test_poet_starts_from_rows_of_norm_one_and_keeps_the_spectrum():
    # Its own rate is 6.4 times as high: Q reaches a norm of about 0.1.
    before, after = _train("poet:block=8:merge_interval=2", 0.003)
    pairs = zip(_matrices(before).values(), _matrices(after).values(), strict=True)
    for old, new in pairs:
        np.testing.assert_allclose(np.linalg.norm(old, axis=0), 1, rtol=1e-5)
        spectra = (np.linalg.svd(w, compute_uv=False) for w in (old, new))
        np.testing.assert_allclose(*spectra, rtol=1e-3)
        assert float(np.abs(old - new).max()) > 1e-3
    table = lambda tree: tree["embed"]["embedding"][...]
    np.testing.assert_array_equal(table(before), table(initial_weights(MODEL, 0)))
    assert float(np.abs(table(before) - table(after)).max()) > 1e-3


@pytest.mark.slow
def test_lora_starts_where_all_others_do_and_adds_a_low_rank():
    before, after = _train("lora:rank=2")
    start = _matrices(initial_weights(MODEL, 0))
    for path, old in _matrices(before).items():
        np.testing.assert_array_equal(old, start[path])
        change = np.linalg.svd(_matrices(after)[path] - old, compute_uv=False)
        assert change[2] < 1e-4 * change[0]
        assert change[1] > 1e-2 * change[0]


def test_poet_and_lora_train_equally_much():
    shapes = {"q": (96, 96), "k": (96, 48), "up": (96, 256), "down": (256, 96)}
    params = {p: jax.ShapeDtypeStruct(s, jnp.float32) for p, s in shapes.items()}
    rotated = om.reparameterize(block=find("poet").options["block"])
    _, trainable = jax.eval_shape(rotated.split, params)
    rotations = sum(x.size for x in jax.tree.leaves(trainable.rotations))
    factors = find("lora").options["rank"] * sum(map(sum, shapes.values()))
    assert 0.95 < rotations / factors <= 1


def test_galore_can_have_the_rank_of_lora():
    params = {"kernel": jax.ShapeDtypeStruct((48, 96), jnp.float32)}
    state = jax.eval_shape(find("galore:rank=16")(0.1).init, params)
    sizes = [x.size for x in jax.tree.leaves(state)]
    assert sizes.count(16 * 96) == 2


def _shared(block, share, variant="block"):
    return factors.shared(share, block=block, variant=variant, sides="both")


@pytest.mark.parametrize(("share", "side"), [(1.0, "in"), (0.0, "out")])
def test_one_side_may_have_all_of_the_budget(share, side):
    assert find(f"poet:block=8:share={share}")(1e-3)
    assert _shared(8, share) == {"block": {side: 16}, "sides": side}
    with pytest.raises(UserError, match="`share` must be from 0 to 1"):
        find("poet:share=2")


@pytest.mark.parametrize("share", [0.75, 0.1])
def test_a_share_splits_the_same_budget(share):
    entries = lambda b: b - 1  # Of each row or column, halved.
    assert find(f"poet:block=33:share={share}")(1e-3)
    blocks = _shared(33, share)["block"]
    total = sum(entries(b) for b in blocks.values())
    assert total == pytest.approx(2 * entries(33), abs=2)
    assert blocks["in"] / 66 == pytest.approx(share, abs=0.01)
    full = _shared(0.5, share, "full")["block"]
    assert full["in"] ** 2 + full["out"] ** 2 == pytest.approx(0.5)
    assert full["in"] ** 2 / 0.5 == pytest.approx(share)


def test_the_rate_goes_as_one_over_the_block():
    rates = {}

    def take(rate, *, variant="block", block=256, merge_interval=1, other=None):
        del variant, merge_interval, other
        rates[block] = rate

    method = factors.orthogonal(take, optax.sgd)
    for block in (256, 128, 64):
        method.replace(block=block)(5e-3)
    for block in (0.5, 0.25, 0.125):
        method.replace(block=block, variant="full")(5e-3)
    paper = [1e-3, 2e-3, 4e-3] * 2  # Beside 5e-3 for the other leaves.
    np.testing.assert_allclose(list(rates.values()), paper, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("poet:terms=0", "`terms` must be a positive int"),
        ("poet:blocks=8", "poet has no option 'blocks'; its options: variant, block"),
        ("poet:init=best", "`init` must be one of given, standard, .*, got 'best'"),
        ("galore:rank=0", "`rank` must be"),
        ("galore:method=x", "galore has no option 'method'; its options: rank, b1"),
        ("lora:rank=x", "`rank` must be a positive int"),
        ("aro:sharing=pairs", "`sharing` must be one of"),
        ("dion:rank=0", "`rank` must be"),
        ("poem", r"There is no optimizer .poem.; did you mean poet\? All are adamw"),
    ],
)
def test_mistakes_are_answered(name, message):
    with pytest.raises(UserError, match=message):
        find(name)


def test_oft_is_poet_without_p():
    params = {"kernel": jnp.ones((4, 6))}
    state = jax.eval_shape(find("oft:block=2")(0.1).init, params)
    is_spo = lambda x: isinstance(x, SpoState)
    (spo,) = filter(is_spo, jax.tree.leaves(state, is_leaf=is_spo))
    assert [set(sides) for sides in spo.q.values()] == [{"in"}]


def _rotations(name, weights):
    """Shapes of the rotations in the state, from shapes alone."""
    trainer = Trainer(MODEL, find(name), 1, 1)
    state = jax.eval_shape(trainer._optimizer(0.0).init, weights)
    flat = jax.tree_util.tree_leaves_with_path(state)
    path = lambda keys: jax.tree_util.keystr(keys)
    return sorted(x.shape for keys, x in flat if ".rotation" in path(keys))


def test_rotated_methods_know_the_residual_side_and_take_options():
    weights = jax.eval_shape(initial_weights, MODEL, 0)
    both = [(8, 8), (16, 16)]  # Keys and values have 8 outputs.
    sides = lambda name: sorted({shape[1:] for shape in _rotations(name, weights)})
    assert sides("aro") == sides("eigen_sign") == [(16, 16)]
    assert sides("aro:orientation=short:policy=polar") == both
    assert _rotations("aro:sharing=chain:base=adam:joint=False", weights) == [
        (2, 16, 16)
    ]
    assert find("aro:full_model=True").options["full_model"] is True
    assert find("shampoo:update_interval=7").options["update_interval"] == 7
