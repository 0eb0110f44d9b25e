"""The example of experts without tokens: there are such, and the policies differ."""

import flax.nnx as nnx
import jax
import jax.numpy as jnp
import pytest

from examples import experts


@pytest.mark.slow
def test_policies_differ_where_experts_have_no_tokens(monkeypatch, capsys):
    monkeypatch.setattr(experts, "RATES", (0.01, 0.02))
    found = experts.main(steps=40)
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in shown[3:]] == list(experts.POLICIES)
    share = [int(line.split()[-1][:-1]) for line in shown[3:]]
    assert all(40 < x < 100 for x in share)
    each = jnp.array([loss for _, loss in found.values()])
    assert jnp.isfinite(each).all()
    assert len({tuple(x) for x in each.tolist()}) == len(experts.POLICIES)


@pytest.mark.broad
def test_an_expert_without_tokens_has_no_gradient():
    """And a token reaches one expert, the one of the largest probability."""
    graph, params = nnx.split(experts.Mixture(nnx.Rngs(0)))
    x, _ = experts.batch(jax.random.key(0), 4)
    chosen = jnp.argmax(nnx.merge(graph, params).router(x), -1)
    grads = jax.grad(lambda p: jnp.sum(nnx.merge(graph, p)(x)[0] ** 2))(params)
    for name in ("up", "down"):
        live = jnp.any(grads["experts"][name][...], (1, 2))
        assert set(jnp.flatnonzero(live).tolist()) == set(chosen.tolist())


def test_shown_seeds_chose_no_rate():
    assert not set(experts.SEEDS) & set(experts.CHOOSING)
