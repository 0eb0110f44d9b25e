"""A catalogue of published methods as chains of blocks.

Each method is one expression, with its formula, its source, what of it is left out, and
a restatement in NumPy. None of them is a recipe: take one as the start of yours.

>>> import jax.numpy as jnp
>>> from examples import catalogue
>>> from examples.build_your_own import optimizer
>>> tx = optimizer(catalogue.METHODS["htmuon"].make(), learning_rate=0.01)
>>> state = tx.init({"kernel": jnp.ones((3, 5)), "bias": jnp.ones(5)})

``python -m examples.catalogue`` compares all of them with their restatements. The
groups say what a method needs: blocks alone, a kernel in place of the polar factor, a
sum of blocks, a number or matrices as state, the weights, or a manifold on which they
stay. Methods that need a partner of each matrix (LoRA-Muon, circuit Muon) or statistics
of the forward pass (Newton-Muon) will be groups of their own.
"""

from examples.catalogue import (
    blocks,
    kernels,
    manifolds,
    matrices,
    states,
    sums,
    weights,
)
from examples.catalogue.method import Method as Method

GROUPS: dict[str, dict[str, Method]] = {
    module.NEEDS: {name: x for name, x in vars(module).items() if isinstance(x, Method)}
    for module in (blocks, kernels, sums, states, matrices, weights, manifolds)
}
"""The methods by what they need, and by name."""

METHODS = {name: method for group in GROUPS.values() for name, method in group.items()}
"""All methods by name."""
