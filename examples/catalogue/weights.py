"""Methods that see the weights: ``om.on_matrices(chain, needs_params=True)``."""

import functools

import jax.numpy as jnp
import numpy as np
import optax

import optax_matrix as om
from examples.catalogue.method import RATE, Method
from examples.catalogue.parts import (
    average,
    count,
    polar,
    polar64,
    rows,
    rows64,
    with_weights,
)

NEEDS = "the weights"
with_state = om.transforms.with_state
of_weights = functools.partial(Method, needs_params=True)
steps_of_weights = functools.partial(Method, needs_params=True, finished=True)


@of_weights
def nora():
    r"""Nora: rows of the momentum, orthogonal to those of the weights, at norm one.

    .. math::
        \Delta_i = N(M_i - \langle M_i, W_i \rangle W_i / \|W_i\|^2)

    Source: `arXiv:2605.03769 <https://arxiv.org/abs/2605.03769>`__. Left out: no part
    of the direction.
    """
    along = lambda m, w: jnp.sum(m * w, axis=-1, keepdims=True) / rows(w) ** 2 * w
    across = with_weights(lambda m, w: m - along(m, w))
    unit = with_weights(lambda x, _: x / rows(x))
    return optax.chain(om.momentum(0.95), across, unit)


@nora.in_numpy
def _(g, kept, w):
    m = average(kept, "m", g, 0.95)
    d = m - np.sum(m * w, axis=1, keepdims=True) / rows64(w) ** 2 * w
    return d / rows64(d)


def _by_turns(m, turn, _, w):
    def along(axis):
        size = lambda x: jnp.linalg.norm(x, axis=axis, keepdims=True)
        unit = w / size(w)
        v = m - unit * jnp.sum(m * unit, axis=axis, keepdims=True)
        return 0.2 * m.shape[axis] ** 0.5 * v / size(v)

    return jnp.where(turn % 2 == 0, along(-2), along(-1)), turn + 1


@of_weights
def mano():
    r"""Mano: columns and rows by turns, orthogonal to the weights, at one size.

    .. math::
        \Delta_k = 0.2 \sqrt{n_k} \, N(M_k - \langle M_k, N(W_k) \rangle N(W_k))

    Source: `arXiv:2601.23000 <https://arxiv.org/abs/2601.23000>`__. Left out: no part
    of the direction.
    """
    return optax.chain(om.momentum(0.95), with_state(_by_turns, start=0))


@mano.in_numpy
def _(g, kept, w):
    m, axis = average(kept, "m", g, 0.95), (count(kept) - 1) % 2
    size = lambda x: np.linalg.norm(x, axis=axis, keepdims=True)
    unit = w / size(w)
    v = m - unit * np.sum(m * unit, axis=axis, keepdims=True)
    return 0.2 * np.sqrt(m.shape[axis]) * v / size(v)


def _gains_and_directions(g, state, _, w, b1, decay, rate, kernel):
    size, m, mean, square, t = state
    gain, t = rows(w), t + 1
    size, unit = jnp.where(t == 1, gain, size), w / gain
    slope = jnp.sum(g * unit, axis=-1, keepdims=True)
    m = b1 * m + (1 - b1) * gain / size * (g - unit * slope)
    lr, scale = rate(t - 1), 0.2 * max(w.shape[-2:]) ** 0.5
    v = unit * size - lr * scale * kernel(m)
    mean, square = 0.9 * mean + 0.1 * slope, 0.95 * square + 0.05 * slope**2
    adam = mean / (1 - 0.9**t) / (jnp.sqrt(square / (1 - 0.95**t)) + 1e-8)
    new = ((1 - lr * decay) * gain - lr * adam) * v / rows(v)
    return new - w, (rows(v), m, mean, square, t)


@steps_of_weights
def muown(b1=0.95, decay=0.0, rate=lambda _: RATE, kernel=polar):
    r"""Muown: Muon on the directions of rows, Adam on their norms.

    .. math::
        W_i = g_i V_i / \|V_i\|, \qquad
        V' = V - 0.2 \sqrt{\max(m, n)} \, \eta \, \mathrm{msign}(M_V), \quad
        g' = g - \eta \, \mathrm{Adam}(\nabla_g)

    Source: `arXiv:2605.10797 <https://arxiv.org/abs/2605.10797>`__. Left out:
    Nesterov's momentum, the default of the program, and fused matrices. Weight decay
    acts on the gains g alone; the program decays the weights, too.
    """

    def start(x):
        column = jnp.zeros_like(x[..., :1])
        return column, 0 * x, column, column, jnp.zeros_like(x[..., :1, :1])

    step = functools.partial(
        _gains_and_directions, b1=b1, decay=decay, rate=rate, kernel=kernel
    )
    return with_state(step, start)


@muown.in_numpy
def _(g, kept, w):
    t, gain = count(kept), rows64(w)
    size, unit = kept.get("size", gain), w / gain
    slope = np.sum(g * unit, axis=1, keepdims=True)
    m = average(kept, "m", gain / size * (g - unit * slope), 0.95)
    v = unit * size - RATE * 0.2 * np.sqrt(max(w.shape)) * polar64(m)
    mean, square = average(kept, "a", slope, 0.9), average(kept, "b", slope**2, 0.95)
    adam = mean / (1 - 0.9**t) / (np.sqrt(square / (1 - 0.95**t)) + 1e-8)
    kept["size"] = rows64(v)
    return (gain - RATE * adam) * v / rows64(v) - w
