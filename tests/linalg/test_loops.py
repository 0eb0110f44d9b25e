"""What TPUs run in place of decompositions and large products: loops with small bodies.

All of it runs on every platform, so its values are tested here, on whatever there is.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _matrices import ones
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

from optax_matrix import linalg
from optax_matrix.linalg import _orthonormalize, _svd
from optax_matrix.linalg._block_jacobi import _tournament, eigh, eigh_by_blocks
from optax_matrix.linalg._triangular import cholesky_quotient, quotient_by_panels
from optax_matrix.linalg.products import full_dot, in_tiles
from optax_matrix.linalg.spectral_norms import norm_bound

EPS = np.finfo(np.float32).eps


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def on_tpu(monkeypatch):
    """Takes the branch for TPU wherever there is one."""

    def choose(*args, default=None, **branches):
        return branches.get("tpu", default)(*args)

    jax.clear_caches()  # Kernels that are already traced keep their branches.
    monkeypatch.setattr(jax.lax, "platform_dependent", choose)
    yield
    monkeypatch.undo()
    jax.clear_caches()


def _symmetric(rng, kind, n):
    q, _ = np.linalg.qr(rng.normal(size=(n, n)))
    values = {
        "normal": rng.normal(size=n),
        "decaying": 10.0 ** -np.linspace(0, 6, n),
        "low rank": np.arange(n) < n // 8,
        "two values": np.where(np.arange(n) < n // 2, 1.0, 1e-3),
        "both signs": np.where(np.arange(n) % 2, 1.0, -1.0),
        "zero": np.zeros(n),
        "identity": np.ones(n),
    }[kind]
    a = (q * values) @ q.T
    return (a + a.T) / 2


def _agree_within_rounding(got, want, norm=1.0):
    """Agrees to float32's relative precision times the side, on the scale of `norm`."""
    tolerance = EPS * len(want) * norm
    np.testing.assert_allclose(got, want, rtol=0, atol=tolerance)


def _decomposes(a, w, v):
    w, v = np.asarray(w, np.float64), np.asarray(v, np.float64)
    norm = np.linalg.norm(a, 2)
    _agree_within_rounding(w, np.linalg.eigvalsh(a), norm)
    _agree_within_rounding(v.T @ v, np.eye(len(a)))
    _agree_within_rounding(a @ v, v * w, norm)


KINDS = (
    *("normal", "decaying", "low rank", "two values", "both signs", "zero"),
    "identity",
)


@pytest.mark.parametrize(("m", "k", "n"), [(300, 70, 520), (600, 9, 40), (33, 513, 8)])
def test_products_in_tiles(rng, m, k, n):
    x, y = rng.normal(size=(2, 3, m, k)), rng.normal(size=(2, 3, k, n))
    out = jax.jit(functools.partial(in_tiles, full_dot))(
        x.astype(np.float32), y.astype(np.float32)
    )
    assert out.dtype == jnp.float32
    np.testing.assert_allclose(out, x @ y, atol=1e-5 * k**0.5)


@pytest.mark.broad
def test_products_in_tiles_have_the_derivatives_of_products(rng):
    x, y = jnp.array(rng.normal(size=(300, 20))), jnp.array(rng.normal(size=(20, 270)))
    tiled = jax.grad(lambda x, y: jnp.sum(in_tiles(full_dot, x, y) ** 2), (0, 1))
    whole = jax.grad(lambda x, y: jnp.sum(full_dot(x, y) ** 2), (0, 1))
    for got, want in zip(tiled(x, y), whole(x, y), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-4 * np.abs(want).max())


@pytest.mark.broad
@pytest.mark.parametrize(("m", "n"), [(3, 5), (50, 16), (20, 37)])
def test_quotient_by_panels(rng, m, n):
    root = rng.normal(size=(2, n, n + 3))
    a, y = root @ root.swapaxes(1, 2), rng.normal(size=(2, m, n))
    a32, y32 = jnp.asarray(a, jnp.float32), jnp.asarray(y, jnp.float32)
    l, q = quotient_by_panels(a32, y32, block=8)
    want = np.linalg.cholesky(a)
    np.testing.assert_allclose(l, want, atol=1e-4)
    solved = np.linalg.solve(want, y.swapaxes(1, 2)).swapaxes(1, 2)
    scale = np.abs(solved).max()
    np.testing.assert_allclose(q / scale, solved / scale, atol=1e-4)
    for got, same in zip((l, q), cholesky_quotient(a32, y32), strict=True):
        np.testing.assert_allclose(got / scale, same / scale, atol=1e-4)


@pytest.mark.broad
def test_quotient_by_panels_is_not_finite_without_a_factor():
    a = np.diag([1.0] * 9 + [-1.0] + [1.0] * 9).astype(np.float32)
    _, q = quotient_by_panels(jnp.asarray(a), jnp.eye(19), block=4)
    assert not np.isfinite(q).all()


@pytest.mark.parametrize("blocks", [2, 4, 10])
def test_every_two_blocks_meet_once_in_a_sweep(blocks):
    rounds = _tournament(blocks)
    pairs = {tuple(pair) for order in rounds for pair in order.reshape(-1, 2)}
    assert len(rounds) == blocks - 1
    assert pairs == {(i, j) for j in range(blocks) for i in range(j)}


@pytest.mark.quick("16-zero")
@pytest.mark.daily("normal", "61-low rank", "61-two values", "zero")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [16, 61])
def test_eigenvectors_by_blocks(rng, kind, n):
    a = _symmetric(rng, kind, n)
    w, v = jax.jit(functools.partial(eigh_by_blocks, block=8))(a.astype(np.float32))
    _decomposes(a, w, v)


def test_eigenvectors_by_blocks_of_a_batch_of_any_scale(rng):
    by_blocks = jax.jit(functools.partial(eigh_by_blocks, block=4))
    for scale in (1, 1e-6):
        a = np.stack([scale * _symmetric(rng, kind, 24) for kind in KINDS])
        for one in zip(a, *by_blocks(a.astype(np.float32)), strict=True):
            _decomposes(*one)


@pytest.mark.broad
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_matrix_that_is_not_finite_does_not_change_its_neighbor(rng, bad):
    a = np.stack([_symmetric(rng, "normal", 72), np.eye(72)])
    a[1, 3, 3] = bad
    w, v = eigh_by_blocks(jnp.asarray(a, jnp.float32), block=4)
    assert not np.isfinite(w[1]).all()
    assert not np.isfinite(v[1]).all()
    _decomposes(a[0], w[0], v[0])


@pytest.mark.parametrize("n", [300, 512])
@pytest.mark.parametrize("name", ["cholesky_qr", "eigenbasis", "polar_eigh"])
def test_replicated_on_an_explicit_mesh(name, n, cpus):
    mesh = jax.make_mesh((8,), ("a",), (AxisType.Explicit,), devices=cpus)
    x = jax.ShapeDtypeStruct((n, n), jnp.float32, sharding=NamedSharding(mesh, P()))
    kernel = jax.jit(getattr(linalg, name))
    assert kernel.trace(x).out_info is not None
    with jax.set_mesh(mesh):
        assert kernel.trace(x).out_info is not None


@pytest.mark.parametrize("shape", [(0, 512, 512), (2, 512, 0), (2, 0, 512)])
def test_products_of_nothing(shape):
    x = np.zeros(shape, np.float32)
    assert jax.jit(full_dot)(x, x.mT).shape == (shape[0], shape[1], shape[1])
    assert jax.jit(full_dot)(ones(512, 512), ones(512)).shape == (512,)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["polar_svd", "polar_eigh", "inverse_root"])
def test_large_matrices_have_second_derivatives(name):
    kernel = LARGE[name]
    value = lambda x: jnp.sum(kernel(x) ** 2)
    again = jax.grad(lambda x: jnp.sum(jax.grad(value)(x) ** 2))
    jax.jit(again).trace(jax.ShapeDtypeStruct((300, 300), jnp.float32))


@pytest.mark.parametrize("kind", KINDS)
def test_norm_bound(rng, kind):
    a = _symmetric(rng, kind, 40).astype(np.float32)
    norm = np.abs(np.linalg.eigvalsh(a)).max()
    bound = float(np.asarray(jax.jit(norm_bound)(a))[0, 0])
    assert norm * (1 - 1e-5) <= bound <= norm * 40 ** (1 / 128) * (1 + 1e-5)


@pytest.mark.broad
@pytest.mark.parametrize("shape", [(40, 40), (70, 30)])
@pytest.mark.parametrize("rank", [0, 1, 20, 30])
def test_qr_by_cholesky(rng, shape, rank):
    m, n = shape
    x = rng.normal(size=(m, rank)) @ rng.normal(size=(rank, n))
    q, r = _orthonormalize.qr_by_cholesky(jnp.asarray(x, jnp.float32))
    q, r = np.asarray(q, np.float64), np.asarray(r, np.float64)
    _agree_within_rounding(q.T @ q, np.eye(n))
    _agree_within_rounding(q @ r, x, np.linalg.norm(x))
    assert np.all(np.tril(r, -1) == 0)


@pytest.mark.broad
@pytest.mark.parametrize("shape", [(40, 40), (30, 70)])
@pytest.mark.parametrize("kind", ["decaying", "low rank", "zero"])
def test_svd_by_polar(rng, shape, kind):
    k = min(shape)
    x = (_symmetric(rng, kind, max(shape))[: shape[0], : shape[1]]).astype(np.float32)
    u, s, vt = _svd.svd_by_polar(jnp.asarray(x))
    assert np.all(np.diff(s) <= 0)
    for scale in (1e19, 1e-25):
        scaled = _svd.svd_by_polar(jnp.asarray(x * np.float32(scale)))[1]
        np.testing.assert_allclose(scaled / scale, s, atol=3e-6)
    np.testing.assert_allclose(s, np.linalg.svd(x, compute_uv=False), atol=3e-6)
    np.testing.assert_allclose(u.T @ u, np.eye(k), atol=3e-6)
    np.testing.assert_allclose(vt @ vt.T, np.eye(k), atol=3e-6)
    np.testing.assert_allclose((u * s) @ vt, x, atol=1e-5)


LARGE = {
    "cholesky_qr": linalg.cholesky_qr,
    "polar_svd": linalg.polar_svd,
    "polar_eigh": linalg.polar_eigh,
    "inverse_root": lambda x: linalg.inverse_root(x @ x.T, 4, eps=1e-3),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_large_matrices_have_the_same_results_by_loops(rng, name, request):
    x = jnp.asarray(rng.normal(size=(530, 300)), jnp.float32)
    want = LARGE[name](x)
    request.getfixturevalue("on_tpu")
    got = LARGE[name](x)
    assert np.any(got != want)  # The other branch ran.
    np.testing.assert_allclose(got, want, atol=2e-5)


DECOMPOSITIONS = {
    "eigh": eigh,
    "qr": _orthonormalize.qr,
    "svd": _svd.svd,
    "quotient": lambda x: cholesky_quotient(x, x),
    "product": lambda x: full_dot(x, x),
}


@pytest.mark.parametrize("name", DECOMPOSITIONS)
def test_tpus_run_the_loops(name):
    x = jax.ShapeDtypeStruct((2048, 2048), jnp.float32)
    traced = jax.jit(DECOMPOSITIONS[name]).trace(x)
    text = traced.lower(lowering_platforms=("tpu",)).as_text()
    assert "while" in text
    # No product and no decomposition of the whole side is left.
    operands = "(tensor<2048x2048xf32>, tensor<2048x2048xf32>)"
    for line in text.splitlines():
        assert "dot_general" not in line or operands not in line
        assert not ("cholesky" in line or "@Eig" in line) or "2048x2048" not in line
