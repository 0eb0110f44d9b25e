"""The optimizers of `examples/field_recipes.py`, as their sources write them.

A step of a matrix is `step(w, g, state) -> w`, rows being outputs; one of another leaf
is `step(name, w, g, state) -> w`. A state is a dict that starts empty.
"""

import numpy as np

JORDAN = [(3.4445, -4.7750, 2.0315)]
QUINTIC = [
    (4.0848, -6.8946, 2.9270),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
]
NVIDIA_POLAR_EXPRESS = [  # Rounded, as in Emerging-Optimizers.
    (8.2051, -22.9019, 16.4607),
    (4.0664, -2.8612, 0.5184),
    (3.9096, -2.8234, 0.5250),
    (3.2856, -2.4153, 0.4853),
    (2.2779, -1.6198, 0.3985),
    (1.8726, -1.2307, 0.3585),
    (1.8564, -1.2132, 0.3568),
    *[(1.8750, -1.2500, 0.3750)] * 9,
]
NANOGPT_POLAR_EXPRESS = [
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
]


def newton_schulz(x, rows, margin=1.0):
    """With the package's epsilon, which is relative; all sources have one."""
    x = x / (np.linalg.norm(x) + 1e-7 * np.max(np.abs(x))) / margin
    for a, b, c in rows:
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


def averaged(g, s, b, nesterov=True):
    """Emerging-Optimizers, modded-nanogpt: lerp, and once more to look ahead."""
    s["m"] = b * s.get("m", 0) + (1 - b) * g
    return b * s["m"] + (1 - b) * g if nesterov else s["m"]


def summed(g, s, b):
    """Levanter, Moonlight, PyTorch, DeepSeek V4: `buf = b buf + g`, `g + b buf`."""
    s["m"] = b * s.get("m", 0) + g
    return g + b * s["m"]


def root_max(w):
    return np.sqrt(max(w.shape))


def out_over_in(w):
    return np.sqrt(max(1, w.shape[0] / w.shape[1]))


def adam_direction(g, s, b1, b2, eps=1e-8, nesterov=False):
    t = s["t"] = s.get("t", 0) + 1
    m = s["mu"] = b1 * s.get("mu", 0) + (1 - b1) * g
    v = s["nu"] = b2 * s.get("nu", 0) + (1 - b2) * g**2
    ahead = m / (1 - b1**t)
    if nesterov:
        ahead = b1 * m / (1 - b1 ** (t + 1)) + (1 - b1) * g / (1 - b1**t)
    return ahead / (np.sqrt(v / (1 - b2**t)) + eps)


def cautious(w, u, lr, decay):
    """`p - p mask decay lr - u lr`, where the mask is `u p >= 0`."""
    return w - lr * u - lr * decay * w * (u * w >= 0)


def on_sphere(w, u, lr):
    """Marin: a step relative to the norm, back to the sphere."""
    new = w - lr * u * np.linalg.norm(w) / np.linalg.norm(u)
    return new / np.linalg.norm(new) * np.linalg.norm(w)


def muon(lr, decay, rows, size, look=summed, **options):
    def step(w, g, s):
        u = size(w) * newton_schulz(look(g, s, **options), rows)
        return w * (1 - lr * decay) - lr * u

    return step


def adamw(lr, b1=0.9, b2=0.95, eps=1e-8, decay=0.0, vectors=True, **options):
    def step(name, w, g, s):
        del name
        d = decay if vectors or w.ndim > 1 else 0.0
        return w * (1 - lr * d) - lr * adam_direction(g, s, b1, b2, eps, **options)

    return step


def kl_soap(w, g, s, lr=3e-3, b1=0.9, b2=0.95, b3=0.95, decay=0.1):
    """KL-SOAP with a power step per step, as the docstring of `kl_shampoo` has it."""
    t = s["t"] = s.get("t", 0) + 1
    m, n = g.shape
    if t == 1:
        size = 2.0 ** np.round(np.log2(np.sqrt(np.mean(g**2))))
        s |= {"ql": np.eye(m), "qr": np.eye(n), "l": 0, "r": 0, "m": 0, "v": 0}
        s |= {"el": np.full(m, size), "er": np.full(n, size)}
    left, right = g @ s["qr"], g.T @ s["ql"]
    s["l"] = b3 * s["l"] + (1 - b3) / n * (left / s["er"]) @ left.T
    s["r"] = b3 * s["r"] + (1 - b3) / m * (right / s["el"]) @ right.T
    ql = s["ql"] = np.linalg.qr(s["l"] @ s["ql"])[0]
    qr = s["qr"] = np.linalg.qr(s["r"] @ s["qr"])[0]
    seen = ql.T @ g @ qr
    s["el"], s["er"] = (
        b3 * s["el"] + (1 - b3) * np.mean(seen**2 / s["er"], axis=1),
        b3 * s["er"] + (1 - b3) * np.mean(seen**2 / s["el"][:, None], axis=0),
    )
    s["m"] = b1 * s["m"] + (1 - b1) * g
    s["v"] = b2 * s["v"] + (1 - b2) * seen**2
    moved = ql.T @ s["m"] @ qr / (1 - b1**t)
    ratio = moved / np.sqrt(s["v"] / (1 - b2**t))
    largest = np.sqrt((1 - b2**t) / (1 - b2))  # Adam's; beyond it b^2 / r.
    ratio = np.where(np.abs(ratio) > largest, largest**2 / ratio, ratio)
    return w * (1 - lr * decay) - lr * ql @ ratio @ qr.T


def soap_muon(w, g, s, lr=0.0375, b1=0.95, b2=0.9, decay=0.025):
    """Track 3: whitened in the basis of both sides, then orthogonalized."""
    t = s["t"] = s.get("t", 0) + 1
    for side, gram in (("l", g @ g.T), ("r", g.T @ g)):
        s[side] = b2 * s.get(side, 0) + (1 - b2) * gram
        basis = s.get("q" + side, np.eye(len(gram)))
        s["q" + side] = np.linalg.qr(s[side] @ basis)[0]
    ql, qr = s["ql"], s["qr"]
    s["m"] = b1 * s.get("m", 0) + (1 - b1) * g
    s["v"] = b2 * s.get("v", 0) + (1 - b2) * (ql.T @ g @ qr) ** 2
    ratio = ql.T @ s["m"] @ qr / np.sqrt(s["v"] / (1 - b2**t))
    o = newton_schulz(ratio, [(2, -1.5, 0.5)] * 12)
    return cautious(w, out_over_in(w) * ql @ o @ qr.T, lr, decay)


def normuon(w, g, s, lr=0.023, decay=1.2):
    o = newton_schulz(averaged(g, s, 0.95), NANOGPT_POLAR_EXPRESS, 1.02)
    mean = np.mean(o**2, axis=1, keepdims=True)
    s["v"] = 0.9 * s.get("v", 0) + 0.1 * mean
    u = o / np.sqrt(s["v"])
    u = out_over_in(w) * u * np.linalg.norm(o) / np.linalg.norm(u)
    return cautious(w, u, lr, decay * lr)


def adam_of_nanogpt(name, w, g, s, lr=0.008):
    del name
    u = adam_direction(g, s, 0.5, 0.95, 1e-10)
    return cautious(w, u, lr, lr * 0.005 * 150 * (w.ndim > 1))


def adam_of_track_3(name, w, g, s):
    lr = {"embed/embedding": 0.3, "lm_head/kernel": 1 / 320}.get(name, 0.01)
    return w - lr * adam_direction(g, s, 0.8, 0.99, 1e-10)


def marin_matrix(w, g, s, lr=0.003291):
    return on_sphere(w, newton_schulz(summed(g, s, 0.95), QUINTIC), lr)


def marin_other(name, w, g, s):
    u = adam_direction(g, s, 0.9, 0.95, 6.04e-15)
    return on_sphere(w, u, 0.003291) if "lm_head" in name else w - 0.000759 * u
