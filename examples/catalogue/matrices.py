"""A state of more than numbers: ``om.transforms.with_state`` with a function."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

import optax_matrix as om
from examples.catalogue.kernels import _cubics
from examples.catalogue.method import Method
from examples.catalogue.parts import (
    average,
    count,
    identity,
    norm,
    polar,
    polar64,
    power64,
    spectral,
)

NEEDS = "matrices as state"
with_state = om.transforms.with_state


def _about_the_mean(g, state, *_):
    m, v, weight = state
    v = 0.95 * v + 0.95 * 0.05 * (m - g) ** 2
    m, weight = 0.95 * m + 0.05 * g, 0.95 * weight + 0.05
    return (g + 19 * m / weight) / jnp.sqrt(v / weight), (m, v, weight)


@Method
def muon_vs():
    r"""Muon-VS: the variance about the mean scales entries before the polar factor.

    .. math::
        \Delta = \mathrm{msign}\left(\frac{G + \frac{\beta}{1 - \beta} \hat M}
        {\sqrt{\hat\Gamma}}\right), \qquad
        \Gamma_t = \beta \Gamma_{t-1} + \beta (1 - \beta) (M_{t-1} - G_t)^2

    Source: `arXiv:2601.14603 <https://arxiv.org/abs/2601.14603>`__. Left out: epsilon.
    The first update is that of a matrix of signs, which may be singular.
    """
    start = lambda x: (0 * x, 0 * x, jnp.zeros_like(x[..., :1, :1]))
    return optax.chain(with_state(_about_the_mean, start), om.orthogonalize(polar))


muon_vs.skipped = 1


@muon_vs.in_numpy
def _(g, kept, _w):
    weight = 1 - 0.95 ** count(kept)
    kept["v"] = 0.95 * kept.get("v", 0) + 0.95 * 0.05 * (kept.get("m", 0) - g) ** 2
    m = average(kept, "m", g, 0.95)
    return polar64((g + 19 * m / weight) / np.sqrt(kept["v"] / weight))


def _between_factors(g, state, *_):
    left, right, momentum = state
    (m, n), trace = g.shape[-2:], lambda a: jnp.trace(a, axis1=-2, axis2=-1)
    size = lambda a: trace(a)[..., None, None] / a.shape[-1]
    eye, root = lambda a: identity(a.shape[-1], a), spectral(lambda s: s**-0.5)
    new = g @ jnp.linalg.solve(right, g.mT) / n + 0.1 * size(left) * eye(left)
    left = 0.9 * left + 0.1 * new
    left = left / size(left)
    new = g.mT @ jnp.linalg.solve(left, g) / m + 0.1 * size(right) * eye(right)
    right = 0.9 * right + 0.1 * new
    right = right / size(right)
    momentum = 0.95 * momentum + 0.05 * root(left) @ g @ root(right)
    return root(left) @ polar(momentum) @ root(right), (left, right, momentum)


@Method
def fismo():
    r"""FISMO: a momentum between factors that whiten one another.

    .. math::
        P \sim G Q^{-1} G^\top, \quad Q \sim G^\top P^{-1} G, \qquad
        \Delta = P^{-1/2} \, \mathrm{msign}(M) \, Q^{-1/2}

    P and Q are averages, damped by a tenth of their mean eigenvalue and normalized by
    it; M is that of :math:`P^{-1/2} G Q^{-1/2}`. Source: `arXiv:2601.21750
    <https://arxiv.org/abs/2601.21750>`__. Left out: renewals at intervals.
    """
    eyes = lambda x: (identity(x.shape[-2], x), identity(x.shape[-1], x), 0 * x)
    return with_state(_between_factors, eyes)


@fismo.in_numpy
def _(g, kept, _w):
    m, n = g.shape
    p, q = kept.get("p", np.eye(m)), kept.get("q", np.eye(n))
    p = 0.9 * p + 0.1 * (
        g @ np.linalg.inv(q) @ g.T / n + 0.1 * np.trace(p) / m * np.eye(m)
    )
    p = p * m / np.trace(p)
    q = 0.9 * q + 0.1 * (
        g.T @ np.linalg.inv(p) @ g / m + 0.1 * np.trace(q) / n * np.eye(n)
    )
    kept["p"], kept["q"] = p, q * n / np.trace(q)
    left, right = power64(p, -0.5), power64(kept["q"], -0.5)
    return left @ polar64(average(kept, "m", left @ g @ right, 0.95)) @ right


_RANK = 2
_polar_of_low_rank = partial(polar, rtol=1e-5)  # Of what has no range along U.


def _in_two_parts(g, state, *_, b1, b2, kernel):
    basis, gram, m, v, t = state
    g, t = g.mT, t + 1
    leading = lambda: jnp.linalg.eigh(g @ g.mT)[1][..., : -basis.shape[-1] - 1 : -1]
    first = jax.lax.cond((t == 1).any(), leading, lambda: basis)
    moved = b2 * basis @ gram + (1 - b2) * g @ (g.mT @ basis)
    new = jnp.where(t == 1, first, jnp.linalg.qr(moved)[0])
    turn, seen = basis.mT @ new, new.mT @ g
    gram = b2 * turn.mT @ gram @ turn + (1 - b2) * seen @ seen.mT
    m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * seen**2
    ratio = b1 / (1 - b1)
    ahead = (g + ratio * m) / (1 + ratio * (1 - b1**t))
    part = new.mT @ ahead
    adam = part / jnp.sqrt(v / (1 - b2**t))
    rest = kernel(ahead - new @ part)
    scale = 0.1 * (g.shape[-2] * g.shape[-1]) ** 0.5
    sum_ = new @ adam + scale * rest / norm(rest)
    return (scale * sum_ / norm(sum_)).mT, (new, gram, m, v, t)


@Method
def cosmos(b1=0.9, b2=0.96, rank=_RANK, kernel=_polar_of_low_rank):
    r"""COSMOS: Adam in a subspace of few directions, Muon in what it leaves.

    .. math::
        \Delta = c \, N\left(\frac{B U}{\sqrt{\hat V}} U^\top +
        c \, N(\mathrm{msign}(B - B U U^\top))\right), \qquad
        B = \frac{G + \frac{\beta}{1 - \beta} M}
        {1 + \frac{\beta}{1 - \beta} (1 - \beta^t)}, \qquad c = 0.1 \sqrt{m n}

    U follows the leading eigenvectors of the averaged :math:`G^\top G` by a QR
    decomposition at each step, V averages :math:`(G U)^2`, and N is a matrix at norm
    one. Source: `arXiv:2502.17410 <https://arxiv.org/abs/2502.17410>`__, by its
    authors' `program <https://github.com/lliu606/COSMOS>`__ ``COSMOS_optim.py``. Left
    out: epsilon, Newton-Schulz, weight decay. With ``nestrov=False`` the program has G
    in place of B; the one before it, ``COSMOS.py``, had the average M on rows, and
    never stored U.
    """

    def start(x):
        x = x.mT
        basis = jnp.zeros_like(x[..., :rank])
        gram, v = (
            jnp.zeros_like(x[..., :rank, :rank]),
            jnp.zeros_like(x[..., :rank, :]),
        )
        return basis, gram, 0 * x, v, jnp.zeros_like(x[..., :1, :1])

    return with_state(partial(_in_two_parts, b1=b1, b2=b2, kernel=kernel), start)


@cosmos.in_numpy
def _(g, kept, _w):
    t, m = count(kept), average(kept, "m", g, 0.9)
    if t == 1:
        u = np.linalg.eigh(g.T @ g)[1][:, : -_RANK - 1 : -1]
        kept["s"] = 0.04 * u.T @ g.T @ g @ u
    else:
        old = kept["u"]
        u = np.linalg.qr(0.96 * old @ kept["s"] + 0.04 * g.T @ g @ old)[0]
        turn = old.T @ u
        kept["s"] = 0.96 * turn.T @ kept["s"] @ turn + 0.04 * u.T @ g.T @ g @ u
    kept["u"] = u
    v = average(kept, "v", (g @ u) ** 2, 0.96)
    b = (g + 9 * m) / (1 + 9 * (1 - 0.9**t))
    x = b @ u / np.sqrt(v / (1 - 0.96**t)) @ u.T
    left, s, right = np.linalg.svd(b - b @ u @ u.T, full_matrices=False)
    rest = left * (s > 1e-9 * s[0]) @ right
    scale = 0.1 * np.sqrt(g.size)
    x = x + scale * rest / np.linalg.norm(rest)
    return scale * x / np.linalg.norm(x)


def _roots(a, cubics):
    """A square root and its inverse, by products alone."""
    size = 1.01 * jnp.max(jnp.sum(jnp.abs(a), axis=-1), axis=-1)[..., None, None]
    y, z = a / size, identity(a.shape[-1], a)
    for b, c, _ in cubics:
        p = z @ y
        y, z = b * y + c * y @ p, b * z + c * p @ z
    return y * size**0.5, z / size**0.5


def _between_roots(g, state, _, _w, root):
    left, right, m = state
    left, right = 0.95 * left + 0.05 * g @ g.mT, 0.95 * right + 0.05 * g.mT @ g
    m = 0.95 * m + 0.05 * g
    mean = lambda a: jnp.trace(a, axis1=-2, axis2=-1)[..., None, None] / a.shape[-1]
    damped = lambda a: a + 0.001 * mean(a) * identity(a.shape[-1], a)
    power = lambda a: root(root(damped(a))[0])[1]  # To minus a quarter.
    return power(left) @ m @ power(right), (left, right, m)


@Method
def cans_shampoo():
    r"""Shampoo by CANS: inverse roots by the cubics closest to one.

    .. math::
        P = Z Y, \quad Y \leftarrow Y (\alpha I + \beta P), \quad
        Z \leftarrow (\alpha I + \beta P) Z, \qquad \Delta = L^{-1/4} M R^{-1/4}

    from :math:`Y = A / s` and :math:`Z = I`, where s is 1.01 times the largest row sum
    of absolute values: Y tends to :math:`(A / s)^{1/2}`, Z to its inverse, and the root
    of the root is taken in the same way. The twelve :math:`(\alpha, \beta)` are those
    of ``cans`` from 8.5e-4 on. L and R average :math:`G G^\top` and :math:`G^\top G`,
    damped by a thousandth of their mean eigenvalue. Sources: `arXiv:2506.10935
    <https://arxiv.org/abs/2506.10935>`__ for the cubics (as in ``cans``), and
    ``mat_root_inv_via_scaled_cans`` of `Emerging-Optimizers
    <https://github.com/NVIDIA-NeMo/Emerging-Optimizers>`__ for the coupled iteration,
    which has the first ten as a table, to 1e-5; `arXiv:1802.09568
    <https://arxiv.org/abs/1802.09568>`__ for Shampoo. Left out: its sums in place of
    averages, and its symmetrized Z.
    """
    start = lambda x: tuple(jnp.zeros_like(y) for y in (x @ x.mT, x.mT @ x, x))
    root = partial(_roots, cubics=_cubics(8.5e-4, 12))
    return with_state(partial(_between_roots, root=root), start)


@cans_shampoo.in_numpy
def _(g, kept, _w):
    m = average(kept, "m", g, 0.95)

    def power(x):
        return power64(x + 0.001 * np.trace(x) / len(x) * np.eye(len(x)), -0.25)

    left, right = average(kept, "l", g @ g.T, 0.95), average(kept, "r", g.T @ g, 0.95)
    return power(left) @ m @ power(right)
