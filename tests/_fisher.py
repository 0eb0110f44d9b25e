"""A stream of gradients, its Fisher matrix F = E[g g'], and powers of matrices.

g stacks the columns of an m x n gradient G, m <= n, and E is the average of the last
step of the stream.
"""

import numpy as np
from _matrices import gaussian

M, N, RANK, DECAY = 3, 4, 1, 0.7
STREAM = gaussian(8, M, N, seed=71) + 0.5
G = STREAM[-1]


def mean(x):
    """E of one array per gradient: the average with rate DECAY, started at zero."""
    weights = (1 - DECAY) * DECAY ** np.arange(len(x))[::-1]
    return np.tensordot(weights, x, 1)


def vec(x):
    """Columns below each other, of a matrix or of each matrix of a stack."""
    return np.swapaxes(x, -1, -2).reshape(*x.shape[:-2], -1)


def fisher(stream):
    g = vec(stream)
    return mean(g[:, :, None] * g[:, None, :])


def power(x, p):
    """A power of a symmetric matrix; zero eigenvalues stay zero."""
    w, u = np.linalg.eigh(x)
    live = w > 1e-12 * w[-1]
    return u[:, live] * w[live] ** p @ u[:, live].T


def natural(f, g=G):
    """Mat(f^(-1/2) g), with the pseudo-inverse of Section E.6."""
    return (power(f, -0.5) @ vec(g)).reshape(g.shape[::-1]).T


def descending(x):
    return np.linalg.eigh(x)[1][:, ::-1]


def symmetric(x):
    x = x.reshape(*x.shape[:-1], -1, int(x.shape[-1] ** 0.5))
    return (x + np.swapaxes(x, -1, -2)) / 2


def block_diagonal(blocks):
    n, m, _ = blocks.shape
    return np.einsum("ij,iab->iajb", np.eye(n), blocks).reshape(n * m, n * m)


def loss(x, f):
    return np.sum((x - f) ** 2)


F = fisher(STREAM)
SQUARES = mean(STREAM**2)
ROWS = mean(STREAM @ np.swapaxes(STREAM, 1, 2))  # E[GG']
COLS = mean(np.swapaxes(STREAM, 1, 2) @ STREAM)  # E[G'G]
BLOCKS = mean(np.einsum("tai,tbi->tiab", STREAM, STREAM))  # E[g_i g_i']
U_L, U_R = descending(ROWS), descending(COLS)
U, U_C = U_L[:, :RANK], U_L[:, RANK:]
KEPT = U_C @ U_C.T
SCALES_C = mean(np.sum(STREAM**2, 1) - np.sum((U.T @ STREAM) ** 2, 1)) / (M - RANK)
F_C = block_diagonal(np.stack([U_C * np.diag(U_C.T @ b @ U_C) @ U_C.T for b in BLOCKS]))


def in_basis(q, x):
    return q * x @ q.T


def rotated(left, right=None):
    """U_R (x) U_L and the second moments of U_L' G U_R."""
    right = np.eye(N) if right is None else right
    return np.kron(right, left), vec(mean((left.T @ STREAM @ right) ** 2))


def fixed_point(scales, rounds=60, start=None):
    """Eq. 16 (Q diagonal, ``scales`` of (n, m)) or Eq. 42 (M full, (n, m, m))."""
    flat = scales.reshape(N, -1)
    s = np.ones(N) if start is None else start
    for _ in range(rounds):
        q = s @ flat / (s @ s)
        s = flat @ q / (q @ q)
    return s, q.reshape(scales.shape[1:])


def kron(s, q):
    return np.kron(np.diag(s), np.diag(q) if q.ndim == 1 else q)


def shampoo(rows, cols):
    return np.kron(power(cols, 0.5), power(rows, 0.5))


def definite(m, seed):
    x = gaussian(m, 2 * m, seed=seed)
    return x @ x.T
