"""The README's code runs as it stands."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import NamedSharding

import optax_matrix as om

README = (Path(__file__).parents[1] / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def _block(word):
    (block,) = (b for b in BLOCKS if word in b)
    return block


@pytest.mark.broad
def test_quick_start_learns_and_describes_itself(capsys):
    scope = {}
    exec(_block("class MLP"), scope)
    assert scope["loss"] < 0.7
    exec(_block("om.describe"), scope)
    printed = capsys.readouterr().out
    shown = re.search(r"```\n(leaf .*?)\n\.\.\.\n```", README, re.DOTALL)[1]
    # `describe` is a table; the README shows its first lines.
    assert shown in printed


def test_own_method_in_five_lines():
    scope = {"optax": optax, "om": om}
    block = _block("my_method")
    exec(block, scope)
    params = {"kernel": jnp.ones((3, 5)), "bias": jnp.ones(5)}
    updates, _ = scope["my_method"].update(params, scope["my_method"].init(params))
    rms = jnp.sqrt(jnp.mean(updates["kernel"] ** 2))
    assert rms == pytest.approx(0.2 * 3e-3, rel=1e-3)
    assert len(block.strip().splitlines()) == 5


def test_rules_are_accepted():
    params = {"embed": jnp.ones((8, 4)), "qkv": jnp.ones((8, 768))}
    scope = {"optax": optax, "model": params}
    exec(_block("layout.by_path"), scope)
    rule = om.layout.by_path(include="embed", exclude="layers/11/")
    assert len(om.layout.make_layout(params, rule).views) == 2


def test_sharded_models(cpus):
    assert len(cpus) == 8
    scope = {"jax": jax, "jnp": jnp, "optax": optax, "om": om}
    exec(_block("make_mesh"), scope)
    params, state = scope["params"], scope["opt_state"]
    new, _ = scope["update"](params, state, params)
    assert jax.typeof(new["up"]) == jax.typeof(params["up"])
    stacks = [x for x in jax.tree.leaves(state) if x.ndim == 3]
    assert [x.sharding.spec[0] for x in stacks] == [("fsdp", "tp")]
    specs = jax.tree.map(lambda x: x.sharding.spec, params)
    scope |= {"specs": specs}
    exec(_block("from_params"), scope)
    state = scope["opt_state"]
    specs = jax.tree.leaves(om.state_specs(scope["tx"], params))
    for x, spec in zip(jax.tree.leaves(state), specs, strict=True):
        said = NamedSharding(scope["mesh"], spec)
        assert x.sharding.is_equivalent_to(said, x.ndim)


def test_checkpoint_lines():
    tx = om.muoneq(1e-3)
    old = {"attn": {"kernel": jnp.ones((3, 5))}}
    new = {"mixer": {"kernel": jnp.ones((3, 5))}}
    save, *load = _block("to_portable").strip().splitlines()
    scope = {"om": om, "tx": tx, "opt_state": tx.init(old), "params": old}
    exec(save, scope)
    scope["params"] = new
    exec("\n".join(load), scope)
    om.check_restored(scope["opt_state"])


@pytest.mark.broad
def test_weights_made_of_rotations():
    model, _ = _block("class MLP").split("optimizer =")
    scope = {}
    exec(model, scope)
    before = scope["model"].up.kernel[...]
    scope["x"] = jax.random.normal(jax.random.key(0), (64, 32))
    exec(_block("om.reparameterize"), scope)
    after = scope["model"].up.kernel[...]
    assert scope["loss"](nnx.state(scope["model"])) < scope["loss"](scope["params"])
    values = [np.linalg.svd(w, compute_uv=False) for w in (before, after)]
    np.testing.assert_allclose(*values, atol=1e-5)
    assert np.abs(after - before).max() > 1e-4
