"""The algebra of chains: what it can say, and that it says what the recipes do."""

import jax
import numpy as np
import pytest

from examples.bench.chains import PARTS, sensible
from examples.bench.methods import find
from examples.bench.tasks import TASKS
from examples.pretrain.errors import UserError

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
    assert len(CHAINS) == len(set(CHAINS)) == 306


@pytest.mark.slow
@pytest.mark.parametrize(
    ("chain", "recipe", "tolerance"),
    [
        # MuonEq scales by shape, which has the same size up to Newton-Schulz's error.
        ("chain", "muoneq", 0.3),
        ("chain:equilibration=none:second=row", "normuon", 1e-5),
        (
            "chain:momentum=average:equilibration=none:map=sinkhorn:frame=aro",
            "aro",
            1e-5,
        ),
        (
            "chain:momentum=average:equilibration=none:map=sign:frame=eigen",
            "eigen_sign",
            1e-5,
        ),
    ],
)
def test_chains_are_the_recipes(chain, recipe, tolerance):
    for ours, theirs in zip(updates(chain), updates(recipe), strict=True):
        error = np.linalg.norm(ours - theirs) / np.linalg.norm(theirs)
        assert error < tolerance
        cosine = np.vdot(ours, theirs) / np.linalg.norm(ours) / np.linalg.norm(theirs)
        assert cosine > 1 - 1e-5


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
