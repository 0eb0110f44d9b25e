"""Low-rank adapters of what fine-tuning has changed, and back."""

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

from optax_matrix.arguments import check_positive_int
from optax_matrix.layout import MatrixView, resolve
from optax_matrix.layout.paths import map_named, named_leaves
from optax_matrix.linalg import lapack
from optax_matrix.linalg.products import full_dot
from optax_matrix.linalg.scale import unit_peak, work_dtype


class Adapter(NamedTuple):
    """The factors of a change of a kernel, in Flax's orientation: ``kernel + a @ b``.

    Attributes:
        a: ``(..., in, r)``, which is ``lora_a`` of `flax.nnx.LoRA`; columns orthogonal.
        b: ``(..., r, out)``, ``lora_b``; rows orthogonal, each as long as its column
            of ``a``, the longest first.
    """

    a: Array
    b: Array


def extract_adapter(
    before: Any, after: Any, rank: int | None = None, *, dimension_numbers: Any = None
) -> dict[str, Adapter]:
    r"""Finds the adapters of rank r that come closest to what fine-tuning has changed.

    .. math::
        \min_{A, B} \| W_{after} - W_{before} - A B \|_F^2

    by a singular value decomposition. They are the difference itself, up to rounding,
    where that has no larger rank: as with GaLore and SUMO between two refreshes.

    Args:
        before: Parameters: a dict, an NNX state, Linen variables, ...
        after: The same after fine-tuning.
        rank: Number r of columns, clipped to the shorter side; None for the rank of
            each leaf's difference (of its matrices, the largest) above its rounding,
            which needs concrete arrays.
        dimension_numbers: Which leaves are matrices, as in `on_matrices`. Axes that are
            merged there (heads) are merged in the factors; fused kernels have one pair.

    Returns:
        By path, an `Adapter` for each matrix leaf, at least float32, with the leaf's
        batch axes (layers, experts) in front. What became of other leaves (norms,
        biases) is not in it. Leaves on several devices are gathered, one at a time.

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
        SUMO, Appendix B, which proposes gradient descent on the factors.
    """
    if rank is not None:
        check_positive_int("rank", rank)
    old, new = named_leaves(before), named_leaves(after)
    shapes = [{p: np.shape(x) for p, x in tree.items()} for tree in (old, new)]
    if shapes[0] != shapes[1]:
        differing = sorted({p for p, _ in shapes[0].items() ^ shapes[1].items()})
        raise ValueError(
            "`after` must have the paths and shapes of `before`; they differ in "
            f"{', '.join(differing[:3])}."
        )
    resolved = resolve(dimension_numbers, before)
    adapters = {}
    for path, leaf in old.items():
        view = resolved[path].view
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
    """Adds adapters to the parameters that they were extracted for, or to others.

    Args:
        params: Parameters.
        adapters: Adapters by path, as from `extract_adapter`.
        scale: Factor of the change; -1 takes it back.
        dimension_numbers: As in `extract_adapter`.

    Returns:
        The tree with changed kernels, in their dtypes and shardings.

    Raises:
        ValueError: If there is no such matrix or its shape is another.

    Examples:
        >>> import jax.numpy as jnp
        >>> factors = Adapter(jnp.ones((3, 1)), jnp.ones((1, 2)))
        >>> params = {"kernel": jnp.ones((3, 2)), "bias": jnp.ones(2)}
        >>> float(apply_adapter(params, {"kernel": factors})["kernel"][0, 0])
        2.0
    """
    resolved = resolve(dimension_numbers, params)
    views = {path: r.view for path, r in resolved.items() if r.view is not None}
    if unknown := sorted(set(adapters) - set(views)):
        raise ValueError(
            f"`adapters` must be for matrices of `params`, got {unknown[:3]}; if the "
            "leaf is there, give the `dimension_numbers` that it was extracted with."
        )

    def add(path: str, leaf: Any) -> Any:
        if path not in adapters:
            return leaf
        change = scale * _change(path, views[path], adapters[path])
        if isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer):
            change = jax.device_put(change, leaf.sharding)
        return (leaf + change).astype(leaf.dtype)

    return map_named(add, params)


def _factors(view: MatrixView, old: Array, new: Array, rank: int | None) -> Adapter:
    u, s, vt = _decomposed(view, old, new)
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
    # (batch, out, in) of the papers; kernels and adapters are (in, out).
    scaled, peak = unit_peak(_unsplit(view).to_matrices(change)[0].mT)
    u, s, vt = lapack.svd(scaled)
    return u, peak[..., 0] * s, vt


def _numerical_rank(s: Array, weights: Array, sides: tuple[int, int]) -> int:
    """The largest number of singular values that rounding the weights cannot make.

    Rounding is noise of at most half an ulp of each weight; as a random matrix its norm
    is the size of an entry times the sum of the roots of its sides.
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
            f"`adapters` must hold for {path!r} factors of shapes "
            f"{(*batch, view.cols, 'r')} and {(*batch, 'r', view.rows)}, got "
            f"{a.shape} and {b.shape}."
        )
    change = full_dot(a, b).reshape(-1, view.cols, view.rows).mT
    return _unsplit(view).from_matrices([change])[0]


def _unsplit(view: MatrixView) -> MatrixView:
    """The view without sections: the factors of a fused kernel are one pair."""
    return dataclasses.replace(view, output_sections=1, reduction_sections=1)


def _whole(leaf: Any) -> Array:
    concrete = isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer)
    several = concrete and len(leaf.sharding.device_set) > 1
    return jnp.asarray(np.asarray(leaf) if several else leaf)
