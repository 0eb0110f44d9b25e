"""Low-rank adapters (LoRA) of the change of weights by fine-tuning, and back."""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array

from optax_matrix._arguments import PositiveInt, checked
from optax_matrix._paths import map_named, named_leaves
from optax_matrix.linalg import lapack
from optax_matrix.linalg.products import full_dot
from optax_matrix.linalg.scale import unit_peak, work_dtype
from optax_matrix.matrices.decisions import decide, views_of
from optax_matrix.matrices.view import MatrixView


class Adapter(NamedTuple):
    """The factors of the change of a kernel, in Flax's orientation: ``kernel + a @ b``.

    Attributes:
        a: ``(..., in, r)``, ``lora_a`` of `flax.nnx.LoRA`. Its columns are orthogonal.
        b: ``(..., r, out)``, ``lora_b``. Its rows are orthogonal; each has the norm of
            the corresponding column of ``a``, in descending order.
    """

    a: Array
    b: Array


@checked
def extract_adapter(
    before: Any,
    after: Any,
    rank: PositiveInt | None = None,
    *,
    dimension_numbers: Any = None,
) -> dict[str, Adapter]:
    r"""Finds the adapters of rank r that are closest to the change by fine-tuning.

    .. math::
        \min_{A, B} \| W_{after} - W_{before} - A B \|_F^2

    by a singular value decomposition. If the rank of the difference is at most r, as
    with GaLore and SUMO between two refreshes, the adapters equal it up to rounding.

    Args:
        before: Parameters: a dict, an NNX state, Linen variables, ...
        after: The parameters after fine-tuning.
        rank: The rank r, at most the shorter side. None: for each leaf the numerical
            rank of its difference, given the rounding of the weights (of a leaf of
            several matrices, the largest); this requires concrete arrays.
        dimension_numbers: Which leaves are matrices, as in `on_matrices`. Axes that are
            merged there (heads) are merged in the factors. A fused kernel has one pair
            of factors.

    Returns:
        By path, an `Adapter` for each matrix leaf, at least float32, with the leaf's
        batch axes (layers, experts) in front.

    Note:
        Changes of other leaves (norms, biases) are not included. Leaves on several
        devices are gathered, one at a time.

    Raises:
        ValueError: If the trees differ in paths or shapes, or ``rank`` is out of range.

    Examples:
        >>> import jax.numpy as jnp
        >>> before = {"kernel": jnp.ones((3, 2))}  # (in, out)
        >>> after = {"kernel": jnp.ones((3, 2)).at[0, 1].add(4.0)}
        >>> adapter = extract_adapter(before, after, rank=1)["kernel"]
        >>> (adapter.a @ adapter.b).round(3).tolist()
        [[0.0, 4.0], [0.0, 0.0], [0.0, 0.0]]

    References:
        SUMO, Appendix B. Deviation: it proposes gradient descent on the factors.
    """
    old, new = named_leaves(before), named_leaves(after)
    shapes = [{p: np.shape(x) for p, x in tree.items()} for tree in (old, new)]
    if shapes[0] != shapes[1]:
        differing = sorted({p for p, _ in shapes[0].items() ^ shapes[1].items()})
        raise ValueError(
            "`after` must have the paths and shapes of `before`; they differ in "
            f"{', '.join(differing[:3])}."
        )
    decisions = decide(before, dimension_numbers)
    adapters = {}
    for path, leaf in old.items():
        view = decisions[path].view
        if view is not None:
            adapters[path] = _factors(view, _whole(leaf), _whole(new[path]), rank)
    return adapters


def apply_adapter(
    params: Any,
    adapters: Mapping[str, Adapter],
    *,
    scale: ArrayLike = 1.0,
    dimension_numbers: Any = None,
) -> Any:
    """Adds adapters to the parameters that they were extracted from, or to others.

    Args:
        params: Parameters.
        adapters: Adapters by path, as from `extract_adapter`.
        scale: Factor of the change; -1 reverts it.
        dimension_numbers: As in `extract_adapter`.

    Returns:
        The tree with the changed kernels; dtypes and shardings stay the same.

    Raises:
        ValueError: If there is no such matrix or its shape does not match.

    Examples:
        >>> import jax.numpy as jnp
        >>> factors = Adapter(jnp.ones((3, 1)), jnp.ones((1, 2)))
        >>> params = {"kernel": jnp.ones((3, 2)), "bias": jnp.ones(2)}
        >>> float(apply_adapter(params, {"kernel": factors})["kernel"][0, 0])
        2.0
    """
    views = views_of(decide(params, dimension_numbers))
    if unknown := sorted(set(adapters) - set(views)):
        raise ValueError(
            f"`adapters` must be for matrices of `params`, got {unknown[:3]}; if "
            "`params` has the leaf, pass the `dimension_numbers` of its extraction."
        )

    def add(path: str, leaf: Any) -> Any:
        if path not in adapters:
            return leaf
        change = scale * _change(path, views[path], adapters[path])
        if isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer):
            change = jax.device_put(change, leaf.sharding)
        return (leaf + change).astype(leaf.dtype)

    with jax.numpy_dtype_promotion("standard"):
        return map_named(add, params)


def _factors(view: MatrixView, old: Array, new: Array, rank: int | None) -> Adapter:
    u, s, vt = _decomposed(view, old, new)
    if rank is not None and rank > s.shape[-1]:
        raise ValueError(
            f"`rank` must be at most {s.shape[-1]}, the shorter side of a matrix of "
            f"shape {view.shape}, got {rank}; pass None for the rank of the change."
        )
    if rank is None:
        rank = _numerical_rank(s, new, (view.rows, view.cols))
    root = jnp.sqrt(s[..., :rank])
    a = u[..., :rank] * root[..., None, :]
    b = root[..., None] * vt[..., :rank, :]
    batch = tuple(view.shape[i] for i in view.batch_axes)
    return Adapter(*(x.reshape(*batch, *x.shape[-2:]) for x in (a, b)))


@functools.partial(jax.jit, static_argnums=0)
def _decomposed(view: MatrixView, old: Array, new: Array) -> tuple[Array, Array, Array]:
    wide = work_dtype(new.dtype)
    change = (new.astype(wide) - old.astype(wide))[None]
    # Views are (batch, out, in), as in the papers; kernels and adapters are (in, out).
    scaled, peak = unit_peak(_unsplit(view).to_matrices(change)[0].mT)
    u, s, vt = lapack.svd(scaled)
    return u, peak[..., 0] * s, vt


def _numerical_rank(s: Array, weights: Array, sides: tuple[int, int]) -> int:
    """The largest number of singular values above the rounding of the weights.

    Rounding adds noise of at most half an ulp to each weight. The spectral norm of such
    a random matrix is the size of an entry times the sum of the square roots of its
    sides.
    """
    ulp = float(jnp.finfo(weights.dtype).eps) * float(jnp.abs(weights).max())
    noise = ulp * sum(math.sqrt(side) for side in sides)
    return max(1, int((s > noise).sum(-1).max()))


def _change(path: str, view: MatrixView, adapter: Adapter) -> Array:
    batch = tuple(view.shape[i] for i in view.batch_axes)
    a, b = adapter
    r = a.shape[-1]
    if a.shape != (*batch, view.cols, r) or b.shape != (*batch, r, view.rows):
        raise ValueError(
            f"`adapters` for {path!r} must be factors of shapes "
            f"{(*batch, view.cols, 'r')} and {(*batch, 'r', view.rows)}, got "
            f"{a.shape} and {b.shape}."
        )
    change = full_dot(a, b).reshape(-1, view.cols, view.rows).mT
    return _unsplit(view).from_matrices([change])[0]


def _unsplit(view: MatrixView) -> MatrixView:
    """The view without sections, since a fused kernel has one pair of factors."""
    return dataclasses.replace(view, output_sections=1, reduction_sections=1)


def _whole(leaf: Any) -> Array:
    concrete = isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer)
    several = concrete and len(leaf.sharding.device_set) > 1
    return jnp.asarray(np.asarray(leaf) if several else leaf)
