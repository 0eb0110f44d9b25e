"""The update rules of other programs, restated in NumPy, with their state by name.

Each returns its update and mutates its state, a dict. Matrices are as the program has
them: PyTorch's are ``(out, in)``, those of SOAP_JAX of the parameter's own shape.
"""

import numpy as np

STANDARD = (3.4445, -4.7750, 2.0315)


def torch_muon(state, grad, rate, momentum):
    """`torch.optim.Muon` with ``adjust_lr_fn="original"``, in the dtype of the grads.

    The original orthogonalizes in bfloat16.
    """
    old = state.setdefault("momentum_buffer", np.zeros_like(grad))
    mean = state["momentum_buffer"] = momentum * old + (1 - momentum) * grad
    x = momentum * mean + (1 - momentum) * grad
    rows, cols = x.shape
    x = (x if rows <= cols else x.T) / np.linalg.norm(x)
    a, b, c = STANDARD
    for _ in range(5):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return -rate * np.sqrt(max(1, rows / cols)) * (x if rows <= cols else x.T)


def torch_adamw(state, grad, rate, betas, eps):
    """`torch.optim.AdamW` without decay; also the leaves that GaLore leaves alone."""
    (b1, b2), zeros = betas, np.zeros_like(grad)
    step = state["step"] = state.get("step", 0) + 1
    mean = state["exp_avg"] = b1 * state.get("exp_avg", zeros) + (1 - b1) * grad
    square = b2 * state.get("exp_avg_sq", zeros) + (1 - b2) * grad**2
    state["exp_avg_sq"] = square
    scale = np.sqrt(1 - b2**step) / (1 - b1**step)
    return -rate * scale * mean / (np.sqrt(square) + eps)


def torch_galore(state, grad, rate, rank, gap, scale, eps=1e-6):
    """AdamW of galore_torch with ``proj_type="std"``."""
    is_tall = grad.shape[0] >= grad.shape[1]
    if state.get("step", 0) % gap == 0:
        u, _, vh = np.linalg.svd(grad, full_matrices=False)
        state["ortho_matrix"] = vh[:rank] if is_tall else u[:, :rank]
    basis = state["ortho_matrix"]
    low = grad @ basis.T if is_tall else basis.T @ grad
    low = torch_adamw(state, low, rate, (0.9, 0.999), eps)
    return scale * (low @ basis if is_tall else basis @ low)


def torch_soap(state, grad, rate, frequency, beta=0.95, eps=1e-8):
    """SOAP of its authors; ``exp_avg`` is kept in the eigenbasis."""
    if "GG" not in state:
        grams = [(1 - beta) * gram for gram in (grad @ grad.T, grad.T @ grad)]
        zeros = np.zeros_like(grad)
        state |= {"step": 0, "exp_avg": zeros, "exp_avg_sq": zeros, "GG": grams}
        state["Q"] = [np.linalg.eigh(gram)[1][:, ::-1] for gram in grams]
        return zeros
    left, right = state["Q"]
    seen = left.T @ grad @ right
    update = left @ torch_adamw(state, seen, rate, (beta, beta), eps) @ right.T
    mean = left @ state["exp_avg"] @ right.T
    state["GG"] = _averaged(state["GG"], grad, beta)
    if state["step"] % frequency == 0:
        state["Q"], state["exp_avg_sq"] = _renewed(state)
    left, right = state["Q"]
    state["exp_avg"] = left.T @ mean @ right
    return update


def soap_jax(state, grad, rate, frequency, beta=0.95, eps=1e-8):
    """SOAP_JAX; it stores ``exp_avg_sq`` only when it renews the bases."""
    if "GG" not in state:
        grams = [(1 - beta) * gram for gram in (grad @ grad.T, grad.T @ grad)]
        zeros = np.zeros_like(grad)
        state |= {"count": 1, "exp_avg": zeros, "exp_avg_sq": zeros, "GG": grams}
        state["Q"] = [np.linalg.eigh(gram)[1][:, ::-1] for gram in grams]
        return zeros
    count = state["count"] = state["count"] + 1
    left, right = state["Q"]
    mean = state["exp_avg"] = beta * state["exp_avg"] + (1 - beta) * grad
    seen = left.T @ grad @ right
    square = beta * state["exp_avg_sq"] + (1 - beta) * seen**2
    update = left @ (left.T @ mean @ right / (np.sqrt(square) + eps)) @ right.T
    state["GG"] = _averaged(state["GG"], grad, beta)
    if count % frequency == 0:
        state["Q"], state["exp_avg_sq"] = _renewed(state | {"exp_avg_sq": square})
    return -rate * np.sqrt(1 - beta**count) / (1 - beta**count) * update


def _averaged(grams, grad, beta):
    new = grad @ grad.T, grad.T @ grad
    return [
        beta * old + (1 - beta) * gram for old, gram in zip(grams, new, strict=True)
    ]


def _renewed(state):
    square, bases = state["exp_avg_sq"], []
    for axis, (gram, basis) in enumerate(zip(state["GG"], state["Q"], strict=True)):
        order = np.argsort(-np.diag(basis.T @ gram @ basis))
        square = np.take(square, order, axis)
        bases.append(np.linalg.qr(gram @ basis[:, order])[0])
    return bases, square
