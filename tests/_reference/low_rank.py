"""Low-rank methods on one matrix, m x n with m <= n, as their papers print them.

Every method is `step(g, state, **hyperparameters) -> d`, to be applied as
`w - learning_rate * d`; `state` is a dict that starts empty. Q is formed, m x m, and
what is random is handed in: `draw(epoch, ritz, count)` gives columns of a complement.
"""

import numpy as np
from _reference.rotations import eigenvectors, over_root, qr


def left_vectors(g, rank):
    """Leading left singular vectors, their largest entries positive."""
    u = np.linalg.svd(g)[0][:, :rank]
    largest = np.take_along_axis(u, np.abs(u).argmax(0)[None], 0)
    return u * np.sign(largest)


def subspace_iteration(q, u):
    """Structured Fisher, Algorithm 10 with U EVD(U'QU); values and vectors."""
    v = qr(q @ u)
    w = eigenvectors(v.T @ q @ v)
    return np.sort(np.linalg.eigvalsh(v.T @ q @ v))[::-1], v @ w


def complement_columns(permutation):
    """`draw` of columns of a complete QR, of `permutation(epoch, size)`."""

    def draw(epoch, ritz, count):
        rest = np.linalg.qr(ritz, mode="complete")[0][:, ritz.shape[1] :]
        return rest[:, permutation(epoch, rest.shape[1])[:count]]

    return draw


def random_subspace(normals):
    """`draw` of random subspaces, of `normals(epoch, m, count)`."""

    def draw(epoch, ritz, count):
        omega = normals(epoch, len(ritz), count)
        return qr(omega - ritz @ (ritz.T @ omega))

    return draw


def adam_direction(sigma, state, b1, b2, corrected=False, eps=0.0):
    """With epsilon before the correction, as GaLore, Fira and APOLLO have it."""
    t = state["adam_t"] = state.get("adam_t", 0) + 1
    state["m"] = b1 * state.get("m", 0 * sigma) + (1 - b1) * sigma
    state["v"] = b2 * state.get("v", 0 * sigma) + (1 - b2) * sigma**2
    if not corrected:
        return over_root(state["m"], state["v"])
    if eps:
        step = np.sqrt(1 - b2**t) / (1 - b1**t)
        return step * state["m"] / (np.sqrt(state["v"]) + eps)
    return over_root(state["m"] / (1 - b1**t), state["v"] / (1 - b2**t))


def limited(x, state, growth):
    """RACS, Algorithm 1, lines 9 and 10."""
    norm, last = np.linalg.norm(x), state.get("phi", 0.0)
    eta = growth / max(norm / last, growth) if last > 0 else 1.0
    state["phi"] = eta * norm
    return eta * x


def compensation(g, u, state, *, growth=1.01, decay=0.9):
    """Structured Fisher, Algorithm 3, p by the difference that it prints."""
    sigma = u.T @ g
    p = state.get("p", 0.0)
    p = decay * p + (1 - decay) * (np.sum(g**2, 0) - np.sum(sigma**2, 0))
    state["p"] = p
    root = (g.shape[0] - u.shape[1]) ** 0.5
    return limited(root * (g - u @ sigma) / np.sqrt(p), state, growth)


def alice(
    g,
    state,
    *,
    rank,
    leading,
    draw,
    b1=0.9,
    b2=0.9,
    b3=0.999,
    interval=3,
    scale=0.3,
    residual_scale=0.4,
    compensate=True,
    carry=False,
):
    """Structured Fisher, Algorithms 2 and 4, started from singular vectors."""
    m = len(g)
    t = state["t"] = state.get("t", 0) + 1
    core = state.get("core", np.zeros((rank, rank)))
    if t == 1 or t % interval == 0:
        if t == 1:
            ritz = left_vectors(g, rank)
        else:
            u = state["u"]
            q = b3 * u @ core @ u.T + (1 - b3) * g @ g.T
            ritz = subspace_iteration(q, u)[1]
        fresh = min(rank - leading, m - rank)
        drawn = draw(t // interval, ritz, fresh)
        new = np.hstack([ritz[:, : rank - fresh], drawn])
        if carry and t > 1:
            c = new.T @ state["u"]
            core, state["m"] = c @ core @ c.T, c @ state["m"]
        state["u"] = new
    u = state["u"]
    sigma = u.T @ g
    state["core"] = b3 * core + (1 - b3) * sigma @ sigma.T
    direction = adam_direction(sigma, state, b1, b2)
    if carry:  # What moments of one sequence of coordinates cannot exceed.
        largest = (1 - b1) / ((1 - b2) * (1 - b1**2 / b2)) ** 0.5
        direction = np.clip(direction, -largest, largest)
    d = u @ direction
    if compensate:
        d = d + residual_scale * compensation(g, u, state, decay=b1)
    return scale * d


def galore(
    g, state, *, rank, b1=0.9, b2=0.999, eps=0.0, interval=3, scale=0.25, below=-1.0
):
    """GaLore, Algorithm 2; with `below` also SUMO's criterion of a renewal."""
    t = state["t"] = state.get("t", -1) + 1
    if t % interval == 0 or np.linalg.norm(state["u"].T @ g) <= below:
        state["u"] = left_vectors(g, rank)
    u = state["u"]
    return scale * u @ adam_direction(u.T @ g, state, b1, b2, True, eps)
