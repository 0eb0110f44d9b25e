"""Sums of blocks that see the same input: ``om.transforms.add``."""

import numpy as np
import optax

import optax_matrix as om
from examples.catalogue.method import Method
from examples.catalogue.parts import average, count, norm, polar, polar64, with_weights

NEEDS = "a sum"
add, identity = om.transforms.add, optax.identity()


@Method
def lion():
    r"""Lion: the sign of a momentum that is blended with the gradient once more.

    .. math::
        \Delta = \mathrm{sign}(\beta_1 M_{t-1} + (1 - \beta_1) G_t), \qquad
        M_t = \beta_2 M_{t-1} + (1 - \beta_2) G_t

    The blend is :math:`\tfrac{\beta_1}{\beta_2} M_t + (1 - \tfrac{\beta_1}{\beta_2})
    G_t`. Source: `arXiv:2302.06675 <https://arxiv.org/abs/2302.06675>`__. Left out:
    nothing; `optax.lion` has it.
    """
    blend = add(om.momentum(0.99), identity, weights=(0.9 / 0.99, 1 - 0.9 / 0.99))
    return optax.chain(blend, optax.scale_by_sign())


@lion.in_numpy
def _(g, kept, _w):
    new = np.sign(0.9 * kept.get("m", 0) + 0.1 * g)
    average(kept, "m", g, 0.99)
    return new


@Method
def olion():
    r"""OLion: the sign of the polar factor of Lion's blend.

    .. math::
        \Delta = 0.2 \sqrt{m n} \, N(\mathrm{sign}(\mathrm{msign}(
        \beta_1 M_t + (1 - \beta_1) G_t)))

    Source: `arXiv:2602.01105 <https://arxiv.org/abs/2602.01105>`__. Left out: nothing
    of the direction.
    """
    return optax.chain(
        add(om.momentum(0.98), identity, weights=(0.95, 0.05)),
        om.orthogonalize(polar),
        optax.scale_by_sign(),
        om.match_rms(0.2),
    )


@olion.in_numpy
def _(g, kept, _w):
    q = np.sign(polar64(0.95 * average(kept, "m", g, 0.98) + 0.05 * g))
    return q * 0.2 * np.sqrt(q.size) / np.linalg.norm(q)


@Method
def anvil(b1=0.93, b2=0.9, kernel=polar):
    r"""ANVIL: two momenta, a look-ahead, the polar factor, rows of like energy.

    .. math::
        B = \beta (0.6 F + 0.4 S) + (1 - \beta) G, \qquad
        \Delta = \frac{\|O\|}{\|O V^{-1/2}\|} \, V^{-1/2} O, \quad O = \mathrm{msign}(B)

    F and S are averages with the rates 0.93 and 0.99, V that of the mean squares of
    rows of O. Source: pull request 349 of `modded-nanogpt
    <https://github.com/KellerJordan/modded-nanogpt>`__. Left out: its table of six
    quintics (``coefficients`` of the kernel), cautious decay (`add_cautious_decay`),
    weights in 16 bits with remainders (`weights.store_remainders`).
    """
    rails = add(om.momentum(b1), om.momentum(0.99), weights=(0.6, 0.4))
    return optax.chain(
        add(rails, identity, weights=(b1, 1 - b1)),
        om.orthogonalize(kernel),
        om.transforms.preserve_norm(om.equilibrate_with_ema(om.row_rms, b2)),
    )


@anvil.in_numpy
def _(g, kept, _w):
    rails = 0.6 * average(kept, "f", g, 0.93) + 0.4 * average(kept, "s", g, 0.99)
    o = polar64(0.93 * rails + 0.07 * g)
    x = o / np.sqrt(average(kept, "v", np.mean(o**2, axis=1, keepdims=True), 0.9))
    return x * np.linalg.norm(o) / np.linalg.norm(x)


@Method
def ademamix():
    r"""AdEMAMix on matrices: Adam with a second, slow momentum.

    .. math::
        \Delta = \frac{\hat M_1 + \alpha_t M_2}{\sqrt{\hat V}}, \qquad
        \alpha_t = 5 \min(t / 3, 1)

    with averages of rates 0.9 and 0.9999, of which the fast one and V, but not the slow
    one, are corrected for their start. Source: `arXiv:2409.03137
    <https://arxiv.org/abs/2409.03137>`__. Left out: epsilon, and the schedule of the
    slow rate (`inject_hyperparams`).
    """
    fast = om.momentum(0.9, bias_correction=True)
    alpha = optax.linear_schedule(5 / 3, 5.0, 2)
    adam = om.scale_by_second_moment(0.999, bias_correction=True, bounded=False)
    mixed = add(fast, om.momentum(0.9999), weights=(1.0, alpha))
    return om.transforms.with_gradient(optax.chain(mixed, adam))


@ademamix.in_numpy
def _(g, kept, _w):
    t = count(kept)
    fast = average(kept, "m", g, 0.9) / (1 - 0.9**t)
    mixed = fast + 5 * min(t / 3, 1) * average(kept, "s", g, 0.9999)
    return mixed / np.sqrt(average(kept, "v", g**2, 0.999) / (1 - 0.999**t))


@Method
def dion_soft_muon():
    r"""Soft Muon of Dion's authors: the polar factor and the normalized momentum.

    .. math::
        \Delta = 0.7 \, \mathrm{msign}(M) + 0.3 \, M / \|M\|_F

    Source: branch ``soft-muon-schatten`` of `dion
    <https://github.com/microsoft/dion>`__. Left out: Schatten norms between the two.
    """
    unit = with_weights(lambda m, _: m / norm(m))
    blend = add(om.orthogonalize(polar), unit, weights=(0.7, 0.3))
    return optax.chain(om.momentum(0.95), blend)


@dion_soft_muon.in_numpy
def _(g, kept, _w):
    m = average(kept, "m", g, 0.95)
    return 0.7 * polar64(m) + 0.3 * m / np.linalg.norm(m)
