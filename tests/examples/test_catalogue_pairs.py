"""Methods for pairs against their formulas in NumPy, and the bound of the product."""

from functools import partial

import jax
import numpy as np
import optax
import pytest
from _steps import first_update

import optax_matrix as om
from examples import catalogue_pairs as pairs

EXACT = om.linalg.polar_svd
ADAPTERS = {
    "q/lora_a": (8, 3),
    "q/lora_b": (3, 7),
    "v/lora_a": (8, 3),
    "v/lora_b": (3, 5),
    "q/kernel": (8, 7),
}
ATTENTION = {
    "query/kernel": (8, 2, 3),
    "key/kernel": (8, 2, 3),
    "value/kernel": (8, 2, 3),
    "out/kernel": (2, 3, 8),
    "mlp/kernel": (8, 5),
}


def draw(shapes, seed):
    rng = np.random.default_rng(seed)
    return {
        n: rng.standard_normal(shape).astype(np.float32) for n, shape in shapes.items()
    }


def power(gram, p, eps):
    """``(gram + eps l_max I)^p``."""
    w, q = np.linalg.eigh(gram)
    return (q * (w + eps * w.max()) ** p) @ q.T


def polar(x):
    u, _, v = np.linalg.svd(x, full_matrices=False)
    return u @ v


def whitened(x, gram, eps):
    root = power(gram, -0.5, eps)
    return root @ polar(root @ x) / 2


def of_lora(a, b, m_a, m_b, eps):
    return whitened(m_a, b.T @ b, eps), whitened(m_b.T, a @ a.T, eps).T


def of_scores(q, k, m_q, m_k, eps):
    return whitened(m_q, k @ k.T, eps), whitened(m_k, q @ q.T, eps)


def of_metric(a, b, g_a, g_b, eps):
    return power(b.T @ b, -1, eps) @ g_a, g_b @ power(a @ a.T, -1, eps)


def run(tx, shapes, steps=2):
    """Parameters, gradients and updates of some steps, in float64."""
    params, grads, found = draw(shapes, 0), [], []
    state, update = jax.jit(tx.init)(params), jax.jit(tx.update)
    for step in range(steps):
        grads.append(draw(shapes, 1 + step))
        updates, state = update(grads[-1], state, params)
        found.append(updates)
    wide = lambda tree: {n: np.asarray(x, np.float64) for n, x in tree.items()}
    return wide(params), list(map(wide, grads)), list(map(wide, found))


def momenta(grads, name, b1):
    moment = 0
    for g in grads:
        moment = b1 * moment + (1 - b1) * g[name]
        yield moment


def assert_close(got, want):
    np.testing.assert_allclose(got, want, 2e-4, 2e-4 * np.abs(want).max())


@pytest.mark.broad
@pytest.mark.parametrize(
    ("tx", "formula", "b1"),
    [
        (pairs.lora_muon(0.9, 0.01, EXACT), of_lora, 0.9),
        (pairs.riemannian_lora(0.01), of_metric, 0.0),
    ],
    ids=["lora_muon", "riemannian_lora"],
)
def test_adapters(tx, formula, b1):
    params, grads, found = run(tx, ADAPTERS)
    for layer in "qv":
        names = f"{layer}/lora_a", f"{layer}/lora_b"
        factors = [params[name].T for name in names]
        moments = [momenta(grads, name, b1) for name in names]
        for updates, *both in zip(found, *moments, strict=True):
            want = formula(*factors, *(m.T for m in both), 0.01)
            for name, x in zip(names, want, strict=True):
                assert_close(updates[name].T, x)
    for g, updates in zip(grads, found, strict=True):
        np.testing.assert_array_equal(updates["q/kernel"], g["q/kernel"])


@pytest.mark.broad
def test_circuits():
    tx = pairs.compositional_muon(0.9, 0.01, EXACT)
    params, grads, found = run(tx, ATTENTION)
    # Of a head, as (head_dim, d) or (d, head_dim).
    seen = lambda tree, name, h: tree[h].T if name == "out/kernel" else tree[:, h].T
    circuits = [("query", "key", of_scores), ("value", "out", of_lora)]
    for first, second, formula in circuits:
        names = f"{first}/kernel", f"{second}/kernel"
        moments = [momenta(grads, name, 0.9) for name in names]
        for updates, *both in zip(found, *moments, strict=True):
            for h in range(2):
                own = [seen(params[name], name, h) for name in names]
                m = [seen(x, name, h) for x, name in zip(both, names, strict=True)]
                for name, x in zip(names, formula(*own, *m, 0.01), strict=True):
                    assert_close(seen(updates[name], name, h), x)
    for updates, m in zip(found, momenta(grads, "mlp/kernel", 0.9), strict=True):
        assert_close(updates["mlp/kernel"], polar(m))


def first_order(params, updates, one, other, is_scores):
    """The change of the product of two matrices."""
    a, b, da, db = (t[n] for t in (params, updates) for n in (one, other))
    if is_scores:
        return da.T @ b + a.T @ db
    return db @ a + b @ da


@pytest.mark.broad
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_the_product_moves_by_one_at_most(scale):
    """However large the factors are, and however ill-conditioned."""
    params, grads = draw(ADAPTERS, 0), draw(ADAPTERS, 1)
    params["q/lora_a"] = params["q/lora_a"] * scale * np.float32([1, 1e-2, 1e-3])
    updates, _ = first_update(pairs.lora_muon(eps=1e-9, polar=EXACT), grads, params)
    of = lambda tree: {n: np.float64(x).T for n, x in tree.items()}
    for layer in "qv":
        names = f"{layer}/lora_a", f"{layer}/lora_b"
        moved = first_order(of(params), of(updates), *names, is_scores=False)
        size = np.linalg.norm(moved, 2)
        assert 0.5 < size < 1 + 1e-3, (layer, size)
    plain = om.on_matrices(om.orthogonalize(EXACT), dimension_numbers=adapters())
    updates, _ = first_update(plain, grads, params)
    names = "q/lora_a", "q/lora_b"
    moved = first_order(of(params), of(updates), *names, is_scores=False)
    assert np.linalg.norm(moved, 2) > 1.5  # Without a partner nothing bounds it.


@pytest.mark.broad
def test_the_step_of_an_adapter_does_not_depend_on_its_factors():
    """Of ``B A`` and of ``(B R^-1) (R A)``, whose gradients are those of one matrix."""
    rng = np.random.default_rng(0)
    params = {k: x for k, x in draw(ADAPTERS, 0).items() if k.startswith("q/lora")}
    a, b = (np.float64(params[f"q/lora_{n}"]).T for n in "ab")
    g, r = rng.standard_normal((7, 8)), np.eye(3) + 0.5 * rng.standard_normal((3, 3))
    splits, moved = [(a, b), (r @ a, b @ np.linalg.inv(r))], []
    for a, b in splits:
        both = lambda x, y: {"q/lora_a": np.float32(x.T), "q/lora_b": np.float32(y.T)}
        tx = pairs.lora_muon(eps=1e-9, polar=EXACT)
        updates, _ = first_update(tx, both(b.T @ g, g @ a.T), both(a, b))
        new_a, new_b = (np.float64(updates[f"q/lora_{n}"]).T for n in "ab")
        moved.append(b @ new_a + new_b @ a)
    assert_close(*moved)


def adapters():
    nothing = om.matrices.PathRule(lambda *_: (None, "no adapter"))
    return om.matrices.by_path(include="lora_[ab]", otherwise=nothing)


@pytest.mark.broad
def test_scaled_steps_do_not_depend_on_the_split():
    """``(B T) (T^-1 A)`` moves as ``B A`` does."""
    params, grads = draw(ADAPTERS, 0), draw(ADAPTERS, 1)
    t = draw({"t": (3, 3)}, 7)["t"]
    inverse = np.linalg.inv(t)
    change = lambda tree, left, right: (
        tree
        | {
            "q/lora_a": tree["q/lora_a"] @ left,
            "q/lora_b": right @ tree["q/lora_b"],
        }
    )
    # A is stored as (in, r), B as (r, out): A' T^-T, T' B'; gradients the other way.
    others = change(params, inverse.T, t.T), change(grads, t, inverse)
    moved = []
    for w, g in ((params, grads), others):
        updates, _ = first_update(pairs.riemannian_lora(1e-9), g, w)
        a, b = w["q/lora_a"], w["q/lora_b"]
        moved.append(updates["q/lora_a"] @ b + a @ updates["q/lora_b"])
    np.testing.assert_allclose(moved[1], moved[0], 1e-2, 1e-2 * np.abs(moved[0]).max())


@pytest.mark.broad
def test_an_adapter_that_starts_at_zero():
    """B is zero: A has no gradient, and B moves."""
    params, grads = draw(ADAPTERS, 0), draw(ADAPTERS, 1)
    for layer in "qv":
        params[f"{layer}/lora_b"] *= 0
        grads[f"{layer}/lora_a"] *= 0
    for make in pairs.METHODS.values():
        if make is pairs.compositional_muon:
            continue
        updates, _ = first_update(make(), grads, params)
        assert all(np.isfinite(x).all() for x in updates.values())
        assert not updates["q/lora_a"].any()
        assert updates["q/lora_b"].any()


@pytest.mark.broad
def test_each_is_a_link_of_a_chain():
    for name, make in pairs.METHODS.items():
        shapes = ATTENTION if "compositional" in name else ADAPTERS
        tx = optax.chain(make(), optax.scale_by_learning_rate(0.1))
        params = draw(shapes, 0)
        shaped = partial(jax.tree.map, np.shape)
        out = jax.eval_shape(lambda p, tx=tx: tx.update(p, tx.init(p), p)[0], params)
        assert shaped(out) == shaped(params)
