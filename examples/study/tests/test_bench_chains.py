"""The algebra of chains: what it can say, and that it says what the recipes do."""

import jax
import numpy as np
import pytest

from examples.pretrain.errors import UserError
from examples.study.bench.chains import KNOWN, PARTS, name_of, sensible
from examples.study.bench.methods import find
from examples.study.bench.tasks import TASKS

CHAINS = list(sensible())
TASK = TASKS["books"]


def updates(name, steps=3):
    """The updates of all leaves under the same random gradients."""
    params = jax.tree.map(np.asarray, TASK.init(0))
    tx = find(name, "matched", TASK.arena)(1e-3)
    state, random, found = tx.init(params), np.random.default_rng(0), []
    for _ in range(steps):
        gradient = jax.tree.map(
            lambda x: random.standard_normal(x.shape).astype(x.dtype) / 30, params
        )
        got, state = jax.jit(tx.update)(gradient, state, params)
        found += jax.tree.leaves(got)
    return found


def test_there_are_a_few_hundred_chains_and_each_has_one_name():
    assert len(CHAINS) == len(set(CHAINS)) == 258


def errors(chain, other):
    """Largest relative difference of two updates, and smallest cosine."""
    found = []
    for ours, theirs in zip(updates(chain), updates(other), strict=True):
        size, other_size = np.linalg.norm(ours), np.linalg.norm(theirs)
        cosine = np.vdot(ours, theirs) / size / other_size
        found.append((np.linalg.norm(ours - theirs) / other_size, cosine))
    return max(error for error, _ in found), min(cosine for _, cosine in found)


@pytest.mark.slow
@pytest.mark.parametrize(("chain", "recipe"), KNOWN.items())
def test_chains_are_the_recipes(chain, recipe):
    assert chain in CHAINS
    error, cosine = errors(chain, recipe)
    assert cosine > 1 - 1e-5
    # Recipes of Muon scale by shape, which is the same but for Newton-Schulz's error.
    # The chain of AdaMuon bounds large entries (`scale_by_second_moment`).
    name, _, _ = recipe.partition(":")
    limits = {"muon": 0.3, "muoneq": 0.3, "muon_plus": 0.3, "adamuon": 2e-3}
    assert error < limits.get(name, 1e-5)


@pytest.mark.slow
def test_a_chain_may_have_another_momentum():
    chain = name_of(frame="aro", map="sinkhorn")
    error, _ = errors(f"{chain}:b1=0.8", "aro:b1=0.8")
    assert error < 1e-5
    error, _ = errors(chain, "aro:b1=0.8")
    assert error > 1e-2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parts", "same"),
    [
        ({"map": "sign", "second": "row"}, {"second": "none"}),
        ({"map": "sign", "second": "entry"}, {"second": "none"}),
        ({"map": "row_norm", "second": "row"}, {"second": "none"}),
        ({"map": "row_norm", "frame": "aro"}, {"frame": "eigen"}),
        (
            {"map": "polar", "equilibration": "plus_colrow", "second": "row"},
            {"second": "none"},
        ),
    ],
)
def test_chains_that_are_left_out_are_others(parts, same):
    twin = name_of(**{**parts, **same})
    assert name_of(**parts) not in CHAINS
    assert twin in CHAINS
    error, _ = errors(name_of(**parts), twin)
    assert error < 1e-3


@pytest.mark.parametrize("part", PARTS)
def test_an_unknown_part_is_refused(part):
    with pytest.raises(UserError, match=f"`{part}` must be one of {PARTS[part][0]}"):
        find(f"chain:{part}=x", "matched", TASK.arena)


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_every_choice_of_a_part_is_another_update(part):
    base = (
        {"equilibration": "none", "map": "sinkhorn"} if part in ("frame", "map") else {}
    )
    found = []
    for choice in PARTS[part]:
        options = ":".join(f"{k}={v}" for k, v in (base | {part: choice}).items())
        found.append(np.concatenate([x.ravel() for x in updates(f"chain:{options}")]))
    for i, one in enumerate(found):
        for other in found[:i]:
            assert np.abs(one - other).max() > 1e-5
