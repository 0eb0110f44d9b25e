"""Rules go to other processes, and into files, by `pickle`."""

import pickle

import flax.nnx as nnx
import numpy as np
import pytest

import optax_matrix as om
from optax_matrix.matrices import MatrixDimensionNumbers as Numbers, by_path

m = om.matrices
PARAMS = {
    "attn": {"query": {"kernel": np.ones((8, 2, 4))}, "wo": np.ones((8, 8))},
    "embed": {"embedding": np.ones((5, 8))},
    "head": {"kernel": np.ones((8, 5)), "bias": np.ones(5)},
}


def named():
    """A model whose axes have names."""
    init = nnx.with_partitioning(
        nnx.initializers.ones_init(), ("embed", "mlp"), eager_sharding=False
    )
    return nnx.Linear(4, 8, kernel_init=init, rngs=nnx.Rngs(0))


def numbers_of(params):
    return by_path(exclude="head")(params)


RULES = {
    "by_path": lambda: by_path(
        include="embed", exclude="head", numbers={"wo": Numbers(0, 1)}
    ),
    "table": lambda: by_path(
        table={"attn/wo": {"reduction_axis": 0, "output_axis": 1}}
    ),
    "split_heads": m.split_heads,
    "infer": lambda: m.infer(named()),
    "nested": lambda: by_path(include="z|e", otherwise=m.split_heads(m.infer(named()))),
    "with_embeddings": lambda: m.with_embeddings(by_path(exclude="wo")),
    "made_with_embeddings": lambda: m.with_embeddings(numbers_of),
    "heads_as_matrices": lambda: m.heads_as_matrices(None),
    "full": lambda: m.with_embeddings(None),
}


@pytest.mark.quick("by_path", "table", "split_heads", "with_embeddings")
@pytest.mark.daily("infer", "nested")
@pytest.mark.parametrize("name", RULES)
def test_a_rule_decides_as_before(name):
    rule = RULES[name]()
    again = pickle.loads(pickle.dumps(rule))
    assert again(PARAMS) == rule(PARAMS)
    if name in ("infer", "nested"):
        model = nnx.state(named())
        assert again(model) == rule(model)
        assert again.full("kernel", model["kernel"]) == rule.full(
            "kernel", model["kernel"]
        )
