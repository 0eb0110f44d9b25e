"""Initialization of the matrices of any parameter tree.

POET preserves the singular values of the initial weights, so the initializer determines
them for the whole training (Sec. 4 and Appendix C): with the ratio r of outputs to
inputs, those of normalized rows lie between ``|1 - sqrt(r)|`` and ``1 + sqrt(r)``.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array

from optax_matrix.linalg import qr_householder
from optax_matrix.stacks.map_matrices import map_matrices

Shape = tuple[int, int]  # (out, in): each row belongs to an output neuron.


def _normal(key: Any, shape: Shape) -> Array:
    return jax.random.normal(key, shape, jnp.float32)


def _standard(key: Any, shape: Shape, dtype: DTypeLike) -> Array:
    """Normal entries of standard deviation 0.02 for every shape."""
    return (0.02 * _normal(key, shape)).astype(dtype)


def _xavier(key: Any, shape: Shape, dtype: DTypeLike) -> Array:
    """Normal entries of variance 2 / (out + in)."""
    return (math.sqrt(2 / sum(shape)) * _normal(key, shape)).astype(dtype)


def _uniform_spectrum(key: Any, shape: Shape, dtype: DTypeLike) -> Array:
    """Uniform among the matrices whose singular values are one.

    The Q of a Gaussian matrix has the same distribution as the factor of the SVD in the
    POET paper (Sec. 4).
    """
    x = _normal(key, shape)
    wide = shape[0] < shape[1]
    q = qr_householder(x.mT if wide else x)
    return (q.mT if wide else q).astype(dtype)


def _normalized(key: Any, shape: Shape, dtype: DTypeLike) -> Array:
    """Rows that are uniform on the unit sphere."""
    x = _normal(key, shape)
    return (x / jnp.linalg.norm(x, axis=-1, keepdims=True)).astype(dtype)


INITIALIZERS: dict[str, Callable[[Any, Shape, Any], Array]] = {
    "standard": _standard,
    "xavier": _xavier,
    "uniform_spectrum": _uniform_spectrum,
    "normalized": _normalized,
}
"""The initializers by name."""


def initialize_matrices(
    params: Any,
    key: Any,
    initializer: str | Callable[[Any, Shape, Any], Array] = "normalized",
    *,
    dimension_numbers: Any = None,
) -> Any:
    """Draws new matrices for a parameter tree; other leaves stay as they are.

    Every matrix is drawn as ``(out, in)``, with a row for each output neuron, for any
    order of layers, heads, inputs and outputs in the leaf. Each matrix has its own key:
    the path of the leaf and the index of the matrix in the leaf are folded into `key`.
    So a draw does not depend on other leaves. Dtypes and shardings stay the same.

    To normalize trained weights, see the example of `stacks.map_matrices`.

    Args:
        params: Parameters: a dict, an NNX state, Linen variables, ...
        key: Random key.
        initializer: ``"normalized"`` (rows of norm one), ``"standard"`` (0.02),
            ``"xavier"``, ``"uniform_spectrum"`` (all singular values one), or any
            function ``initializer(key, (in, out), dtype)``, such as those of
            `jax.nn.initializers`, whose result is transposed.
        dimension_numbers: Which leaves are matrices, as in `on_matrices`.

    Returns:
        The tree with new matrices.

    Raises:
        ValueError: If the initializer is unknown, or the key is no random key.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> params = {"kernel": jnp.zeros((64, 8)), "bias": jnp.zeros(8)}
        >>> new = initialize_matrices(params, jax.random.key(0))
        >>> jnp.linalg.norm(new["kernel"], axis=0).round(3).tolist()[:3]  # (in, out)
        [1.0, 1.0, 1.0]

    References:
        Qiu et al., `Reparameterized LLM Training via Orthogonal Equivalence
        Transformation <https://arxiv.org/abs/2506.08001>`_, 2025, Sec. 4, Table 3.
    """
    draw = _find(initializer)
    if not isinstance(key, jax.Array | np.ndarray) or key.ndim > 1:
        raise ValueError(
            f"`key` must be a random key, got {key!r}; pass jax.random.key(0)."
        )

    def new(matrices: Array, ids: Array, key: Any) -> Array:
        def one(numbers):
            own = jax.random.fold_in(jax.random.fold_in(key, numbers[0]), numbers[1])
            return draw(own, (matrices.shape[1], matrices.shape[2]), matrices.dtype)

        # Adds the empty sum, zero. `jax.jit` drops arguments that are not used, and
        # with the old weights it would lose their devices.
        return jax.vmap(one)(ids) + matrices[:0].sum()

    return map_matrices(new, params, key, dimension_numbers=dimension_numbers)


def _drawn(initializer: Any, key: Any, shape: Shape, dtype: Any) -> Array:
    """The matrix that a user's function draws; raises if it returns something else."""
    new = initializer(key, shape, dtype)
    if getattr(new, "shape", None) != tuple(shape):
        raise ValueError(
            f"`initializer` must return an array of shape {tuple(shape)}, got {new!r}; "
            "those of jax.nn.initializers are made by a call: lecun_normal()."
        )
    return new


def _find(initializer: Any) -> Any:
    if callable(initializer):
        return lambda key, shape, dtype: _drawn(initializer, key, shape[::-1], dtype).T
    if initializer not in INITIALIZERS:
        raise ValueError(
            f"`initializer` must be one of {', '.join(map(repr, INITIALIZERS))} or a "
            f"function of key, shape and dtype, got {initializer!r}."
        )
    return INITIALIZERS[initializer]
