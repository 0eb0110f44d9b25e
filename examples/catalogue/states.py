"""A state of one's own: ``om.transforms.with_state``, here one number per matrix."""

from functools import partial

import jax.numpy as jnp
import numpy as np
import optax

import optax_matrix as om
from examples.catalogue.method import Method
from examples.catalogue.parts import (
    average,
    count,
    norm,
    polar,
    polar64,
    safe_divide,
)

NEEDS = "a number per matrix"
with_gradient, with_state = om.transforms.with_gradient, om.transforms.with_state


def _by_average_norm(x, state, gradient, _, b2):
    root, weight = state
    root = jnp.hypot(b2**0.5 * root, (1 - b2) ** 0.5 * norm(gradient))
    weight = b2 * weight + 1 - b2
    return safe_divide(x * jnp.sqrt(weight), root), (root, weight)


@Method
def namo(b1=0.95, b2=0.99, kernel=polar):
    r"""NAMO: the polar factor at the size of Adam's step of the norm.

    .. math::
        \Delta = \frac{\|\hat M_t\|_F}{\sqrt{\hat v_t}} \, \mathrm{msign}(M_t), \qquad
        v_t = \beta_2 v_{t-1} + (1 - \beta_2) \|G_t\|_F^2

    Source: `arXiv:2602.17080 <https://arxiv.org/abs/2602.17080>`__. Left out: the
    diagonal form, NAMO-D, and of the program the factor
    :math:`0.2 \sqrt{\max(m, n)}`, the bound of one on rate and factors, and Nesterov's
    momentum, its default.
    """
    return with_gradient(
        optax.chain(
            om.momentum(b1, bias_correction=True),
            om.orthogonalize(lambda m: norm(m) * kernel(m)),
            with_state(partial(_by_average_norm, b2=b2), start=(0.0, 0.0)),
        )
    )


@namo.in_numpy
def _(g, kept, _w):
    t, m = count(kept), average(kept, "m", g, 0.95)
    v = average(kept, "v", np.sum(g**2), 0.99) / (1 - 0.99**t)
    return polar64(m) * np.linalg.norm(m) / (1 - 0.95**t) / np.sqrt(v)


def _by_sum_of_squares(x, root, gradient, _):
    size = jnp.minimum(norm(gradient), 5.0)
    root = jnp.hypot(root, size)
    return safe_divide(x * size, root), root


@Method
def adago():
    r"""AdaGO: AdaGrad of the norm for the step of Muon.

    .. math::
        \Delta = \frac{\min(\|G_t\|_F, \gamma)}{\sqrt{v_t}} \, \mathrm{msign}(M_t),
        \qquad v_t = v_{t-1} + \min(\|G_t\|_F, \gamma)^2

    with :math:`\gamma = 5`. Source: `arXiv:2509.02981
    <https://arxiv.org/abs/2509.02981>`__. Left out: the lower bound of the step.
    """
    return with_gradient(
        optax.chain(
            om.momentum(0.95),
            om.orthogonalize(polar),
            with_state(_by_sum_of_squares),
        )
    )


@adago.in_numpy
def _(g, kept, _w):
    size = min(np.linalg.norm(g), 5.0)
    kept["v"] = kept.get("v", 0) + size**2
    return polar64(average(kept, "m", g, 0.95)) * size / np.sqrt(kept["v"])


def _damped_columns(x, usual, momentum, _):
    energy = jnp.sum(momentum**2, axis=-2, keepdims=True)
    median = jnp.quantile(energy, 0.5, axis=-1, keepdims=True)
    usual = jnp.where(usual == 0, median, 0.99 * usual + 0.01 * median)
    ratio = safe_divide(energy, usual)
    return x * jnp.clip(1 / (1 + jnp.log1p(ratio)), 0.2, 1), usual


@Method
def trasmuon():
    r"""TrasMuon: rows of like energy, and columns damped by the energy of the momentum.

    .. math::
        \Delta_{\cdot j} = O_{\cdot j} \, \mathrm{clip}\left(
        \frac{1}{1 + \log(1 + e_j / r_t)}, 0.2, 1\right), \qquad
        e_j = \|M_{\cdot j}\|^2

    O is NorMuon's update of root mean square 1, and :math:`r_t` the average of the
    medians of e. Source: `arXiv:2602.13498 <https://arxiv.org/abs/2602.13498>`__. Left
    out: the schedule of the damping.
    """
    normuon = optax.chain(
        om.orthogonalize(polar),
        om.equilibrate_with_ema(om.row_rms, 0.95),
        om.match_rms(1.0),
    )
    damped = with_gradient(optax.chain(normuon, with_state(_damped_columns)))
    return optax.chain(om.momentum(0.95), damped)


@trasmuon.in_numpy
def _(g, kept, _w):
    m = average(kept, "m", g, 0.95)
    o = polar64(m)
    o = o / np.sqrt(average(kept, "v", np.mean(o**2, axis=1, keepdims=True), 0.95))
    o = o * np.sqrt(o.size) / np.linalg.norm(o)
    energy = np.sum(m**2, axis=0, keepdims=True)
    median = np.quantile(energy, 0.5)
    kept["r"] = 0.99 * kept["r"] + 0.01 * median if "r" in kept else median
    return o * np.clip(1 / (1 + np.log1p(energy / kept["r"])), 0.2, 1)
