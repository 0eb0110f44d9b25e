"""Methods that work in a rotated frame, on one matrix, out x in, as their sources do.

Every method is `step(g, state, **hyperparameters) -> d`, to be applied as
`w - learning_rate * d`; `state` is a dict that starts empty. A base is
`f(x, state) -> (d, new_state)` and leaves the state that it is given alone, so that a
look-ahead is a call whose second result is thrown away.
"""

import numpy as np
from _reference.kernels import polar

# Matrix functions


def qr(x):
    """Q of a QR whose R has a positive diagonal (zero: +1)."""
    q, r = np.linalg.qr(x)
    diagonal = np.diagonal(r, axis1=-2, axis2=-1)
    return q * np.where(diagonal < 0, -1.0, 1.0)[..., None, :]


def eigenvectors(a):
    """Eigenvectors of a symmetric matrix, eigenvalues descending, largest entry > 0."""
    _, q = np.linalg.eigh(a)
    q = q[:, ::-1]
    largest = np.take_along_axis(q, np.argmax(np.abs(q), axis=0)[None], axis=0)
    return q * np.where(largest < 0, -1.0, 1.0)


def symmetric_power(a, exponent):
    """A power of a positive definite matrix."""
    w, q = np.linalg.eigh(a)
    return (q * w**exponent) @ q.T


def over_root(x, v):
    """`x / sqrt(v)`, zero where `v` is."""
    return np.divide(x, np.sqrt(v), out=np.zeros_like(x), where=v > 0)


def ema(old, new, b):
    return b * (np.zeros_like(new) if old is None else old) + (1 - b) * new


# Bases: (x, state) -> (d, new state)


def identity(x, state=None):
    return x, state


def sign(x, state=None):
    return np.sign(x), state


def row_norm(x, state=None):
    """ARO, Table 2: rows to norm sqrt(n)."""
    return over_root(x, np.mean(x**2, axis=1, keepdims=True) + 0 * x), state


def orthogonal(x, state=None):
    """The polar factor: the base that ARO leaves as it is."""
    return polar(x), state


def sinkhorn(x, state=None, rounds=5):
    """ARO, Algorithm 1: both norms from the same matrix; mean square one at the end."""
    for _ in range(rounds):
        row = np.mean(x**2, axis=1, keepdims=True) + 0 * x
        col = np.mean(x**2, axis=0, keepdims=True) + 0 * x
        x = over_root(over_root(x, row), col)
        x = over_root(x, np.mean(x**2) + 0 * x)
    return x, state


def two_fold_adam(x, state=None, b2=0.95):
    """ARO, Section 4.3: the second moment of the momentum, no bias correction."""
    v = ema(state, x**2, b2)
    return over_root(x, v), v


# ARO and its control group


def objective(m, r, base, state=None):
    """ARO, J(R; M, f) = <M, R f(R' M)>; f looks ahead and forgets."""
    return np.sum(m * (r @ base(r.T @ m, state)[0]))


def riemannian_ascent(m, r, base, state=None, steps=10, step_size=0.1):
    """ARO-RGD: steps of ascent on J with a QR retraction.

    The paper gives no step size. Here a step is relative: `step_size` times the
    tangent, whose Euclidean gradient M f(R' M)' is scaled to the norm of R.
    """
    for _ in range(steps):
        gradient = m @ base(r.T @ m, state)[0].T
        gradient = gradient * np.linalg.norm(r) / np.linalg.norm(gradient)
        tangent = gradient - r @ (r.T @ gradient + gradient.T @ r) / 2
        r = qr(r + step_size * tangent)
    return r


def rotation(m, r, base, state, policy):
    """The policies of ARO: R_t from the momentum and R_{t-1}."""
    if not np.any(m) or policy == "identity":
        return r
    if policy == "aro":  # Eq. 4
        return qr(m @ base(r.T @ m, state)[0].T)
    if policy == "eigen":  # Section 5.2: one power step
        return qr(m @ m.T @ r)
    if policy == "eigenvectors":  # Figure 2
        return eigenvectors(m @ m.T)
    if policy == "polar":  # Section 7: the Procrustes solution
        return polar(m @ base(r.T @ m, state)[0].T)
    return {"rgd": riemannian_ascent}[policy](m, r, base, state)


def aro(g, state, base=sinkhorn, policy="aro", b1=0.95, r0=None, interval=1):
    """ARO, Eq. 4 and Algorithm 3, and with other policies its control group.

    The second moment takes (R_t' M_t)**2 (Remark 7). `r0` starts the rotation.
    """
    t = state["t"] = state.get("t", 0) + 1
    m = state["m"] = ema(state.get("m"), g, b1)
    r = state.get("r", np.eye(len(g)) if r0 is None else r0)
    if (t - 1) % interval == 0:
        r = rotation(m, r, base, state.get("base"), policy)
    d, state["base"] = base(r.T @ m, state.get("base"))
    state["r"] = r
    return r @ d


def rms_matched(d, target=0.2):
    """ARO, Section 4.4."""
    return target * np.sqrt(d.size) * d / np.linalg.norm(d)


# Accumulated statistics


def refreshed(t, interval):
    """The structured Fisher paper: at t = 1, K, 2K, ..."""
    return t == 1 or t % interval == 0


def soap(
    g,
    state,
    b1=0.9,
    b2=0.9,
    b3=0.999,
    interval=1,
    sides=("out", "in"),
    basis=eigenvectors,
):
    """Structured Fisher (Alice), Algorithm 6: SOAP as printed there.

    Exact eigenvectors, no bias correction, no epsilon. With one side only it is that
    paper's Algorithm 7; `basis` stands for its EVD. The first gradient is diagonal in
    its own two-sided basis, so that the first update is, off the diagonal, nothing but
    the signs of rounding errors: leave it out of comparisons (the authors' code does
    not apply it).
    """
    t = state["t"] = state.get("t", 0) + 1
    m = state["m"] = ema(state.get("m"), g, b1)
    left = state["l"] = ema(state.get("l"), g @ g.T, b3)
    right = state["r"] = ema(state.get("r"), g.T @ g, b3)
    if refreshed(t, interval):
        state["ql"] = basis(left) if "out" in sides else np.eye(len(left))
        state["qr"] = basis(right) if "in" in sides else np.eye(len(right))
    ql, qr_ = state["ql"], state["qr"]
    v = state["v"] = ema(state.get("v"), (ql.T @ g @ qr_) ** 2, b2)
    return ql @ over_root(ql.T @ m @ qr_, v) @ qr_.T


def eigen_adam(g, state, b1=0.9, b2=0.9, b3=0.999, interval=1, basis=eigenvectors):
    """Structured Fisher (Alice), Eq. 13, Algorithm 7: AdaDiag, one-sided SOAP."""
    t = state["t"] = state.get("t", 0) + 1
    q = state["q"] = ema(state.get("q"), g @ g.T, b3)
    m = state["m"] = ema(state.get("m"), g, b1)
    if refreshed(t, interval):
        state["u"] = basis(q)
    u = state["u"]
    v = state["v"] = ema(state.get("v"), (u.T @ g) ** 2, b2)
    return u @ over_root(u.T @ m, v)


def soap_muon(
    g,
    state,
    b1=0.95,
    b2=0.98,
    b3=0.98,
    interval=10,
    basis=eigenvectors,
    orthogonalize=polar,
    power=0.5,
):
    """SOAP-Muon (Vyas et al. 2024), Section 2: one-sided SOAP, polar factor, roots.

    With Adam's bias corrections, which the polar factor makes void.
    """
    t = state["t"] = state.get("t", 0) + 1
    m = state["m"] = ema(state.get("m"), g, b1)
    gram = state["l"] = ema(state.get("l"), g @ g.T, b3)
    if refreshed(t, interval):
        state["u"] = basis(gram)
    u = state["u"]
    v = state["v"] = ema(state.get("v"), (u.T @ g) ** 2, b2)
    o = orthogonalize(over_root(u.T @ m, v))
    d = np.sign(o) * np.abs(o) ** power
    return u @ d * np.linalg.norm(o) / np.linalg.norm(d)


def soap_as_published(
    g, state, b1=0.95, b2=0.95, b3=0.95, eps=1e-8, interval=10, sides=("out", "in")
):
    """SOAP by its authors' code (nikhilvyas/SOAP), for two axes.

    The first step only builds the factors and their eigenvectors. Later ones take Adam
    with bias correction (epsilon outside the root, before the correction) in the basis
    of the last step, then update the factors, and every `interval` steps the basis by
    one power step: columns in the order of their Rayleigh quotients, and `v` with them.
    The momentum is held unrotated here, which is the same as to rotate it along.
    """
    grams = [g @ g.T, g.T @ g]
    used = ["out" in sides, "in" in sides]
    if not state:
        state["f"] = [ema(None, a, b3) for a in grams]
        state["q"] = [
            eigenvectors(a) if u else np.eye(len(a))
            for a, u in zip(state["f"], used, strict=True)
        ]
        state.update(t=0, m=np.zeros_like(g), v=np.zeros_like(g))
        return np.zeros_like(g)
    t = state["t"] = state["t"] + 1
    left, right = state["q"]
    m = state["m"] = ema(state["m"], g, b1)
    v = ema(state["v"], (left.T @ g @ right) ** 2, b2)
    step = (left.T @ m @ right) / (np.sqrt(v) + eps)
    update = np.sqrt(1 - b2**t) / (1 - b1**t) * left @ step @ right.T
    state["f"] = [ema(f, a, b3) for f, a in zip(state["f"], grams, strict=True)]
    if t % interval == 0:
        for axis in np.flatnonzero(used):
            f, q = state["f"][axis], state["q"][axis]
            order = np.argsort(-np.diagonal(q.T @ f @ q), kind="stable")
            v = np.take(v, order, axis=axis)
            state["q"][axis] = qr(f @ q[:, order])
    state["v"] = v
    return update


def kl_shampoo(
    g,
    state,
    b1=0.9,
    b2=0.98,
    interval=1,
    sides=("out", "in"),
    basis=None,
    soap_b2=None,
):
    """KL-Shampoo and, with `soap_b2`, KL-SOAP (Lin et al. 2025), with QR.

    Each factor averages gradients whitened by the other, L <- G R^-1 G' / n, where
    R^-1 = Q diag(1 / mu) Q' with the last basis and eigenvalues. Eigenvalues average
    diag(Q' G R^-1 G' Q) / n at every step, by their authors' code; as in the package,
    in the basis of this step, and from the power of two that is nearest to the root
    mean square of the first gradient.
    """
    m, n = g.shape
    t = state["t"] = state.get("t", 0) + 1
    momentum = state["m"] = ema(state.get("m"), g, b1)
    start = 2.0 ** np.round(np.log2(np.sqrt(np.mean(g**2))))
    lam, mu = state.get("e", (np.full(m, start), np.full(n, start)))
    ql, qr_ = state.get("q", (np.eye(m), np.eye(n)))
    left = g @ (qr_ / mu) @ qr_.T @ g.T / n
    right = g.T @ (ql / lam) @ ql.T @ g / m
    left = state["l"] = ema(state.get("l"), left, b2)
    right = state["r"] = ema(state.get("r"), right, b2)
    if refreshed(t, interval):
        ql = (basis(left) if basis else qr(left @ ql)) if "out" in sides else ql
        qr_ = (basis(right) if basis else qr(right @ qr_)) if "in" in sides else qr_
    state["q"] = ql, qr_
    x = ql.T @ g @ qr_
    state["e"] = (
        ema(lam, np.mean(x**2 / mu, axis=1), b2),
        ema(mu, np.mean(x**2 / lam[:, None], axis=0), b2),
    )
    if soap_b2 is None:
        v = np.outer(*state["e"])
    else:
        v = state["v"] = ema(state.get("v"), x**2, soap_b2)
    return ql @ ((ql.T @ momentum @ qr_) / np.sqrt(v)) @ qr_.T


def shampoo(g, state, eps=1e-6, decay=None, root=4):
    """Gupta et al. 2018, Algorithm 1; structured Fisher, Algorithm 5.

    Sums that start at epsilon; with a `decay`, averages, as in later versions. The
    papers' root is 4; the sign in Algorithm 5 is a misprint.
    """
    m, n = g.shape
    left = state.get("l", eps * np.eye(m))
    right = state.get("r", eps * np.eye(n))
    if decay is None:
        left, right = left + g @ g.T, right + g.T @ g
    else:
        left, right = ema(left, g @ g.T, decay), ema(right, g.T @ g, decay)
    state["l"], state["r"] = left, right
    return symmetric_power(left, -1 / root) @ g @ symmetric_power(right, -1 / root)


def splus(
    g,
    state,
    b1=0.9,
    b2=0.999,
    interval=100,
    sides=("out", "in"),
    scale=2.0,
    eps=1e-30,
    basis=eigenvectors,
):
    """SPlus by its authors' code (kvfrans/splus): the basis lags behind the update.

    Q_L sign(Q_L' M Q_R) Q_R', with the eigenvectors taken after the update, at t = 1,
    K, 2K, ...; the identity before. `scale` over (m + n): 2 in the paper and, since
    June 2025, as coded; 0.5 before.
    """
    m, n = g.shape
    t = state["t"] = state.get("t", 0) + 1
    momentum = state["m"] = ema(state.get("m"), g, b1)
    left = state["l"] = ema(state.get("l"), g @ g.T, b2)
    right = state["r"] = ema(state.get("r"), g.T @ g, b2)
    ql, qr_ = state.get("ql", np.eye(m)), state.get("qr", np.eye(n))
    update = ql @ np.sign(ql.T @ momentum @ qr_) @ qr_.T
    if refreshed(t, interval):
        if "out" in sides:
            state["ql"] = basis(left + eps * np.eye(m))
        if "in" in sides:
            state["qr"] = basis(right + eps * np.eye(n))
    return scale / (m + n) * update


def splus_decay(w, learning_rate, weight_decay=0.01, scale=2.0):
    """What its authors' code leaves of a matrix beside the update."""
    return w * (1 - learning_rate * scale / sum(w.shape) * weight_decay)


def splus_in_rotated_form(g, state, b1=0.9, b2=0.999, sides=("out", "in")):
    """SPlus as ARO, Appendix A.2, writes it: the basis of the current factors."""
    momentum = state["m"] = ema(state.get("m"), g, b1)
    left = state["l"] = ema(state.get("l"), g @ g.T, b2)
    right = state["r"] = ema(state.get("r"), g.T @ g, b2)
    ql = eigenvectors(left) if "out" in sides else np.eye(len(left))
    qr_ = eigenvectors(right) if "in" in sides else np.eye(len(right))
    return ql @ np.sign(ql.T @ momentum @ qr_) @ qr_.T


def dion(g, state, q0, mu=0.95, eps=1e-8):
    """Dion (Ahn et al. 2025, Algorithm 1; microsoft/dion, simple version).

    `q0` is the first right factor, in x rank. With the scale sqrt(out / in).
    """
    buffer = state.get("m", np.zeros_like(g)) + g
    p = qr(buffer @ state.get("q", q0))
    r = buffer.T @ p
    state["m"] = buffer - (1 - mu) * p @ r.T
    q = state["q"] = r / (np.linalg.norm(r, axis=0) + eps)
    m, n = g.shape
    return np.sqrt(m / n) * p @ q.T


def mousse(
    g,
    state,
    mu=0.95,
    b2=0.95,
    alpha=0.125,
    eps=1e-10,
    interval=10,
    sides=("out", "in"),
    orthogonalize=polar,
    graft=True,
    damping=0.0,
    nesterov=False,
):
    """Mousse (Zhang et al. 2026), by its authors' code.

    With the factors L and R, averaged, corrected and brought to a mean eigenvalue of
    one: L^-a msign(L^-a M R^-a) R^-a, rescaled to the norm of msign(...). Both
    powers are negative (the solution of the trust region; a page that prints positive
    ones on the outside is wrong). Eigenvalues move up by epsilon, twice, and by
    what the least one lacks to zero; the basis is renewed at t = 1, K + 1, 2K + 1, ...
    The package moves them by `damping` times the largest.
    """
    t = state["t"] = state.get("t", 0) + 1
    momentum = state["m"] = mu * state.get("m", np.zeros_like(g)) + g
    momentum = g + mu * momentum if nesterov else momentum
    whiten = []
    for side, gram in (("out", g @ g.T), ("in", g.T @ g)):
        factor = state[side] = ema(state.get(side), gram, b2)
        if side not in sides:
            state["root", side] = np.eye(len(factor))
        elif (t - 1) % interval == 0:
            factor = factor / (1 - b2**t)
            factor = factor * len(factor) / np.trace(factor)
            w, q = np.linalg.eigh(factor + eps * np.eye(len(factor)))
            w = w + max(-w.min(), 0.0) + eps + damping * w.max()
            state["root", side] = (q * w**-alpha) @ q.T
        whiten.append(state["root", side])
    left, right = whiten
    o = orthogonalize(left @ momentum @ right)
    update = left @ o @ right
    return update * np.linalg.norm(o) / np.linalg.norm(update) if graft else update
