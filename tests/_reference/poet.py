"""POET on one matrix, in x out as the paper has it: dense factors, printed formulas."""

import numpy as np


def coefficients(k):
    """Of Eq. 6, (I + Q)(I + Q + ... + Q^k), multiplied out."""
    return [1.0, *[2.0] * k, 1.0]


def series(q, c):
    return sum(x * np.linalg.matrix_power(q, i) for i, x in enumerate(c))


def series_adjoint(q, g, c):
    """Gradient with respect to Q of <g, series(Q)>."""
    power = lambda i: np.linalg.matrix_power(q.T, i)
    return sum(
        c[i] * power(j) @ g @ power(i - 1 - j)
        for i in range(1, len(c))
        for j in range(i)
    )


class Side:
    """R (or P): a permutation, and blocks by the triangles of their Q."""

    def __init__(self, n, block, full, perm):
        self.n, self.psi = n, np.eye(n)[perm]
        starts = [0] if full else range(0, n, block)
        self.slices = [slice(i, min(i + block, n)) for i in starts]
        self.q = [np.zeros((s.stop - s.start,) * 2) for s in self.slices]

    def matrix(self, c):
        inner = np.eye(self.n)
        for s, q in zip(self.slices, self.q, strict=True):
            inner[s, s] = series(q, c)
        return self.psi.T @ inner @ self.psi

    def gradient(self, g, c):
        """With respect to the strict upper triangles, given that of the matrix."""
        g = self.psi @ g @ self.psi.T
        full = [
            series_adjoint(q, g[s, s], c)
            for s, q in zip(self.slices, self.q, strict=True)
        ]
        return [np.triu(x - x.T, 1) for x in full]

    def norm(self):
        fourth = (np.linalg.matrix_power(q, 4) for q in self.q)
        return max((np.linalg.norm(x) ** 2 / 2) ** (1 / 8) for x in fourth)

    def move(self, steps):
        self.q = [q + x - x.T for q, x in zip(self.q, steps, strict=True)]


class Adam:
    def __init__(self, lr, b1=0.9, b2=0.999, eps=1e-6, decay=0.0):
        self.lr, self.b1, self.b2, self.eps, self.decay = lr, b1, b2, eps, decay
        self.t, self.m, self.v = 0, 0.0, 0.0

    def step(self, g, q):
        self.t += 1
        self.m = self.b1 * self.m + (1 - self.b1) * g
        self.v = self.b2 * self.v + (1 - self.b2) * g**2
        m, v = self.m / (1 - self.b1**self.t), self.v / (1 - self.b2**self.t)
        return -self.lr * (m / (np.sqrt(v) + self.eps) + self.decay * np.triu(q, 1))


def poet(
    w,
    gradient,
    draw,
    steps,
    block,
    *,
    lr,
    interval,
    k,
    full,
    sides,
    reset,
    merge_at=np.inf,
    decay=0.0,
):
    """W after each step, and the steps after which W was merged.

    `gradient(w, t)` is dL/dW; `draw(side, merges)` gives permutations of `in` (R) and
    `out` (P). `block` maps a side and its size to that of its blocks.
    """
    c, w0, path, merges = coefficients(k), w, [], []
    sizes = dict(zip(("in", "out"), w.shape, strict=True))

    def fresh(merges):
        return {s: Side(n, block(n), full, draw(s, merges)) for s, n in sizes.items()}

    def start():
        return {s: [Adam(lr, decay=decay) for _ in x.slices] for s, x in r_p.items()}

    r_p = fresh(0)
    adams = start()
    for t in range(steps):
        r, p = (r_p[s].matrix(c) for s in ("in", "out"))
        g = gradient(w, t)
        of = {"in": g @ (w0 @ p).T, "out": (r @ w0).T @ g}
        for s in sides:
            grads = r_p[s].gradient(of[s], c)
            rows = zip(adams[s], grads, r_p[s].q, strict=True)
            r_p[s].move([adam.step(x, q) for adam, x, q in rows])
        w = r_p["in"].matrix(c) @ w0 @ r_p["out"].matrix(c)
        path.append(w)
        norm = max(r_p[s].norm() for s in sides)
        if (t + 1) % interval == 0 or norm >= merge_at:
            merges.append(t)
            w0, r_p = w, fresh(len(merges))
            if reset:
                adams = start()
    return np.stack(path), merges
