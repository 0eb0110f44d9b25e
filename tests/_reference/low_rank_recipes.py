"""SUMO, Fira, APOLLO and LDAdam on one matrix whose rows are the projected side.

As in `_reference.low_rank`: `step(g, state, **hyperparameters) -> d`, `state` a dict
that starts empty, steps counted from t = 0, a renewal where t is divisible by the
interval. Random projections are handed in: `draw(epoch, m, r)`.
"""

import numpy as np
from _reference.kernels import polar
from _reference.low_rank import adam_direction, left_vectors, limited
from _reference.rotations import over_root, qr


def cubic(x, steps, norm):
    """Newton-Schulz of SUMO, Lemma 3.2: `(3 X - X X' X) / 2`, `norm(x)` at first."""
    x = x / norm(x)
    for _ in range(steps):
        x = (3 * x - x @ x.T @ x) / 2
    return x


def sumo(
    g,
    state,
    *,
    rank,
    mu=0.95,
    interval=3,
    growth=1.1,
    factor=0.2,
    below=-1.0,
    both=False,
):
    """Algorithm 1, exact singular vectors; without its learning rate and decay.

    The projected side is the rows; with ``both`` it is Definition C.1.
    """
    t = state["t"] = state.get("t", -1) + 1
    right = np.eye(g.shape[1]) if not both else left_vectors(g.T, rank)
    low = t > 0 and np.linalg.norm(state["q"].T @ g @ state["r"]) <= below
    if t % interval == 0 or low:
        old = state.get("q"), state.get("r"), state.get("moment", 0.0)
        state["q"], state["r"], state["moment"] = left_vectors(g, rank), right, 0.0
        if t > 0:
            q_turn, r_turn = state["q"].T @ old[0], old[1].T @ right
            state["moment"] = q_turn @ old[2] @ r_turn
    q, r = state["q"], state["r"]
    moment = state["moment"] = mu * state["moment"] + q.T @ g @ r
    o = polar(moment)
    if t > 0 and np.linalg.norm(o) / state["norm"] > growth:
        o = o / np.linalg.norm(o) * growth * state["norm"]
    state["norm"] = np.linalg.norm(o)
    return factor * max(g.shape) ** 0.5 * q @ o @ r.T


def _projected(g, state, u, interval, b1=0.9, b2=0.999, eps=0.0):
    t = state["t"] = state.get("t", -1) + 1
    if t % interval == 0:
        state["u"] = u(t // interval)
    sigma = state["u"].T @ g
    return state["u"], sigma, adam_direction(sigma, state, b1, b2, True, eps)


def _column_ratios(omega, sigma):
    return np.linalg.norm(omega, axis=0) / np.linalg.norm(sigma, axis=0)


def fira(
    g,
    state,
    *,
    rank,
    interval=3,
    scale=0.25,
    residual_scale=1.0,
    growth=1.01,
    basis=left_vectors,
    **adam,
):
    """Algorithm 1: the low-rank part by its scale, the residual by column norms."""
    u, sigma, omega = _projected(g, state, lambda _: basis(g, rank), interval, **adam)
    rest = (g - u @ sigma) * _column_ratios(omega, sigma)
    return scale * u @ omega + residual_scale * limited(rest, state, growth)


def fira_plus(g, state, *, rank, interval=3, scale=0.3, residual_scale=0.4):
    """Structured Fisher, Section F.7: the residual at the low-rank part's norm."""
    u, sigma, omega = _projected(g, state, lambda _: left_vectors(g, rank), interval)
    rest = (g - u @ sigma) * _column_ratios(omega, sigma)
    rest = rest * np.linalg.norm(u @ omega) / np.linalg.norm(rest)
    return scale * (u @ omega + residual_scale * rest)


def apollo(g, state, *, rank, draw=None, interval=3, scale=1.0, growth=1.01, **adam):
    """Algorithm 1; one factor for the matrix at rank one, singular vectors undrawn."""

    def basis(epoch):
        if draw is None:
            return left_vectors(g, rank)
        return draw(epoch, len(g), rank) / rank**0.5

    _, sigma, omega = _projected(g, state, basis, interval, **adam)
    ratio = _column_ratios(omega, sigma)
    if rank == 1:
        ratio = np.linalg.norm(omega) / np.linalg.norm(sigma)
    return limited(scale**0.5 * g * ratio, state, growth)


def ldadam(g, state, *, rank, b1=0.908, b2=0.99, rho=0.908, feedback=True):
    """As the authors' code; `state` ends with what the next gradient gets."""
    t = state["t"] = state.get("t", -1) + 1
    a = g + state.get("error", 0.0)
    if t == 0:
        new, old = left_vectors(a, rank), np.zeros((len(g), rank))
        m = v = m_hat = np.zeros((rank, g.shape[1]))
        carried, v_carried = m, v
    else:
        old, m, v = state["p"], state["m"], state["v"]
        m_hat, v_hat = m / (1 - b1**t), v / (1 - b2**t)
        b = rho * old @ m_hat + (1 - rho) * a
        new = qr(b @ b.T @ old)
        c = new.T @ old
        carried = c @ m
        v_carried = np.abs(c**2 @ (v_hat - m_hat**2) + (c @ m_hat) ** 2)
        v_carried = v_carried * (1 - b2**t)
    sigma = new.T @ a
    if feedback:
        lost = old @ m - new @ carried
        state["error"] = a - new @ sigma + b1 / (1 - b1) * lost
    m = b1 * carried + (1 - b1) * sigma
    v = b2 * v_carried + (1 - b2) * sigma**2
    state["p"], state["m"], state["v"] = new, m, v
    return new @ over_root(m / (1 - b1 ** (t + 1)), v / (1 - b2 ** (t + 1)))
