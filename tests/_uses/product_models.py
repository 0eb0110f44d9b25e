"""Ways to write a product, and to make a weight, in tiny models."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from _uses.battery import A, T, small
from jax import lax

product = functools.partial(small, "product")
X = A(4, 7)
IO = {"w": "io 7 12", "out": "- 12 5"}
OI = {"w": "oi 12 7", "out": "- 12 5"}
SQUARE = {"w": "io|oi? 7 7", "out": "- 7 5"}


def head(p, h):
    return jax.nn.relu(h) @ p["out"]


# Products.


@product(X, **OI)
def vecdot(p, x):
    return head(p, jnp.vecdot(x[:, None], p["w"]))


@product(X, **OI)
def inner(p, x):
    return head(p, jnp.inner(x, p["w"]))


@product(X, **OI)
def matvec_of_each_example(p, x):
    return head(p, jax.vmap(lambda x: p["w"] @ x)(x))


@product(A(7, 4), **OI)
def examples_in_columns(p, x):
    return head(p, jax.vmap(lambda x: p["w"] @ x, in_axes=1, out_axes=0)(x))


@product(A(7, 4), **OI)
def weight_from_the_left(p, x):
    return head(p, (p["w"] @ x).T)


@product(A(3, 4, 7), **IO)
def doubly_mapped(p, x):
    f = jax.vmap(jax.vmap(jnp.dot, (0, None)), (0, None))
    return head(p, f(x, p["w"]))


@product(X, **IO)
def vectorized(p, x):
    f = jnp.vectorize(lambda x, w: x @ w, signature="(i),(i,o)->(o)")
    return head(p, f(x, p["w"]))


@product(X, **IO)
def along_an_axis(p, x):
    return head(p, jnp.apply_along_axis(lambda x: x @ p["w"], 1, x))


@product(X, **IO)
def mapped_over_examples(p, x):
    return head(p, lax.map(lambda x: x @ p["w"], x))


@product(X, **IO)
def mapped_in_batches(p, x):
    return head(p, lax.map(lambda x: x @ p["w"], x, batch_size=2))


@product(A(4, 3, 7), w="iio 3 7 12", out="- 12 5")
def tensordot(p, x):
    return head(p, jnp.tensordot(x, p["w"], 2))


@product(A(4, 3, 7), w="oii 12 3 7", out="- 12 5")
def tensordot_from_the_left(p, x):
    return head(p, jnp.tensordot(p["w"], x, ((1, 2), (1, 2))).T)


@product(A(4, 7, 3), w="ioi 7 12 3", out="- 12 5")
def einsum_of_split_inputs(p, x):
    return head(p, jnp.einsum("bic,ioc->bo", x, p["w"]))


@product(X, **IO)
def product_in_bfloat16(p, x):
    w = p["w"].astype(jnp.bfloat16)
    dims = (((1,), (0,)), ((), ()))
    return head(
        p, lax.dot_general(x.astype(w.dtype), w, dims, preferred_element_type=x.dtype)
    )


@product(X, **IO)
def summed_by_hand_weight_first(p, x):
    return head(p, (p["w"] * x[:, :, None]).sum(1))


@product(X, **IO)
def summed_by_hand_turned(p, x):
    return head(p, (x[:, None, :] * p["w"].T).sum(-1))


@product(X, **OI)
def summed_by_hand_rows(p, x):
    return head(p, jnp.sum(x[:, None] * p["w"], -1))


@product(A(7, 4), **IO)
def summed_by_hand_over_the_first(p, x):
    return head(p, (x[:, :, None] * p["w"][:, None]).sum(0))


@product(X, **IO)
def mean_of_a_product_by_hand(p, x):
    return head(p, 7 * (x[..., None] * p["w"]).mean(1))


@product(X, w="oi? 12 7", out="- 12 5")
def summed_by_hand_with_an_activation_between(p, x):
    return head(p, jnp.sum(2 * (x[:, None] * p["w"]) + 1, -1))


@product(X, **IO)
def summed_by_einsum_of_ones(p, x):
    return head(p, jnp.einsum("bio->bo", x[:, :, None] * p["w"]))


@product(X, w="io? 7 12", out="- 12 5")
def summed_by_a_product_with_ones(p, x):
    return head(p, jnp.ones(7) @ (x[:, :, None] * p["w"]))


@product(X, u="io? 7 3", c="io? 3 4", v="io? 4 12", out="- 12 5")
def tucker_in_one_einsum(p, x):
    return head(p, jnp.einsum("bi,ir,rs,so->bo", x, p["u"], p["c"], p["v"]))


@product(X, u="io? 7 3", v="oi? 12 3", out="- 12 5")
def canonical_factors(p, x):
    return head(p, jnp.einsum("bi,ir,or->bo", x, p["u"], p["v"]))


@product(X, u="io 7 3", v="io 3 12", out="- 12 5")
def two_factors_in_turn(p, x):
    return head(p, (x @ p["u"]) @ p["v"])


@product(X, u="io? 7 3", v="io? 3 12", out="- 12 5")
def two_factors_first(p, x):
    return head(p, x @ (p["u"] @ p["v"]))


@product(A(4, 6), a="io? 2 3", b="io? 3 5", out="- 15 4")
def kronecker(p, x):
    return head(p, x @ jnp.kron(p["a"], p["b"]))


@product(A(4, 6), a="io 2 3", b="io 3 5", out="- 15 4")
def kronecker_in_turn(p, x):
    x = jnp.einsum("bij,io->bjo", x.reshape(4, 2, 3), p["a"])
    return head(p, jnp.einsum("bjo,jq->boq", x, p["b"]).reshape(4, 15))


@product(A(4, 24), a="ioo? 2 3 4", b="oioo? 4 3 2 5", c="oio? 5 4 3", out="- 18 5")
def tensor_train(p, x):
    x = x.reshape(4, 2, 3, 4)
    y = jnp.einsum("bijk,iar,rjcs,skd->bacd", x, p["a"], p["b"], p["c"])
    return head(p, y.reshape(4, -1))


@product(X, A(4, 6), w="iio|ioo|oio? 7 6 12", out="- 12 5")
def bilinear_of_two_inputs(p, x, y):
    return head(p, jnp.einsum("bi,ijo,bj->bo", x, p["w"], y))


@product(X, a="io 7 9", b="io 7 9", out="- 9 5")
def hadamard_of_two_products(p, x):
    return head(p, (x @ p["a"]) * (x @ p["b"]))


@product(
    X,
    **{"a": "io? 7 2", "b": "io? 2 12", "c": "io? 7 3", "d": "io? 3 12"},
    out="- 12 5",
)
def hadamard_of_low_ranks(p, x):
    return head(p, x @ ((p["a"] @ p["b"]) * (p["c"] @ p["d"])))


@product(A(4, 8), w="bio 4 2 3", v="bio 3 4 5", out="- 15 6")
def butterfly(p, x):
    y = jnp.einsum("bki,kio->bko", x.reshape(4, 4, 2), p["w"])
    return head(p, jnp.einsum("bko,okq->boq", y, p["v"]).reshape(4, -1))


# Members of an ensemble.


@product(X, w="bio 3 7 12", out="- 3 12 5")
def members_first(p, x):
    return jax.vmap(lambda w, out: jax.nn.relu(x @ w) @ out)(p["w"], p["out"])


@product(X, w="ibo 7 3 12", out="- 12 3 5")
def members_in_the_middle(p, x):
    f = lambda w, out: jax.nn.relu(x @ w) @ out
    return jax.vmap(f, in_axes=1)(p["w"], p["out"])


@product(X, w="iob 7 12 3", out="- 12 5 3")
def members_last(p, x):
    f = lambda w, out: jax.nn.relu(x @ w) @ out
    return jax.vmap(f, in_axes=-1)(p["w"], p["out"])


@product(A(3, 4, 7), w="bio 3 7 12", out="- 3 12 5")
def members_with_data_of_their_own(p, x):
    return jax.vmap(lambda w, out, x: jax.nn.relu(x @ w) @ out)(p["w"], p["out"], x)


@product(X, w="bio 3 7 12", mid="bio 3 12 9", out="- 3 9 5")
def members_are_averaged(p, x):
    f = lambda w, mid, out: jnp.tanh(jnp.tanh(x @ w) @ mid) @ out
    return jax.vmap(f)(p["w"], p["mid"], p["out"]).mean(0)


@product(X, r="- 3 7", w="io 7 12", s="- 3 12", out="- 12 5")
def batch_ensemble(p, x):
    f = lambda r, s: ((x * r) @ p["w"]) * s
    return head(p, jax.vmap(f)(p["r"], p["s"]))


@product(A(3, 8, 4, 4), w="boiii 3 6 8 3 3", out="- 6 5")
def mapped_convolution(p, x):
    f = lambda x, w: lax.conv_general_dilated(x[None], w, (1, 1), "SAME")[0]
    return head(p, jax.vmap(f)(x, p["w"]).mean((-2, -1)))


# Convolutions.


def conv(x, w, layout, **options):
    strides = options.pop("strides", (1,) * (w.ndim - 2))
    padding = options.pop("padding", "SAME")
    return lax.conv_general_dilated(
        x, w, strides, padding, dimension_numbers=layout, **options
    )


@product(A(2, 7, 9), w="oii 12 7 3", out="- 12 5")
def convolution_of_one_axis(p, x):
    return head(p, conv(x, p["w"], ("NCW", "OIW", "NCW")).mean(-1))


@product(A(2, 6, 7, 8, 3), w="iiiio 2 3 3 3 11", out="- 11 5")
def convolution_of_three_axes(p, x):
    y = conv(x, p["w"], ("NDHWC", "DHWIO", "NDHWC"))
    return head(p, y.mean((1, 2, 3)))


@product(A(2, 9, 7), w="iio 3 7 12", out="- 12 5")
def dilated_convolution(p, x):
    y = conv(x, p["w"], ("NWC", "WIO", "NWC"), rhs_dilation=(2,))
    return head(p, y.mean(1))


@product(A(2, 9, 7), w="iio 3 7 12", out="- 12 5")
def fractionally_strided(p, x):
    y = conv(x, p["w"], ("NWC", "WIO", "NWC"), lhs_dilation=(2,), padding=[(2, 1)])
    return head(p, y.mean(1))


@product(A(2, 8, 8, 3), w="io 27 11", out="- 11 5")
def product_with_patches(p, x):
    y = lax.conv_general_dilated_patches(
        x, (3, 3), (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return head(p, (y @ p["w"]).mean((1, 2)))


@product(A(2, 9, 7), w="io 21 12", out="- 12 5")
def product_with_windows_by_gather(p, x):
    windows = x[:, np.arange(7)[:, None] + np.arange(3)].reshape(2, 7, 21)
    return head(p, (windows @ p["w"]).mean(1))


@product(A(2, 8, 8, 3), w="io 48 11", out="- 11 5")
def patches_by_reshape(p, x):
    x = x.reshape(2, 2, 4, 2, 4, 3).transpose(0, 1, 3, 2, 4, 5).reshape(2, 4, 48)
    return head(p, x @ p["w"])


@product(A(2, 9, 7), w="iio|bio? 3 7 12", out="- 12 5")
def convolution_as_shifted_products(p, x):
    x = jnp.pad(x, ((0, 0), (1, 1), (0, 0)))
    return head(p, sum(x[:, k : k + 9] @ p["w"][k] for k in range(3)))


@product(A(2, 9, 8), w="-? 3 8", w2="io 8 12", out="- 12 5")
def depthwise_as_shifted_products(p, x):
    x = jnp.pad(x, ((0, 0), (1, 1), (0, 0)))
    return head(p, sum(x[:, k : k + 9] * p["w"][k] for k in range(3)) @ p["w2"])


@product(A(2, 9, 8), w="-? 8 3", w2="io 8 12", out="- 12 5")
def depthwise_by_mapped_convolve(p, x):
    f = jax.vmap(lambda x, w: jnp.convolve(x, w, "same"), (1, 0), 1)
    return head(p, jax.vmap(f, (0, None))(x, p["w"]) @ p["w2"])


@product(A(2, 9, 8), w="-? 9 8", w2="io 8 12", out="- 12 5")
def long_filter_by_fourier(p, x):
    y = jnp.fft.rfft(x, 18, axis=1) * jnp.fft.rfft(p["w"], 18, axis=0)
    return head(p, jnp.fft.irfft(y, 18, axis=1)[:, :9] @ p["w2"])


@product(A(2, 3, 6), w="iob|ioi|ioo? 3 4 6", out="- 24 5")
def block_circulant(p, x):
    y = jnp.einsum("bik,iok->bok", jnp.fft.rfft(x), jnp.fft.rfft(p["w"]))
    return head(p, jnp.fft.irfft(y).reshape(2, -1))


@product(A(2, 6, 27), w="bio 6 27 11", out="- 11 5")
def locally_connected(p, x):
    return head(p, jnp.einsum("bpi,pio->bpo", x, p["w"]).mean(1))


@product(A(2, 6, 6, 4), w="iiio 3 3 4 24", out="- 6 5")
def pixel_shuffle(p, x):
    y = conv(x, p["w"], ("NHWC", "HWIO", "NHWC")).reshape(2, 6, 6, 2, 2, 6)
    return head(p, y.transpose(0, 1, 3, 2, 4, 5).reshape(2, 12, 12, 6).mean((1, 2)))


# Weights that are made of a parameter.


@product(X, **IO)
def reshaped_twice(p, x):
    return head(p, x @ p["w"].reshape(-1).reshape(7, 12))


@product(X, flat="-? 2 84", out="- 12 5")
def two_flat_weights(p, x):
    a, b = p["flat"].reshape(2, 7, 12)
    return head(p, x @ a + jnp.tanh(x @ b))


@product(X, **IO)
def lower_triangle(p, x):
    return head(p, x @ jnp.tril(p["w"]))


@product(X, **IO)
def constant_mask(p, x):
    mask = (np.arange(12) % 3) >= (np.arange(7) % 3)[:, None]
    return head(p, x @ (p["w"] * mask))


@product(X, **IO)
def where_of_a_constant_mask(p, x):
    mask = (np.arange(12) % 3) >= (np.arange(7) % 3)[:, None]
    return head(p, x @ jnp.where(mask, p["w"], 0))


@product(X, **SQUARE)
def symmetric(p, x):
    return head(p, x @ ((p["w"] + p["w"].T) / 2))


@product(X, **SQUARE)
def antisymmetric(p, x):
    return head(p, jnp.tanh(x @ (p["w"] - p["w"].T - 0.01 * jnp.eye(7))))


@product(X, **SQUARE)
def positive_definite(p, x):
    return head(p, x @ (p["w"] @ p["w"].T + jnp.eye(7)))


@product(X, **SQUARE)
def inverse(p, x):
    return head(p, x @ jnp.linalg.inv(p["w"]))


@product(X, **SQUARE)
def solve(p, x):
    return head(p, jnp.linalg.solve(p["w"], x.T).T)


@product(X, **SQUARE)
def triangular_solve(p, x):
    y = jax.scipy.linalg.solve_triangular(p["w"], x.T, lower=True)
    return head(p, y.T)


@product(X, w="io|oi? 12 7", out="- 7 5")
def orthogonal_by_qr(p, x):
    return head(p, x @ jnp.linalg.qr(p["w"])[0].T @ jnp.linalg.qr(p["w"])[0])


@product(X, **SQUARE)
def orthogonal_by_cayley(p, x):
    a, eye = p["w"] - p["w"].T, jnp.eye(7)
    return head(p, x @ jnp.linalg.solve(eye + a, eye - a))


@product(X, **SQUARE)
def orthogonal_by_expm(p, x):
    return head(p, x @ jax.scipy.linalg.expm(p["w"] - p["w"].T))


@product(X, w="io? 7 12", out="- 12 5")
def orthogonal_by_iteration(p, x):
    w = p["w"] / jnp.linalg.norm(p["w"])
    for _ in range(2):
        w = 1.5 * w - 0.5 * w @ w.T @ w
    return head(p, x @ w)


@product(X, w="io? 7 12", out="- 12 5")
def spectral_parts(p, x):
    u, s, v = jnp.linalg.svd(p["w"], full_matrices=False)
    return head(p, x @ (u * jnp.minimum(s, 1)) @ v)


@product(X, vs="-? 3 7", w="io 7 12", out="- 12 5")
def householder_reflections(p, x):
    for v in p["vs"]:
        x = x - 2 * (x @ v)[:, None] * v / (v @ v)
    return head(p, x @ p["w"])


@product(X, w="io? 7 12", out="- 12 5")
def spectral_norm_by_a_constant(p, x):
    u = jnp.ones(12) / 12
    v = p["w"] @ u
    sigma = v @ p["w"] @ u / jnp.linalg.norm(v)
    return head(p, x @ (p["w"] / sigma))


@product(A(2, 8, 8, 3), w="iiio 3 3 3 11", out="- 11 5")
def standardized_kernel(p, x):
    w = p["w"] - p["w"].mean((0, 1, 2), keepdims=True)
    w = w / (w.std((0, 1, 2), keepdims=True) + 1e-5)
    return head(p, conv(x, w, ("NHWC", "HWIO", "NHWC")).mean((1, 2)))


@product(X, **IO)
def normalized_columns(p, x):
    return head(p, x @ (p["w"] / jnp.linalg.norm(p["w"], axis=0)))


@product(X, **IO)
def positive_by_exp(p, x):
    return head(p, x @ jnp.exp(p["w"]))


@product(X, w="io? 7 12", out="- 12 5")
def stochastic_by_softmax(p, x):
    return head(p, x @ jax.nn.softmax(p["w"], 0))


@product(X, **IO)
def squared(p, x):
    return head(p, x @ p["w"] ** 2)


@product(X, **IO)
def binary_straight_through(p, x):
    w = p["w"] + lax.stop_gradient(jnp.sign(p["w"]) * jnp.abs(p["w"]).mean() - p["w"])
    return head(p, x @ w)


@product(X, **IO)
def ternary_straight_through(p, x):
    scale = jnp.abs(p["w"]).mean()
    q = jnp.clip(jnp.round(p["w"] / scale), -1, 1) * scale
    return head(p, x @ (p["w"] + lax.stop_gradient(q - p["w"])))


@product(A(4, 8), **{"w": "io 8 12", "out": "- 12 5"})
def quantized_in_groups(p, x):
    w = p["w"].reshape(2, 4, 12)
    s = jnp.abs(w).max(1, keepdims=True) / 7
    w = (jnp.round(w / s).astype(jnp.int8).astype(x.dtype) * s).reshape(8, 12)
    return head(p, x @ (p["w"] + lax.stop_gradient(w - p["w"])))


@product(X, **IO)
def stored_in_eight_bits(p, x):
    w = p["w"].astype(jnp.float8_e4m3fn).astype(x.dtype)
    return head(p, x @ w)


@product(X, step="-? 12", w="io 7 12", out="- 12 5")
def learned_step_size(p, x):
    w = jnp.round(jnp.clip(p["w"] / p["step"], -8, 7)) * p["step"]
    return head(p, x @ w)


@product(X, **IO)
def without_nans(p, x):
    return head(p, x @ jnp.nan_to_num(p["w"]))


@product(X, **IO)
def clipped(p, x):
    return head(p, x @ jnp.clip(p["w"], -1, 1))


@product(X, a="io 7 5", b="io 7 12", out="- 17 4")
def joined_along_outputs(p, x):
    return head(p, x @ jnp.concatenate([p["a"], p["b"]], 1))


@product(A(4, 12), a="io 5 9", b="io 7 9", out="- 9 4")
def joined_along_inputs(p, x):
    return head(p, x @ jnp.concatenate([p["a"], p["b"]]))


@product(A(4, 10), a="io? 3 4", b="io? 7 6", out="- 10 5")
def block_diagonal_of_two(p, x):
    return head(p, x @ jax.scipy.linalg.block_diag(p["a"], p["b"]))


@product(A(4, 12), w="bio? 3 4 5", out="- 15 6")
def block_diagonal_of_a_stack(p, x):
    return head(p, x @ jax.scipy.linalg.block_diag(*p["w"]))


@product(X, a="io? 7 12", b="io? 7 12", out="- 24 5")
def stacked_then_multiplied(p, x):
    w = jnp.stack([p["a"], p["b"]])
    return head(p, jnp.einsum("bi,kio->bko", x, w).reshape(4, 24))


@product(A(4, 9), w="io? 7 12", out="- 14 5")
def written_into_zeros(p, x):
    w = jnp.zeros((9, 14)).at[1:8, 1:13].set(p["w"])
    return head(p, x @ w)


@product(A(4, 9), w="io? 7 12", out="- 12 5")
def padded(p, x):
    return head(p, x @ jnp.pad(p["w"], ((1, 1), (0, 0))))


@product(X, w="io/2 7 12", out="- 6 5")
def cut_into_two_layers(p, x):
    a, b = jnp.split(p["w"], 2, 1)
    return head(p, (x @ a) * jnp.tanh(x @ b))


@product(A(4, 3), A(4, 4), w="io 7 12", out="- 12 5")
def cut_along_the_inputs(p, x, y):
    return head(p, x @ p["w"][:3] + y @ p["w"][3:])


@product(X, w="bio 2 7 12", out="- 12 5")
def stack_by_numbers(p, x):
    return head(p, (x @ p["w"][0]) * jnp.tanh(x @ p["w"][1]))


@product(X, re="io 7 12", im="io 7 12", out="- 12 5")
def complex_of_two(p, x):
    return head(p, jnp.abs(x @ (p["re"] + 1j * p["im"])))


@product(X, re="io 7 12", im="io 7 12", out="- 12 5")
def complex_by_lax(p, x):
    y = x.astype(jnp.complex64) @ lax.complex(p["re"], p["im"])
    return head(p, y.real + y.imag)


@product(A(4, 8), a="io? 2 3", b="io? 2 3", c="io? 2 3", d="io? 2 3", out="- 12 5")
def quaternion(p, x):
    a, b, c, d = (p[n] for n in "abcd")
    rows = [[a, b, c, d], [-b, a, -d, c], [-c, d, a, -b], [-d, -c, b, a]]
    return head(p, x @ jnp.block(rows))


@product(A(4, 7, 2), re="io 7 12", im="io 7 12", out="- 24 5")
def complex_by_hand(p, x):
    a, b = x[..., 0], x[..., 1]
    y = jnp.stack([a @ p["re"] - b @ p["im"], a @ p["im"] + b @ p["re"]], -1)
    return head(p, y.reshape(4, -1))


# Distances, and other semirings.


@product(X, c="-|oi? 9 7", out="- 9 5")
def distances_to_centres(p, x):
    d = ((x[:, None] - p["c"]) ** 2).sum(-1)
    return jnp.exp(-d) @ p["out"]


@product(X, c="-|oi? 9 7", out="- 9 5")
def distances_by_a_product(p, x):
    d = (x**2).sum(-1)[:, None] - 2 * x @ p["c"].T + (p["c"] ** 2).sum(-1)
    return jnp.exp(-d) @ p["out"]


@product(X, w="io 7 12", c="- 9 12")
def cosine_classifier(p, x):
    h = x @ p["w"]
    h = h / jnp.linalg.norm(h, axis=-1, keepdims=True)
    c = p["c"] / jnp.linalg.norm(p["c"], axis=-1, keepdims=True)
    return 16 * h @ c.T


@product(X, T(4), w="io 7 12", c="- 9 12")
def prototypes_by_distance(p, x, y):
    d = ((x @ p["w"])[:, None] - p["c"]) ** 2
    return jnp.take_along_axis(d.sum(-1), y[:, None], 1)


@product(X, mu="-|oi? 9 7", ls="-|oi? 9 7")
def gaussian_mixture(p, x):
    z = (x[:, None] - p["mu"]) * jnp.exp(-p["ls"])
    return jax.nn.logsumexp(-(z**2).sum(-1) - p["ls"].sum(-1), -1)


@product(A(4, 6, 7), T(4, 6), w="io|- 7 5", trans="- 5 5")
def random_field(p, x, y):
    u = x @ p["w"]

    def step(a, u):
        return jax.nn.logsumexp(a[:, :, None] + p["trans"], 1) + u, None

    u = jnp.moveaxis(u, 1, 0)
    z = jax.nn.logsumexp(lax.scan(step, u[0], u[1:])[0], -1)
    path = p["trans"][y[:, :-1], y[:, 1:]].sum(-1)
    return z - path


@product(A(4, 6, 5), trans="-|io? 5 5", emit="-|io? 5 8")
def hidden_markov(p, x):
    step = lambda a, u: (a @ jax.nn.softmax(p["trans"], -1) * jnp.exp(u), None)
    a, _ = lax.scan(step, jnp.ones((4, 5)) / 5, jnp.moveaxis(x, 1, 0))
    return jnp.log(a @ jax.nn.softmax(p["emit"], -1))


@product(X, w="io|-? 7 12", out="- 12 5")
def product_of_logarithms(p, x):
    return head(p, jax.nn.logsumexp(x[:, :, None] + p["w"], 1))


@product(X, w="io|-? 7 12", out="- 12 5")
def tropical_product(p, x):
    return head(p, (x[:, :, None] + p["w"]).max(1))


@product(X, w="io|-? 7 12", out="- 12 5")
def adder_layer(p, x):
    return head(p, -jnp.abs(x[:, :, None] - p["w"]).sum(1))


@product(X, w="io 7 12", s="-? 3 12", out="- 12 5")
def scale_summed_first(p, x):
    return head(p, x @ p["w"] * p["s"].sum(0))


@product(X, w="-? 7 7", out="- 7 5")
def diagonal_only(p, x):
    return head(p, jnp.einsum("bi,ii->bi", x, p["w"]))


@product(X, w="iio 7 6 12", out="- 12 5")
def splines(p, x):
    basis = jnp.maximum(0, 1 - jnp.abs(x[..., None] * 6 - jnp.arange(6.0)))
    return head(p, jnp.einsum("big,igo->bo", basis, p["w"]))


@product(X, b="io 7 12", w="io 24 9", out="- 9 5")
def learned_fourier_features(p, x):
    y = 2 * jnp.pi * x @ p["b"]
    return head(p, jnp.concatenate([jnp.sin(y), jnp.cos(y)], -1) @ p["w"])
