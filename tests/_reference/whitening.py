"""PSGD Kron on one matrix, out x in, as its author's program has it.

As in `rotations`: ``step(g, state, **hyperparameters) -> d``, to be applied as
``w - learning_rate * d``. The draws are arguments: a function from a step and a shape
to the noise, and one from a side to the vectors that find norms.
"""

import numpy as np


def spectral_norm(a, vectors):
    """The author's estimate for symmetric and skew-symmetric matrices."""
    peak = np.abs(a).max()
    if peak == 0:
        return 0.0
    a = a / peak
    row = a[np.argmax(np.linalg.norm(a, axis=1))]
    v = row + np.sign(vectors @ row)[:, None] * vectors
    for _ in range(2):
        v = v @ a
        v = v / np.linalg.norm(v, axis=1, keepdims=True) @ a
    return peak * np.linalg.norm(v, axis=1).max()


def procrustes_step(q, vectors):
    """A rotation exp(a R), to second order, that makes Q more symmetric."""
    r = q.T - q
    if not r.any():
        return q
    r = r / spectral_norm(r, vectors)
    bend = np.trace(r @ r @ q)
    a = min(-np.trace(r @ q) / bend, 1 / 8) if bend < 0 else 1 / 8
    return (np.eye(len(q)) + a * r + a**2 / 2 * r @ r) @ q


def kron(
    g,
    state,
    vectors,
    b1=0.9,
    rate=0.1,
    bound_decay=0.9,
    damping=0.0,
    noise=lambda _, shape: np.zeros(shape),
    eps=0.0,
    scale=None,
    max_dim=np.inf,
    max_skew=1,
    interval=1,
    of="gradient",
    average="corrected",
    max_rms=2.0,
    max_entry=10.0,
):
    """`KronWhiten` with dQ="Q0.5EQ1.5" (psgd_torch), the factors updated first.

    The package's own: damping is relative to the root mean square; factors are updated
    at steps 1, K + 1, ...; the momentum is corrected for its bias ("corrected"), where
    the author averages the first gradients alike ("mean").
    """
    t = state["t"] = state.get("t", 0) + 1
    b = {"corrected": b1 * (1 - b1 ** (t - 1)) / (1 - b1**t)}
    b = b.get(average, min((t - 1) / t, b1))
    m = state["m"] = b * state.get("m", 0 * g) + (1 - b) * g
    h = g if of == "gradient" else m
    sides = [size <= min(max_dim, max_skew * min(g.shape)) for size in g.shape]
    if t == 1:
        scale = np.mean(h**4) ** (-1 / 8) if scale is None else scale
        one = lambda size, full: np.eye(size) if full else np.ones(size)
        state["q"] = [
            np.sqrt(scale) * one(*pair) for pair in zip(g.shape, sides, strict=True)
        ]
        state["l"] = [0.0, 0.0]

    def product(x):
        for q in state["q"]:
            full = q.T @ q if q.ndim == 2 else np.diag(q**2)
            x = (full @ x).T
        return x

    if (t - 1) % interval == 0:
        rms = np.sqrt(np.mean(h**2))
        x = product(h + (damping * rms + eps * np.abs(h)) * noise(t, h.shape))
        for i, q in enumerate(state["q"]):
            c = x @ x.T if i == 0 else x.T @ x
            k = x.size / len(c)
            c = c if q.ndim == 2 else np.diag(c)
            top = c.max() if q.ndim == 1 else spectral_norm(c, vectors(len(c)))
            last = top + k
            bound = bound_decay * state["l"][i] + (1 - bound_decay) * last
            bound = state["l"][i] = max(bound, last)
            if q.ndim == 1:
                state["q"][i] = q - rate / bound * (c - k) * q
            else:
                moved = q - rate / bound * (c @ q - k * q)
                state["q"][i] = procrustes_step(moved, vectors(len(c)))
    d = product(m)
    d = d * min(1.0, max_rms / np.sqrt(np.mean(d**2)))
    return np.clip(d, -max_entry, max_entry)
