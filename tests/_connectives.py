"""Connectives around two transformations, each with its restatement in NumPy.

A transformation is a pair: itself, and a function of a stream of inputs and of the
gradients beside it that returns all outputs.
"""

import numpy as np
import optax

import optax_matrix as om


def _chain(f, g):
    return optax.chain(f[0], g[0]), lambda xs, gs: g[1](f[1](xs, gs), gs)


def _add(f, g):
    sum_of = lambda *pair: [2.0 * x - 0.5 * y for x, y in zip(*pair, strict=True)]
    each = lambda xs, gs: sum_of(f[1](xs, gs), g[1](xs, gs))
    return om.transforms.add(f[0], g[0], weights=(2.0, -0.5)), each


def _with_gradient(f, g):
    chain, each = _chain(f, g)
    return om.transforms.with_gradient(chain), lambda xs, gs: each(xs, xs)  # noqa: ARG005


def _preserve_norm(f, g):
    chain, each = _chain(f, g)
    norm = lambda x: np.linalg.norm(x, axis=(-2, -1), keepdims=True)
    kept = lambda x, y: y * norm(x) / norm(y)
    return om.transforms.preserve_norm(chain), lambda xs, gs: list(
        map(kept, xs, each(xs, gs))
    )


def _in_blocks(f, g):
    chain, each = _chain(f, g)

    def blocks(xs, gs):
        out, (m, n) = [np.zeros_like(x) for x in xs], xs[0].shape[-2:]
        corners = [(i, j) for i in range(0, m, 2) for j in range(0, n, 2)]
        cuts = [np.s_[..., i : i + 2, j : j + 2] for i, j in corners]
        for cut in cuts:
            of = lambda tree, cut=cut: [x[cut] for x in tree]
            for whole, part in zip(out, each(of(xs), of(gs)), strict=True):
                whole[cut] = part
        return out

    return om.transforms.in_blocks(chain, 2), blocks


def _per_matrix(f, g):
    chain, each = _chain(f, g)
    return om.per_matrix(chain), each


def _in_float32(f, g):
    chain, each = _chain(f, g)
    return om.transforms.in_float32(chain), each


def _injected(f, g):
    chain, each = _chain(f, g)
    scaled = lambda rate: optax.chain(chain, optax.scale(rate))
    return om.inject_hyperparams(scaled)(-2.0), lambda xs, gs: [
        -2 * x for x in each(xs, gs)
    ]


CONNECTIVES = {
    "chain": _chain,
    "add": _add,
    "with_gradient": _with_gradient,
    "preserve_norm": _preserve_norm,
    "in_blocks": _in_blocks,
    "per_matrix": _per_matrix,
    "in_float32": _in_float32,
    "injected": _injected,
}
