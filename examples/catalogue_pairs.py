"""Methods for two matrices whose product a model computes, each as one chain.

The factors of an adapter, query and key, value and output: the loss sees their product
only. `on_matrices(pairs=...)` stacks the partners in one order, and the kernel of
`on_pairs` gets both. These are chains of blocks and no recipes: add decay, schedules
and an optimizer of the other leaves as usual. `METHODS` has them by name.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import optax

import optax_matrix as om
from optax_matrix.linalg import inverse_root, newton_schulz

Kernel = Callable[[jax.Array], jax.Array]
Factor = om.transforms.Factor
LORA = {"lora_a": "lora_b"}
CIRCUITS = {"query": "key", "value": "out"}


def shortest(x: jax.Array, gram: jax.Array, polar: Kernel, eps: float) -> jax.Array:
    """``C^-1 polar(C^-1 x)`` with ``C = (gram + eps l_max I)^(1/2)``.

    Of all D with ``|C D|_2 <= 1`` it has the largest inner product with x. If gram is
    ``P P'`` of the partner, ``P' D`` has a spectral norm of at most one.
    """
    root = inverse_root(gram, 2, eps=eps)
    return root @ polar(root @ x)


def of_product(a: Factor, b: Factor, polar: Kernel, eps: float) -> tuple:
    """Half a step of each factor of ``W = B A``, A ``(r, n)`` and B ``(m, r)``."""
    step = partial(shortest, polar=polar, eps=eps)
    new_a = step(a.update, b.params.mT @ b.params)
    new_b = step(b.update.mT, a.params @ a.params.mT).mT
    return new_a / 2, new_b / 2


def of_circuit(first: Factor, second: Factor, polar: Kernel, eps: float) -> tuple:
    """Half a step of each matrix of a head: query and key, or value and output.

    Scores are ``x' Q' K x``, with Q and K ``(head_dim, d)``; they pass ``O V x``, with
    V ``(head_dim, d)`` and O ``(d, head_dim)``.
    """
    if first.update.shape != second.update.shape:
        return of_product(first, second, polar, eps)
    step = partial(shortest, polar=polar, eps=eps)
    new = step(first.update, second.params @ second.params.mT)
    return new / 2, step(second.update, first.params @ first.params.mT) / 2


def of_riemannian_metric(a: Factor, b: Factor, eps: float) -> tuple:
    """Each gradient over the Gram matrix of the other factor."""
    new_a = inverse_root(b.params.mT @ b.params, 1, eps=eps) @ a.update
    return new_a, b.update @ inverse_root(a.params @ a.params.mT, 1, eps=eps)


def on_adapters(chain: optax.GradientTransformation) -> Any:
    """A chain on the factors of adapters, and on no other leaf."""
    nothing = om.matrices.PathRule(lambda *_: (None, "no adapter"))
    rule = om.matrices.by_path(include="lora_[ab]", otherwise=nothing)
    return om.on_matrices(chain, pairs=LORA, needs_params=True, dimension_numbers=rule)


def lora_muon(
    b1: float = 0.9, eps: float = 1e-6, polar: Kernel = newton_schulz
) -> optax.GradientTransformationExtraArgs:
    """Each factor of an adapter ``B A``, whitened by the other one.

    ``D_A = C_B^-1 polar(C_B^-1 M_A) / 2``, with ``C_B = (B' B)^(1/2)``, and likewise
    D_B: the product changes by ``B D_A + D_B A``, whose spectral norm is at most one.
    That change is the same for the factors ``R A`` and ``B R^-1``, with any R.
    Source: https://arxiv.org/abs/2606.12921, which has the adapter ``A B'`` and these
    two updates. Its abstract was read, and its formulas in a later text of its author
    and in a review.
    Not reproduced: its split decay, ``A -> s A + D_A / s`` with s the root of one minus
    rate times decay, so that the product decays by the decay; its damping of C, which
    is absolute, and here relative to the largest eigenvalue; its kernels, inverse roots
    by Newton-Schulz and Polar Express in eight steps. As long as B is zero, A has no
    gradient, and neither moves A; the first step of B follows from A alone.
    """
    kernel = partial(of_product, polar=polar, eps=eps)
    chain = optax.chain(om.momentum(b1), om.transforms.on_pairs(kernel))
    return on_adapters(chain)


def riemannian_lora(eps: float = 1e-6) -> optax.GradientTransformationExtraArgs:
    """Scaled gradient descent on the factors of an adapter ``B A``.

    ``D_A = (B' B + eps)^-1 G_A`` and ``D_B = G_B (A A' + eps)^-1``. The product moves
    in the same way however it is split between A and B.
    Source: https://arxiv.org/abs/2402.02347 (its SGD form).
    Not reproduced: eps is relative to the largest eigenvalue.
    """
    chain = om.transforms.on_pairs(partial(of_riemannian_metric, eps=eps))
    return on_adapters(chain)


def compositional_muon(
    b1: float = 0.95, eps: float = 1e-6, polar: Kernel = newton_schulz
) -> optax.GradientTransformationExtraArgs:
    """Muon on the circuits of attention: each head's query with key, value with output.

    ``D_Q = C_K^-1 polar(C_K^-1 M_Q) / 2``, with ``C_K = (K K')^(1/2)``, and likewise
    for the others, so that ``Q' K`` and ``O V`` of a head change by at most one. All
    other matrices get Muon's polar factor.
    Source: https://blog.tilderesearch.com/blog/compositional-muon and the README of
    https://github.com/tilde-research/comp-muon-release ("half_split", per head).
    Not reproduced: its hybrid rule for the output, which takes one polar factor of all
    heads together; its damping is absolute. Kernels are Flax's ``(d, heads, head_dim)``
    and ``(heads, head_dim, d)``, with as many heads of keys as of queries, and
    ``head_dim`` is not d.
    """
    kernel = partial(of_circuit, polar=polar, eps=eps)
    others = om.orthogonalize(polar)
    chain = optax.chain(om.momentum(b1), om.transforms.on_pairs(kernel, others))
    numbers = om.MatrixDimensionNumbers
    heads = om.matrices.by_path(
        numbers={
            r"(query|key|value)/kernel": numbers(0, 2),
            "out/kernel": numbers(1, 2),
        }
    )
    return om.on_matrices(
        chain, pairs=CIRCUITS, needs_params=True, dimension_numbers=heads
    )


METHODS = {
    "lora_muon": lora_muon,
    "riemannian_lora": riemannian_lora,
    "compositional_muon": compositional_muon,
}
