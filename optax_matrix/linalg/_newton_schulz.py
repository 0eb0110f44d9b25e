"""Polar factors by composed odd polynomials: Newton-Schulz and its Gram form."""

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, Float

from optax_matrix._arguments import check_dtype
from optax_matrix._platforms import by_platform
from optax_matrix.linalg import pallas
from optax_matrix.linalg.coefficients import JORDAN, YOU, Quintic, rows_for
from optax_matrix.linalg.products import Product, dot, precise_dot, traced_once
from optax_matrix.linalg.quintic_steps import (
    Kernel,
    dtype_of_factors,
    first_iterate,
    on_stacks,
    quintic_steps,
    with_narrow_factors,
)
from optax_matrix.linalg.scale import check_matrices, work_dtype


def newton_schulz(
    x: Float[Array, "*batch m n"],
    *,
    coefficients: Sequence[Sequence[float]] | np.ndarray = JORDAN,
    steps: int = 5,
    eps: ArrayLike = 1e-7,
    preconditioning: str = "frobenius",
    compute_dtype: DTypeLike | Literal["auto"] | None = None,
    kernel: str = "auto",
) -> Float[Array, "*batch m n"]:
    r"""Approximate the polar factor by a Newton-Schulz iteration.

    Each step applies an odd quintic to the singular values,

    .. math::
        X \leftarrow a X + (b A + c A^2) X, \qquad A = X X^\top,

    started from :math:`X / \|X\|_F`, with A formed on the short side of the matrix. On
    a CPU, in float32 or wider, large matrices (of side at least 64) with a long side of
    at least twice the short one use the Gram form of the same polynomials, which is
    equal up to rounding and faster there.

    Args:
        x: Matrices of shape ``(..., m, n)``.
        coefficients: Rows ``(a, b, c)``, one per step; the last one is repeated. The
            tables `YOU` and `POLAR_EXPRESS` come closer to the factor; in training
            they were level with the default or behind it ("Coefficients" in
            examples/study/pages/ablations.md).
        steps: Number of steps.
        eps: Added to the Frobenius norm, relative to the largest entry, so that
            the result does not depend on the scale of ``x``.
        preconditioning: What the first step starts from: ``"frobenius"`` as above;
            ``"aol"`` then divides each row of the short side by the root of the sum of
            the absolute values in its row of A, which brings the singular values
            closer to one, and the result a little away from the factor of ``x``. With
            it goes the table `AOL`, of four steps.
        compute_dtype: Dtype of the factors of the products, which accumulate in
            float32. ``"auto"``: bfloat16 on TPUs and on CUDA devices from compute
            capability 8.0, unless ``x`` is wider than float32, and the dtype of ``x``,
            but at least float32, elsewhere. None: that of the policy in force
            (``linalg.precision``), outside of `on_matrices` the dtype of ``x``.
        kernel: What forms the products: the compiler (``"xla"``), or, on Hopper GPUs,
            kernels that compute little more than half of each symmetric product
            (``"pallas"``; in bfloat16, or in float16 if ``compute_dtype`` says so).
            ``"auto"``: the kernels if the factors have 16 bits, one device holds the
            whole stack, its short side is at least 768 and a multiple of 256 and its
            long one of 64, and it has at least the work of 36 matrices with a short
            side of 768; the compiler elsewhere. On an H200 five steps took 0.65 to 0.82
            of the compiler's time then (0.68 for 48 of 768 x 768, 0.82 for 36 of 768 x
            3072, when both formed ``a X`` apart; now 0.69 for 4 of 4096 x 4096); they
            differ from its result by rounding to bfloat16. Under differentiation,
            values and derivatives are those of ``"xla"``.

    Note:
        With None, accelerators compute float32 products in TF32 or bfloat16 unless
        ``jax_default_matmul_precision`` is set.

    Returns:
        Matrices of the shape and dtype of ``x``; a zero matrix gives zero.

    Raises:
        ValueError: If ``coefficients``, ``steps``, ``preconditioning`` or ``kernel`` is
            malformed, ``compute_dtype`` has eight bits, or with ``kernel="pallas"`` the
            platform, ``compute_dtype`` or this version of JAX has no kernel.

    Examples:
        >>> x = jnp.array([[3.0, 0.0, 0.0], [0.0, 0.0, -2.0]])
        >>> q = newton_schulz(x, coefficients=[(1.5, -0.5, 0.0)], steps=12)
        >>> print(q.round(3))
        [[ 1.  0.  0.]
         [ 0.  0. -1.]]

    References:
        Jordan et al., `Muon <https://kellerjordan.github.io/posts/muon/>`_, 2024.
        Deviations: ``eps`` is relative to the scale of the matrix; the authors iterate
        in bfloat16, see ``compute_dtype``; in 16 bits a step is ``(a I + b A + c A A)
        X``, which has half the error of a sum with ``a X``. ``"aol"`` is `Turbo-Muon
        <https://arxiv.org/abs/2512.04632>`_, as `optax.contrib.muon` has it.
    """
    check_matrices(x)
    rows = rows_for(coefficients, steps)
    if kernel not in ("auto", "xla", "pallas"):
        raise ValueError(
            f"`kernel` must be 'auto', 'xla' or 'pallas', got {kernel!r}; pass one of "
            "these names."
        )
    if preconditioning not in ("frobenius", "aol"):
        raise ValueError(
            "`preconditioning` must be 'frobenius' or 'aol', got "
            f"{preconditioning!r}; pass one of these names."
        )
    compute_dtype = dtype_of_factors(compute_dtype, kernel)
    if kernel == "pallas":
        pallas.check(x, jnp.dtype(compute_dtype))
    if compute_dtype != "auto":
        compute_dtype = jnp.dtype(compute_dtype or work_dtype(x.dtype))
    static = {"rows": tuple(rows), "dtype": compute_dtype, "kernel": kernel}
    return _composed(x, eps, **static, aol=preconditioning == "aol")


@partial(traced_once, static_argnames=("rows", "dtype", "kernel", "aol"))
def _composed(
    x: Array,
    eps: ArrayLike,
    rows: tuple[Quintic, ...],
    dtype: Any,
    kernel: str,
    aol: bool,
) -> Array:
    """The composed polynomials with factors in a dtype, or in that of the platform."""
    if not x.size:
        return x
    if dtype == "auto":
        form = partial(_composed, rows=rows, kernel=kernel, aol=aol)
        return with_narrow_factors(lambda x, dtype: form(x, eps, dtype=dtype), x)

    def iterated(x: Array, steps: pallas.Form) -> Array:
        y, transposed = first_iterate(x, eps, dtype, aol)
        y = steps(y, rows)
        return (y.mT if transposed else y).astype(x.dtype)

    def by_xla(x: Array, symmetric_dot: Product) -> Array:
        return iterated(x, partial(quintic_steps, symmetric_dot=symmetric_dot))

    gram = _gram_kernel(rows, (2,), eps, dtype, aol)
    safe = dtype.itemsize >= 4 and max(x.shape[-2:]) >= 2 * min(x.shape[-2:])
    cpu_kernel = gram if safe else by_xla
    compiled = lambda x: on_stacks(by_xla, x, dot, cpu_kernel=cpu_kernel)
    takes_kernels = kernel == "pallas" or (kernel == "auto" and pallas.gains(x, dtype))
    steps = pallas.on_hopper(x, dtype) if takes_kernels else None
    default = pallas.refuse if kernel == "pallas" else compiled
    return by_platform(default, x, cuda=steps and partial(iterated, steps=steps))


def gram_newton_schulz(
    x: Float[Array, "*batch m n"],
    *,
    coefficients: Sequence[Sequence[float]] | np.ndarray = YOU,
    steps: int = 5,
    restarts: Sequence[int] = (2,),
    eps: ArrayLike = 1e-7,
    compute_dtype: DTypeLike | None = None,
) -> Float[Array, "*batch m n"]:
    r"""Approximate the polar factor by iterating on the small Gram matrix.

    The polynomials of :func:`newton_schulz` are accumulated in a square factor,

    .. math::
        Z = b R + c R^2, \quad Q \leftarrow Q (a I + Z), \quad
        R \leftarrow (a I + Z) R (a I + Z), \qquad R_0 = X X^\top,

    so that the long side enters only at the start, at restarts and at the end
    (:math:`X \leftarrow Q X`). With plain products this saves work if ``n >= 1.5 m``.

    It is unsafe in bfloat16, even with the restart, since the Gram matrix squares the
    condition number: with products rounded to bfloat16, singular values of 3 to 10 were
    observed. In float16, with the restart and the table `JORDAN`, none was above 1.223
    (1.203 without rounding) on hard matrices of any scale, and results were closer to
    the iteration than those of :func:`newton_schulz` in bfloat16 where the matrix had
    full rank (emulated on a CPU; ``tests/linalg/test_gram_in_float16.py``).

    Args:
        x: Matrices of shape ``(..., m, n)``.
        coefficients: Rows ``(a, b, c)``, one per step; the last one is repeated.
        steps: Number of steps.
        restarts: Indices of the steps before which ``X`` and its Gram matrix are
            recomputed, which stops the growth of rounding errors in ``R``.
        eps: As in :func:`newton_schulz`.
        compute_dtype: Dtype of the factors, float32 or float16; None for that of ``x``,
            whatever the policy. The products that form the factor are computed in TF32
            or three bfloat16 passes.

    Returns:
        Matrices of the shape and dtype of ``x``; a zero matrix gives zero.

    Raises:
        ValueError: If ``coefficients`` or ``steps`` is malformed, or ``compute_dtype``
            has eight bits.

    Examples:
        >>> x = jnp.array([[3.0, 0.0, 0.0], [0.0, 0.0, -2.0]])
        >>> q = gram_newton_schulz(x, coefficients=[(1.5, -0.5, 0.0)], steps=12)
        >>> print(q.round(3))
        [[ 1.  0.  0.]
         [ 0.  0. -1.]]

    References:
        Dao AI Lab, `Gram Newton-Schulz
        <https://dao-ailab.github.io/blog/2026/gram-newton-schulz/>`_, 2026.
    """
    check_matrices(x)
    if compute_dtype is not None:
        check_dtype("compute_dtype", compute_dtype)
    dtype = jnp.dtype(compute_dtype or work_dtype(x.dtype))
    rows = rows_for(coefficients, steps)
    kernel = _gram_kernel(rows, restarts, eps, dtype)
    return on_stacks(kernel, x, precise_dot, cpu_kernel=kernel)


def _gram_kernel(
    rows: Sequence[Quintic],
    restarts: Sequence[int],
    eps: ArrayLike,
    dtype: DTypeLike,
    aol: bool = False,
) -> Kernel:
    pieces = _split(rows, restarts)

    def kernel(x: Array, symmetric_dot: Product) -> Array:
        y, transposed = first_iterate(x, eps, dtype, aol)
        for piece in pieces:
            q = _accumulate(y, piece, symmetric_dot)
            y = dot(q, y).astype(dtype)
        return (y.mT if transposed else y).astype(x.dtype)

    return kernel


def _split(rows: Sequence[Quintic], restarts: Sequence[int]) -> list[Sequence[Quintic]]:
    """Split the table at the restarts."""
    cuts = sorted({0, len(rows), *(i for i in restarts if 0 < i < len(rows))})
    return [rows[i:j] for i, j in itertools.pairwise(cuts)]


def _accumulate(y: Array, rows: Sequence[Quintic], symmetric_dot: Product) -> Array:
    """Return the factor Q for which ``Q y`` is ``y`` after all steps of ``rows``."""
    dtype = y.dtype
    r = symmetric_dot(y, y.mT).astype(dtype)
    q = None
    for i, (a, b, c) in enumerate(rows):
        z = (b * r + c * symmetric_dot(r, r)).astype(dtype)
        # `a I` is not added to Z: Q and R need the entries of Z by themselves.
        if q is None:
            q = z + a * jnp.broadcast_to(jnp.eye(z.shape[-1], dtype=dtype), z.shape)
        else:
            q = (a * q + symmetric_dot(q, z)).astype(dtype)
        if i + 1 < len(rows):
            t = (a * r + symmetric_dot(r, z)).astype(dtype)
            r = (a * t + symmetric_dot(z, t)).astype(dtype)
    assert q is not None
    return q
