"""Chains of blocks alone."""

from typing import Literal

import numpy as np
import optax

import optax_matrix as om
from examples.catalogue.method import Method
from examples.catalogue.parts import average, count, polar, polar64, power64

NEEDS = "blocks alone"


@Method
def mars_m():
    r"""MARS-M: the variance-reduced gradient before Muon.

    .. math::
        C_t = G_t + \gamma \tfrac{\beta}{1 - \beta} (G_t - G_{t-1}), \qquad
        \Delta = 0.2 \sqrt{\max(m, n)} \, \mathrm{msign}(M_t)

    with :math:`C_t` clipped to the norm 1, and M its average. Source:
    `arXiv:2510.21800 <https://arxiv.org/abs/2510.21800>`__. Left out: the exact form,
    which takes a second gradient of the same batch.
    """
    return optax.chain(
        om.transforms.correct_variance(0.025, 0.95, max_norm=1.0),
        om.momentum(0.95),
        om.orthogonalize(polar),
        om.scale_by_shape("max"),
    )


@mars_m.in_numpy
def _(g, kept, _w):
    c = g + 0.025 * 0.95 / 0.05 * (g - kept.get("g", 0))
    kept["g"] = g
    m = average(kept, "m", c / max(1, np.linalg.norm(c)), 0.95)
    return 0.2 * np.sqrt(max(g.shape)) * polar64(m)


@Method
def pmuon():
    r"""PMuon: the polar factor of a momentum between powers of Gram matrices.

    .. math::
        \Delta = \mathrm{msign}(L^{-0.3} M R^{-0.3})

    where L and R are averages of :math:`G G^\top` and :math:`G^\top G`. Source: record
    18 of `modded-nanogpt <https://github.com/KellerJordan/modded-nanogpt>`__'s third
    track. Left out: its damping, and renewals of the powers at intervals.
    """
    powers = om.precondition(
        power=0.3, decay=0.95, eps=0.0, method="eigh", momentum=om.momentum(0.95)
    )
    return optax.chain(powers, om.orthogonalize(polar))


@pmuon.in_numpy
def _(g, kept, _w):
    m = average(kept, "m", g, 0.95)
    left, right = average(kept, "l", g @ g.T, 0.95), average(kept, "r", g.T @ g, 0.95)
    return polar64(power64(left, -0.3) @ m @ power64(right, -0.3))


# The null space of a first Gram matrix has no eigenvectors of its own, and Sinkhorn's
# scaling depends on them: so on square matrices only.
@Method
def sinksoap():
    r"""SinkSOAP: Sinkhorn's scaling in both eigenbases of averaged Gram matrices.

    .. math::
        \Delta = Q_L \, \mathrm{sinkhorn}(Q_L^\top M Q_R) \, Q_R^\top

    Source: record 26 of `modded-nanogpt
    <https://github.com/KellerJordan/modded-nanogpt>`__'s third track. Left out: the row
    scaling of NorMuon at its end (`equilibrate_with_ema`).
    """
    return om.in_eigenbasis(
        om.equilibrate(om.linalg.sinkhorn),
        decay=0.95,
        policy="eigen_exact",
        momentum=om.momentum(0.95),
    )


sinksoap.shapes = {"square": (2, 5, 5), "larger": (2, 7, 7)}


@sinksoap.in_numpy
def _(g, kept, _w):
    m = average(kept, "m", g, 0.95)
    u = np.linalg.eigh(average(kept, "l", g @ g.T, 0.95))[1]
    v = np.linalg.eigh(average(kept, "r", g.T @ g, 0.95))[1]
    x = u.T @ m @ v
    p, q, r = x**2, np.ones(len(x)), np.ones(x.shape[1])
    for _ in range(5):
        q, r = 1 / (p @ r), 1 / (p.T @ q)
    x = np.sqrt(q)[:, None] * x * np.sqrt(r)
    x = x / np.sqrt(np.mean(x**2))
    return u @ x @ v.T


@Method
def conda(b1=0.9, b2=0.99, side: Literal["out", "short"] = "out", update_interval=1):
    r"""Conda: Adam in the left singular vectors of the momentum.

    .. math::
        \Delta = U \, \frac{U^\top \hat M}{\sqrt{\hat V}}, \qquad
        V_t = \beta_2 V_{t-1} + (1 - \beta_2) (U^\top G)^2

    Source: `arXiv:2509.24218 <https://arxiv.org/abs/2509.24218>`__. Left out: epsilon,
    renewals of U every 2,000 steps (``update_interval``), and the right vectors of tall
    matrices, which the program takes by default.
    """
    adam = om.scale_by_second_moment(b2, bias_correction=True, bounded=False)
    frame = om.rotate(
        adam, policy="eigen_exact", side=side, update_interval=update_interval
    )
    chain = optax.chain(om.momentum(b1, bias_correction=True), frame)
    return om.transforms.with_gradient(chain)


conda.shapes = {"wide": (2, 5, 8), "square": (1, 6, 6)}


@conda.in_numpy
def _(g, kept, _w):
    m, t = average(kept, "m", g, 0.9), count(kept)
    u = np.linalg.svd(m, full_matrices=False)[0]
    v = average(kept, "v", (u.T @ g) ** 2, 0.99)
    return u @ (u.T @ m / (1 - 0.9**t) / np.sqrt(v / (1 - 0.99**t)))
