"""Steps along a manifold: norms or singular values of the weights stay as they are."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

import optax_matrix as om
from examples.catalogue.method import RATE, Method
from examples.catalogue.parts import (
    average,
    inner,
    norm,
    polar,
    polar64,
    rows,
    rows64,
    svd,
    with_weights,
)

NEEDS = "the weights, on a manifold"
with_state = om.transforms.with_state
steps_of_weights = functools.partial(Method, needs_params=True, finished=True)


@steps_of_weights
def muon_sphere():
    r"""MuonSphere: Muon with the spectral norm of the weights held.

    .. math::
        W' = \|W\|_2 \, V / \|V\|_2, \qquad V = W - \eta \, \mathrm{msign}(M)

    Source: branch ``jl/muon-sphere`` of `dion <https://github.com/microsoft/dion>`__;
    `arXiv:2601.08393 <https://arxiv.org/abs/2601.08393>`__ at :math:`\lambda = 0`. Left
    out: the norm by power steps. The program scales the weights in front of a step, and
    to the norm :math:`c \sqrt{m / n}`, which multiplies its rate.
    """
    top = lambda x: svd(x)[1][..., :1, None]
    held = lambda v, w: v * top(w) / top(v) - w
    step = with_weights(lambda u, w: held(w - RATE * u, w))
    return optax.chain(om.momentum(0.95), om.orthogonalize(polar), step)


@muon_sphere.in_numpy
def _(g, kept, w):
    v = w - RATE * polar64(average(kept, "m", g, 0.95))
    return v * np.linalg.norm(w, 2) / np.linalg.norm(v, 2) - w


def _along_the_sphere(m, w):
    u, s, vt = svd(w)
    top, m = u[..., :, :1] @ vt[..., :1, :], m / norm(m)

    def halved(_, ends):
        low, high = ends
        middle = (low + high) / 2
        is_low = inner(top, polar(m + middle * top)) < 0
        return jnp.where(is_low, middle, low), jnp.where(is_low, high, middle)

    two = 2 * jnp.ones_like(norm(m))
    low, high = jax.lax.fori_loop(0, 50, halved, (-two, two))
    return -RATE * s[..., :1, None] * polar(m + (low + high) / 2 * top)


# Of square matrices the polar factor jumps where the root is.
@steps_of_weights
def sso():
    r"""SSO: steepest descent along the sphere of the weights' spectral norm.

    .. math::
        \Delta = -\eta \|W\|_2 \, \mathrm{msign}(N(M) + \lambda u v^\top), \qquad
        \langle u v^\top, \mathrm{msign}(N(M) + \lambda u v^\top) \rangle = 0

    u, v are the leading singular vectors of W, and :math:`\lambda` is found by
    bisection. Source: `arXiv:2601.08393 <https://arxiv.org/abs/2601.08393>`__. Left
    out: the retraction, and u and v by power steps.
    """
    return optax.chain(om.momentum(0.95), with_weights(_along_the_sphere))


sso.shapes = {"wide": (2, 5, 8), "tall": (2, 9, 4)}


@sso.in_numpy
def _(g, kept, w):
    m = average(kept, "m", g, 0.95)
    m, (u, s, vt), low, high = m / np.linalg.norm(m), np.linalg.svd(w), -2.0, 2.0
    top = np.outer(u[:, 0], vt[0])
    for _ in range(50):
        middle = (low + high) / 2
        is_low = np.sum(top * polar64(m + middle * top)) < 0
        low, high = (middle, high) if is_low else (low, middle)
    return -RATE * s[0] * polar64(m + (low + high) / 2 * top)


def _rotated(g, state, _, w):
    def adam(x, m, v):
        m, v = 0.9 * m + 0.1 * x, 0.99 * v + 0.01 * x**2
        return -m / (jnp.sqrt(v) + 1e-8), m, v

    skew = lambda x: x - x.mT  # So that its diagonal is exactly zero.
    inside, *held = adam(skew(w.mT @ g), *state[:2])
    outside, *more = adam(skew(g @ w.mT), *state[2:])
    size = 0.2 * (w.shape[-2] * w.shape[-1]) ** 0.5
    rate = RATE * size / norm(outside @ w + w @ inside)
    turned = lambda a, x: x + rate * a @ x + 0.5 * (rate * a) @ (rate * a) @ x
    new = turned(outside, turned(inside.mT, w.mT).mT)
    return new - w, (*held, *more)


@steps_of_weights
def pion():
    r"""Pion: rotations of both sides, which keep the singular values.

    .. math::
        W' = E(\eta c A_{out}) \, W \, E(\eta c A_{in}), \qquad
        E(X) = I + X + \tfrac12 X^2

    A are Adam's steps of the skew parts :math:`G W^\top - W G^\top` and
    :math:`W^\top G - G^\top W`, and c brings the step to a root mean square of 0.2.
    Source: `arXiv:2605.12492 <https://arxiv.org/abs/2605.12492>`__. Left out: terms
    after the second of the exponential.
    """
    square = lambda x, n: jnp.zeros((*x.shape[:-2], n, n), x.dtype)
    sides = lambda x: (x.shape[-1], x.shape[-1], x.shape[-2], x.shape[-2])
    return with_state(_rotated, lambda x: tuple(square(x, n) for n in sides(x)))


@pion.in_numpy
def _(g, kept, w):
    def adam(side, x):
        m = average(kept, f"m_{side}", x, 0.9)
        return -m / (np.sqrt(average(kept, f"v_{side}", x**2, 0.99)) + 1e-8)

    inside, outside = adam("in", w.T @ g - g.T @ w), adam("out", g @ w.T - w @ g.T)
    rate = RATE * 0.2 * np.sqrt(w.size) / np.linalg.norm(outside @ w + w @ inside)
    turn = lambda a: np.eye(len(a)) + rate * a + (rate * a) @ (rate * a) / 2
    return turn(outside) @ w @ turn(inside) - w


@steps_of_weights
def oblique():
    r"""Oblique SGD: rows of weights on spheres, here at the norms that they have.

    .. math::
        W_i' = \|W_i\| \, N(W_i - \eta (B_i - \langle B_i, N(W_i) \rangle N(W_i)))

    B is a sum of gradients, decayed by 0.9. Source: ``ObliqueSGD(dim=1)`` of
    `Emerging-Optimizers <https://github.com/NVIDIA-NeMo/Emerging-Optimizers>`__, whose
    rows have norm one. Left out: columns, weight decay and ``ObliqueAdam``.
    """

    def step(b, w):
        unit = w / rows(w)
        v = w - RATE * (b - unit * jnp.sum(unit * b, axis=-1, keepdims=True))
        return rows(w) * v / rows(v) - w

    return optax.chain(optax.trace(0.9), with_weights(step))


@oblique.in_numpy
def _(g, kept, w):
    b = kept["b"] = 0.9 * kept.get("b", 0) + g
    unit = w / rows64(w)
    v = w - RATE * (b - unit * np.sum(unit * b, axis=1, keepdims=True))
    return rows64(w) * v / rows64(v) - w


def _isospectral(g, state, _, w):
    u, s, v, m_u, m_v = state
    m_u, m_v = 0.9 * m_u + (g @ v) * s, 0.9 * m_v + (g.mT @ u) * s
    u, v = polar(u - RATE * m_u), polar(v - RATE * m_v)
    return (u * s) @ v.mT - w, (u, s, v, m_u, m_v)


@steps_of_weights
def iso():
    r"""Iso: the singular values of the first weights are kept.

    .. math::
        W = U S V^\top, \qquad U' = \mathrm{msign}(U - \eta M_U), \quad
        V' = \mathrm{msign}(V - \eta M_V)

    The momenta sum the gradients :math:`G V S` and :math:`G^\top U S`, decayed by 0.9.
    Source: `arXiv:2607.19331 <https://arxiv.org/abs/2607.19331>`__, by the program of
    `Emerging-Optimizers <https://github.com/NVIDIA-NeMo/Emerging-Optimizers>`__. Left
    out: retractions by QR and Cayley's transform. Weights that are changed from outside
    come back to what the factors say.
    """

    def start(w):
        u, s, vt = svd(w)
        return u, s[..., None, :], vt.mT, 0 * u, 0 * vt.mT

    return with_state(_isospectral, start)


@iso.in_numpy
def _(g, kept, w):
    if "u" not in kept:
        u, s, vt = np.linalg.svd(w, full_matrices=False)
        kept.update(u=u, s=s, v=vt.T, mu=0 * u, mv=0 * vt.T)
    u, s, v = kept["u"], kept["s"], kept["v"]
    kept["mu"] = 0.9 * kept["mu"] + g @ v * s
    kept["mv"] = 0.9 * kept["mv"] + g.T @ u * s
    kept["u"] = polar64(u - RATE * kept["mu"])
    kept["v"] = polar64(v - RATE * kept["mv"])
    return kept["u"] * s @ kept["v"].T - w


def _along_stiefel(m, w):
    size = max(1.0, (w.shape[-2] / w.shape[-1]) ** 0.5)
    turned = (lambda x: x.mT) if w.shape[-2] < w.shape[-1] else (lambda x: x)
    a, x = turned(w), turned(m)
    inside = a.mT @ x
    tangent = turned(x - a @ (inside + inside.mT) / (2 * size**2))
    return size * polar(w - RATE * size * polar(tangent)) - w


@steps_of_weights
def scaled_stiefel():
    r"""SPEL on a scaled Stiefel manifold: all singular values of the weights are equal.

    .. math::
        W' = \sigma \, \mathrm{msign}(W - \eta \sigma \, \mathrm{msign}(T)), \quad
        T = M - \tfrac{1}{2 \sigma^2} W (W^\top M + M^\top W), \quad
        \sigma = \max(1, \sqrt{m / n})

    where :math:`W^\top W = \sigma^2 I`; of wide matrices T is that of the transposes.
    Sources: `arXiv:2601.21487 <https://arxiv.org/abs/2601.21487>`__ for
    :math:`\sigma = 1`, and pull request 301 of `Emerging-Optimizers
    <https://github.com/NVIDIA-NeMo/Emerging-Optimizers>`__ for the scale and the
    tangent T. The program of the pull request was not run, only a copy written from its
    description. ``Spel`` of version 0.4 has M in place of T. Left out: weight decay,
    Nesterov's momentum, Newton-Schulz. The first step brings other weights onto the
    manifold, and T is tangent from the second one on.
    """
    return optax.chain(om.momentum(0.95), with_weights(_along_stiefel))


@scaled_stiefel.in_numpy
def _(g, kept, w):
    m, size = average(kept, "m", g, 0.95), max(1, np.sqrt(w.shape[0] / w.shape[1]))
    if w.shape[0] < w.shape[1]:
        tangent = m - (w @ m.T + m @ w.T) @ w / 2
    else:
        tangent = m - w @ (w.T @ m + m.T @ w) / (2 * size**2)
    return size * polar64(w - RATE * size * polar64(tangent)) - w
