"""NumPy float64 restatements of the matrix functions; one matrix at a time."""

import numpy as np

JORDAN = (3.4445, -4.7750, 2.0315)


# You (2025), as in microsoft/dion, on which Mousse's program is based.
YOU = (
    (4.0848, -6.8946, 2.9270),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
)

# Amsel et al. (2025), as in microsoft/dion.
POLAR_EXPRESS = (
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
)


def newton_schulz5(x, rows=(JORDAN,) * 5, eps=1e-7, margin=1.0):
    """Five steps on the short side of one matrix, Keller Jordan's by default."""
    flipped = x.shape[0] > x.shape[1]
    x = x.T if flipped else x
    x = x / (np.linalg.norm(x) + eps * np.max(np.abs(x), initial=1e-300)) / margin
    for a, b, c in rows:
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if flipped else x


def polar(x):
    """The exact polar factor of one full-rank matrix."""
    u, _, vt = np.linalg.svd(x, full_matrices=False)
    return u @ vt


def row_scaled(x, eps=1e-8):
    """MuonEq R; eps relative to the mean row, as the package documents."""
    d = np.sum(x**2, axis=1, keepdims=True)
    return x / np.sqrt(d + eps * np.mean(d))


def col_scaled(x, eps=1e-8):
    """MuonEq C."""
    return row_scaled(x.T, eps).T


def row_and_col_scaled(x, eps=1e-8):
    """MuonEq RC: both factors from the same input."""
    r = np.sum(x**2, axis=1, keepdims=True)
    c = np.sum(x**2, axis=0, keepdims=True)
    r, c = r + eps * np.mean(r), c + eps * np.mean(c)
    return x / np.sqrt(r) / np.sqrt(c)


def sinkhorn_alternating(x, rounds=5):
    """SinkGD: rows to norm sqrt(n), then columns to norm sqrt(m)."""
    m, n = x.shape
    for _ in range(rounds):
        x = x * np.sqrt(n) / np.linalg.norm(x, axis=1, keepdims=True)
        x = x * np.sqrt(m) / np.linalg.norm(x, axis=0, keepdims=True)
    return x


def standardized_rows(x, eps=1e-8):
    """SWAN's GradNorm; eps relative to the mean square, as the package documents."""
    centred = x - np.mean(x, axis=1, keepdims=True)
    return centred / np.sqrt(np.var(x, axis=1, keepdims=True) + eps * np.mean(x**2))


def racs_fixed_point(g, rounds=5):
    """Lines 4-5 of RACS, Algorithm 1, for m <= n: the vectors s and q."""
    squared = g**2
    q = np.ones(g.shape[0])
    for _ in range(rounds):
        s = squared.T @ q / np.sum(q**2)
        q = squared @ s / np.sum(s**2)
    return s, q
