r"""A function of one stack in place of the polar factor: ``om.orthogonalize(kernel)``.

With the singular value decomposition :math:`M = U S V^\top` of the momentum.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

import optax_matrix as om
from examples.catalogue.method import Method
from examples.catalogue.parts import (
    average,
    count,
    identity,
    inner,
    norm,
    polar,
    polar64,
    rows,
    rows64,
    spectral,
    spectral64,
)

NEEDS = "a kernel"


def _whitened_rows(x):
    q = x if x.shape[-2] <= x.shape[-1] else x.mT
    q = q / rows(q)
    lower = jnp.tril(q @ q.mT)
    q = jax.scipy.linalg.solve_triangular(lower, q, lower=True)
    q = q / rows(q)
    return q if x.shape[-2] <= x.shape[-1] else q.mT


@Method
def mud():
    r"""MUD: triangular whitening in place of Newton-Schulz.

    .. math::
        Q = N(M), \qquad \Delta = N(\mathrm{tril}(Q Q^\top)^{-1} Q)

    N gives rows of norm one, those of the shorter side. Source: `arXiv:2603.17970
    <https://arxiv.org/abs/2603.17970>`__. Left out: passes after the first.
    """
    return optax.chain(om.momentum(0.95), om.orthogonalize(_whitened_rows))


@mud.in_numpy
def _(g, kept, _w):
    x = average(kept, "m", g, 0.95)
    q = x if x.shape[0] <= x.shape[1] else x.T
    q = q / rows64(q)
    q = np.linalg.solve(np.tril(q @ q.T), q)
    q = q / rows64(q)
    return q if x.shape[0] <= x.shape[1] else q.T


@Method
def htmuon():
    r"""HTMuon: a small power of the singular values.

    .. math::
        \Delta = \max(1, m / n) \, U S^{1/8} V^\top

    Source: `arXiv:2603.10067 <https://arxiv.org/abs/2603.10067>`__. Left out: the fast
    iterations for the power.
    """
    return optax.chain(
        om.momentum(0.95),
        om.orthogonalize(spectral(lambda s: s**0.125)),
        om.scale_by_shape(lambda m, n: max(1, m / n)),
    )


@htmuon.in_numpy
def _(g, kept, _w):
    m = average(kept, "m", g, 0.95)
    return max(1, g.shape[0] / g.shape[1]) * spectral64(m, lambda s: s**0.125)


@Method
def spectral_clipping():
    r"""SPECTRA and MuCon: singular values are clipped.

    .. math::
        \Delta = U \min(S, c) V^\top, \qquad c = 1/2

    Sources: `arXiv:2603.14315 <https://arxiv.org/abs/2603.14315>`__ and
    `arXiv:2605.26459 <https://arxiv.org/abs/2605.26459>`__. Left out: clipping by
    products of matrices, and a c that changes.
    """
    return optax.chain(
        om.momentum(0.95), om.orthogonalize(spectral(lambda s: jnp.minimum(s, 0.5)))
    )


@spectral_clipping.in_numpy
def _(g, kept, _w):
    return spectral64(average(kept, "m", g, 0.95), lambda s: np.minimum(s, 0.5))


@Method
def soft_muon():
    r"""SoftMuon: between the polar factor and the momentum, by a fixed temperature.

    .. math::
        \Delta = M (M^\top M + \tau^{-2} I)^{-1/2}, \qquad \tau = 2

    Source: `arXiv:2605.31371 <https://arxiv.org/abs/2605.31371>`__. Left out: the
    schedule of :math:`\tau` (as DynMuon's exponent has one).
    """
    soft = spectral(lambda s: s / jnp.sqrt(s**2 + 0.25))
    return optax.chain(om.momentum(0.95), om.orthogonalize(soft))


@soft_muon.in_numpy
def _(g, kept, _w):
    m = average(kept, "m", g, 0.95)
    return spectral64(m, lambda s: s / np.sqrt(s**2 + 0.25))


@Method
def numuon():
    r"""NuMuon: the leading part of the polar factor.

    .. math::
        \Delta = U_{:k} V_{:k}^\top, \qquad k = 2

    Source: `arXiv:2603.03597 <https://arxiv.org/abs/2603.03597>`__. Left out: the
    choice of k by layer.
    """
    leading = spectral(lambda s: (jnp.arange(s.shape[-1]) < 2) * jnp.ones_like(s))
    return optax.chain(om.momentum(0.95), om.orthogonalize(leading))


@numuon.in_numpy
def _(g, kept, _w):
    return spectral64(average(kept, "m", g, 0.95), lambda s: np.arange(len(s)) < 2)


@Method
def freon():
    r"""Freon: steepest descent under a Schatten quasi-norm, here with c = 3/4.

    .. math::
        \Delta = (G G^\top)^{-c} G, \qquad G = M / \|M\|_F

    Source: `arXiv:2605.11181 <https://arxiv.org/abs/2605.11181>`__. Left out: norms
    other than Frobenius', and iterations by products.
    """
    size = lambda s: jnp.linalg.norm(s, axis=-1, keepdims=True)
    kernel = spectral(lambda s: (s / size(s)) ** (1 - 2 * 0.75))
    return optax.chain(om.momentum(0.95), om.orthogonalize(kernel))


@freon.in_numpy
def _(g, kept, _w):
    m = average(kept, "m", g, 0.95)
    return spectral64(m, lambda s: (s / np.linalg.norm(s)) ** -0.5)


@Method
def clipped_scion():
    r"""Clipped Scion: the oracle of the spectral ball, shorter where gradients are.

    .. math::
        \Delta = \min(\rho, \langle M, U V^\top \rangle) \, U V^\top, \qquad \rho = 3

    Source: `arXiv:2506.01913 <https://arxiv.org/abs/2506.01913>`__. Left out: other
    norms for the first and the last layer (``transforms.lmo``).
    """
    clipped = lambda d, v: v * jnp.minimum(3.0, inner(d, v))
    kernel = lambda d: clipped(d, polar(d))
    return optax.chain(om.momentum(0.9), om.orthogonalize(kernel))


@clipped_scion.in_numpy
def _(g, kept, _w):
    m = average(kept, "m", g, 0.9)
    return polar64(m) * min(3.0, np.sum(m * polar64(m)))


def _near_power(x, power):
    tall = x.shape[-2] > x.shape[-1]
    y = x.mT if tall else x
    y, d, eye = y / norm(x), 0.5 * power, identity(min(x.shape[-2:]), x)
    e = y @ y.mT - eye
    u = (eye + d * e + 0.5 * d * (d - 1) * e @ e) @ polar(y) * norm(x) ** power
    return u.mT if tall else u


@Method
def dynmuon():
    r"""DynMuon: a power of the singular values that falls from 1/4 to -1/4.

    .. math::
        \Delta = \|M\|^p (I + d E + \tfrac{d (d - 1)}{2} E^2) \, U V^\top, \qquad
        E = Y Y^\top - I, \quad Y = M / \|M\|_F, \quad d = p / 2

    Source: `arXiv:2605.17109 <https://arxiv.org/abs/2605.17109>`__ and record 28 of
    modded-nanogpt's third track. Left out: nothing of the direction.
    """
    block = lambda power: om.orthogonalize(partial(_near_power, power=power))
    schedule = optax.linear_schedule(0.25, -0.25, 5)
    return optax.chain(om.momentum(0.95), om.inject_hyperparams(block)(schedule))


@dynmuon.in_numpy
def _(g, kept, _w):
    x = average(kept, "m", g, 0.95)
    power, size = 0.25 - 0.1 * (count(kept) - 1), np.linalg.norm(x)
    y = (x.T if x.shape[0] > x.shape[1] else x) / size
    e, d = y @ y.T - np.eye(len(y)), power / 2
    u = (np.eye(len(y)) + d * e + d * (d - 1) / 2 * e @ e) @ polar64(y) * size**power
    return u.T if x.shape[0] > x.shape[1] else u


def _cubics(least, steps):
    """The cubics closest to one on the interval that the ones before leave."""
    a, b, found = least, 1.0, []
    for _ in range(steps):
        square, ends = a * a + a * b + b * b, a * b * (a + b)
        top = 2 * (square / 3) ** 1.5
        found.append((2 * square / (top + ends), -2 / (top + ends), 0.0))
        a, b = 2 * ends / (top + ends), 2 * top / (top + ends)
    return found


@Method
def cans():
    r"""CANS: the polar factor by the cubics closest to one, here 12 of them.

    .. math::
        X \leftarrow \frac{2 (c X - X X^\top X)}{2 (c/3)^{3/2} + a b (a + b)}, \qquad
        c = a^2 + a b + b^2

    on the interval :math:`[a, b]` of singular values, which starts as [1e-3, 1].
    Source: `arXiv:2506.10935 <https://arxiv.org/abs/2506.10935>`__. Its text was not
    read: the formula is from a summary, and a test shows that each cubic is the closest
    to one. The restatement is the polar factor itself. Left out: the estimate of a,
    quintics, and the retraction onto Stiefel manifolds. Inverse roots are in
    ``cans_shampoo``.
    """
    cubics = partial(om.linalg.newton_schulz, coefficients=_cubics(1e-3, 12), steps=12)
    return optax.chain(om.momentum(0.95), om.orthogonalize(cubics))


@cans.in_numpy
def _(g, kept, _w):
    return polar64(average(kept, "m", g, 0.95))
