"""One step of each method on one matrix, out x in, as its source writes it.

Every function is `step(w, g, state, lr, **hyperparameters) -> w`; `state` is a dict
that starts empty. The momenta are written as the sources write them (an average where
the package keeps a sum), so that agreement is a statement about the algebra.
"""

from functools import partial

import numpy as np
from _reference import kernels


def momentum(g, state, b1, nesterov):
    m = b1 * state.get("m", np.zeros_like(g)) + (1 - b1) * g
    state["m"] = m
    return b1 * m + (1 - b1) * g if nesterov else m


def decayed(w, lr, weight_decay):
    return (1 - lr * weight_decay) * w


def rms_matched(x, target=0.2):
    return target * np.sqrt(x.size) * x / np.linalg.norm(x)


def muon(w, g, state, lr, b1=0.95, nesterov=True, scaling="out/in", weight_decay=0.0):
    out, n_in = w.shape
    o = kernels.newton_schulz5(momentum(g, state, b1, nesterov))
    factor = {
        "out/in": np.sqrt(max(1, out / n_in)),
        "max": 0.2 * np.sqrt(max(out, n_in)),
        "none": 1.0,
    }[scaling]
    return decayed(w, lr, weight_decay) - lr * factor * o


def muonh(w, g, state, lr, b1=0.95, nesterov=True):
    """Levanter's `muonh.py`, but on the sphere of the initial norm."""
    radius = state.setdefault("radius", np.linalg.norm(w))
    o = kernels.newton_schulz5(momentum(g, state, b1, nesterov), kernels.YOU)
    new = w - lr * radius * o / np.linalg.norm(o)
    return radius * new / np.linalg.norm(new)


def dion2(w, g, state, lr, fraction=0.25, b1=0.95, weight_decay=0.01):
    """Ahn et al. 2025, by microsoft/dion: rows by their sums of absolute values."""
    total = state.get("m", np.zeros_like(g)) + g
    rows = total if g.shape[0] <= g.shape[1] else total.T
    k = int(np.ceil(fraction * len(rows)))
    chosen = np.argsort(-np.sum(np.abs(rows), axis=1), kind="stable")[:k]
    o, kept = np.zeros_like(rows), rows.copy()
    o[chosen] = kernels.newton_schulz5(rows[chosen], kernels.POLAR_EXPRESS, margin=1.02)
    kept[chosen] *= b1
    if rows is not total:
        o, kept = o.T, kept.T
    state["m"] = kept
    return decayed(w, lr, weight_decay) - lr * np.sqrt(w.shape[0] / w.shape[1]) * o


def muon2(w, g, state, lr, b1=0.95, b2=0.95, rows=3, weight_decay=0.1):
    """Liu et al. 2026, Algorithm 1: a sum as the momentum."""
    m = state["m"] = b1 * state.get("m", np.zeros_like(g)) + g
    v = state["v"] = b2 * state.get("v", np.zeros_like(g)) + (1 - b2) * g**2
    o = kernels.newton_schulz5(m / np.sqrt(v), (kernels.JORDAN,) * rows)
    return decayed(w, lr, weight_decay) - lr * 0.2 * np.sqrt(max(w.shape)) * o


def aurora(
    w, g, state, lr, b1=0.95, nesterov=True, rounds=2, power=0.5, weight_decay=0.025
):
    """Dewulf et al. 2026, by tilde-research/aurora-release."""
    update = momentum(g, state, b1, nesterov)
    polar = partial(kernels.newton_schulz5, rows=((2.0, -1.5, 0.5),) * 12)
    tall = update.T if update.shape[0] < update.shape[1] else update
    m, n = tall.shape
    if m == n:
        o = polar(tall)
    else:
        d = 1 / np.linalg.norm(tall, axis=1, keepdims=True)
        for k in range(rounds):
            o = polar(d * tall)
            if k < rounds - 1:
                d = d * (n / m / np.sum(o**2, axis=1, keepdims=True)) ** power
    o = o if tall is update else o.T
    out, n_in = w.shape
    return decayed(w, lr, weight_decay) - lr * np.sqrt(max(1, out / n_in)) * o


def muoneq(w, g, state, lr, mode="row", b1=0.95, nesterov=True, weight_decay=0.1):
    scaled = {
        "row": kernels.row_scaled,
        "col": kernels.col_scaled,
        "rowcol": kernels.row_and_col_scaled,
        None: lambda x: x,
    }[mode]
    o = kernels.newton_schulz5(scaled(momentum(g, state, b1, nesterov)))
    a = 0.2 * np.sqrt(max(w.shape))
    return decayed(w, lr, weight_decay) - lr * a * o


def muon_plus(w, g, state, lr, mode="colrow", b1=0.95, nesterov=True, weight_decay=0.1):
    o = kernels.newton_schulz5(momentum(g, state, b1, nesterov))
    for side in {"colrow": ("col", "row"), "rowcol": ("row", "col")}.get(mode, (mode,)):
        o = kernels.row_scaled(o) if side == "row" else kernels.col_scaled(o)
    out, n_in = w.shape
    return decayed(w, lr, weight_decay) - lr * np.sqrt(out / n_in) * o


def adamuon_sign(w, g, state, lr, b1=0.95, nesterov=True, eps=1e-8, weight_decay=0.1):
    o = kernels.newton_schulz5(np.sign(momentum(g, state, b1, nesterov)))
    v = b1 * state.get("v", np.zeros_like(g)) + (1 - b1) * o**2
    state["v"] = v
    return decayed(w, lr, weight_decay) - lr * rms_matched(o / (np.sqrt(v) + eps))


def adamuon_unsigned(
    w, g, state, lr, b1=0.95, b2=0.999, nesterov=True, eps=1e-8, weight_decay=0.1
):
    o = kernels.newton_schulz5(momentum(g, state, b1, nesterov))
    t = state["t"] = state.get("t", 0) + 1
    v = state["v"] = b2 * state.get("v", np.zeros_like(g)) + (1 - b2) * o**2
    o = o / (np.sqrt(v / (1 - b2**t)) + eps)
    out, n_in = w.shape
    o = o * np.sqrt(min(out, n_in)) / np.linalg.norm(o)
    return decayed(w, lr, weight_decay) - lr * 0.2 * np.sqrt(max(out, n_in)) * o


def normuon(
    w, g, state, lr, b1=0.95, b2=0.95, nesterov=True, scaling="rms", weight_decay=0.1
):
    o = kernels.newton_schulz5(momentum(g, state, b1, nesterov))
    norm = np.linalg.norm(o)
    v = b2 * state.get("v", np.zeros((len(g), 1)))
    v = state["v"] = v + (1 - b2) * np.mean(o**2, axis=1, keepdims=True)
    o = o / np.sqrt(v)
    if scaling == "rms":
        o = rms_matched(o)
    else:
        o = o * norm / np.linalg.norm(o) * np.sqrt(max(1, g.shape[0] / g.shape[1]))
    return decayed(w, lr, weight_decay) - lr * o


def swan(w, g, state, lr, scaling="max", weight_decay=0.0):
    """Structured Fisher, Equations 30 to 32; scaled unless ``scaling="none"``."""
    del state
    rows = kernels.standardized_rows(g)
    o = kernels.newton_schulz5(rows)
    if scaling == "max":
        o = 0.2 * np.sqrt(max(w.shape)) * o
    elif scaling == "norm":
        o = o * np.linalg.norm(rows) / np.linalg.norm(o)
    return decayed(w, lr, weight_decay) - lr * o


def sinkgd(w, g, state, lr, rounds=5, weight_decay=0.1):
    del state
    o = rms_matched(kernels.sinkhorn_alternating(g, rounds))
    return decayed(w, lr, weight_decay) - lr * o


def racs(
    w,
    g,
    state,
    lr,
    beta=0.9,
    scale=0.05,
    limiter=1.01,
    max_shrink=2.0,
    max_rms=4.0,
    rounds=5,
    bias_correction=False,
):
    """Algorithm 1, in which m <= n, but for `max_shrink` and `max_rms`.

    Both are infinite in the paper. An all-zero gradient leaves everything as it is.
    """
    if len(g) > g.shape[1]:
        options = (lr, beta, scale, limiter, max_shrink, max_rms, rounds)
        return racs(w.T, g.T, state, *options, bias_correction).T
    if not np.any(g):
        return w
    s, q = kernels.racs_fixed_point(g, rounds)
    t = state["t"] = state.get("t", 0) + 1
    s = state["s"] = beta * state.get("s", np.zeros_like(s)) + (1 - beta) * s
    q = state["q"] = beta * state.get("q", np.zeros_like(q)) + (1 - beta) * q
    if bias_correction:
        s, q = s / (1 - beta**t), q / (1 - beta**t)
    scaled = g / np.sqrt(np.outer(q, s))
    if max_rms < np.inf:
        usual = np.sqrt(np.average(scaled**2, weights=np.outer(q, s) ** 2))
        rows = np.sqrt(np.mean(scaled**2, axis=1, keepdims=True))
        largest = max_rms * np.clip(usual, 1.0, 1 / (1 - beta))
        scaled = scaled * np.minimum(1.0, largest / rows)
    norm = np.linalg.norm(scaled)
    eta = limiter / max(norm / state["phi"], limiter) if t > 1 else 1.0
    state["phi"] = max(eta * norm, state.get("phi", 0.0) / max_shrink)
    return w - lr * eta * scale * scaled


def mars_adamw(
    w,
    g,
    state,
    lr,
    b1=0.95,
    b2=0.99,
    gamma=0.025,
    max_norm=1.0,
    eps=1e-8,
    weight_decay=0.1,
    amsgrad=False,
):
    previous = state.get("g", np.zeros_like(g))
    state["g"] = g
    c = g + gamma * b1 / (1 - b1) * (g - previous)
    norm = np.linalg.norm(c)
    c = c * max_norm / norm if norm > max_norm else c
    return adamw(w, c, state, lr, b1, b2, eps, weight_decay, amsgrad)


def adamw(w, g, state, lr, b1=0.9, b2=0.95, eps=1e-8, weight_decay=0.1, amsgrad=False):
    t = state["t"] = state.get("t", 0) + 1
    m = state["m"] = b1 * state.get("m", np.zeros_like(g)) + (1 - b1) * g
    v = state["v"] = b2 * state.get("v", np.zeros_like(g)) + (1 - b2) * g**2
    if amsgrad:  # As in PyTorch: the largest one before the correction.
        v = state["v_max"] = np.maximum(state.get("v_max", 0.0), v)
    step = (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + eps)
    return decayed(w, lr, weight_decay) - lr * step
