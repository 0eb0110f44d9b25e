"""A layer's gradients are computed together, so that its activations can be freed."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array

from optax_matrix.matrices.use.models import is_linen, is_nnx


def tie(*trees: Any) -> tuple[Any, ...]:
    r"""Returns its arguments; the backward pass computes all their gradients together.

    Optimizers that stack equal matrices use the gradients of all layers at once, at the
    end of the step. Nothing else needs them, so XLA may compute most of them there and
    keep the activations of every layer until then, which undoes rematerialization. If
    the input of a layer and its parameters are tied,

    .. math::
        x, W = \mathrm{tie}(x, W), \qquad y = f(W, x),

    then :math:`\partial L / \partial x` is passed on to the layer below only when
    :math:`\partial L / \partial W` is there, and the activations of the layer are free.
    Values and gradients stay as they are, bit for bit, except where XLA rounds a fused
    operation in another way. Tie the layers of a Python loop; those of `jax.lax.scan`
    do not need it.

    Derivatives of any order may be taken, forward and backward, under every
    transformation of JAX. Only arrays of floating-point or complex numbers are tied,
    and of these only those of which a derivative is taken: gradients of frozen
    parameters are not computed. Everything else is returned as it is.

    Args:
        *trees: Trees of arrays, two or more: the input of a layer and its parameters.
            A layer may be an Equinox module. Of an NNX module give
            ``nnx.state(layer, nnx.Param)``, and put what is returned back by
            ``nnx.update``.

    Returns:
        The trees, in a tuple.

    Raises:
        ValueError: If there are fewer than two trees, or one of them holds a module of
            NNX or Linen.

    Note:
        In `jax.shard_map` with ``check_vma=True``, JAX before 0.12 does not let values
        that vary over different mesh axes wait for one another: only those that vary
        over the same axes are tied.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> import optax_matrix as om
        >>> def loss(layers, x):
        ...     for kernel in layers:
        ...         x, kernel = om.sharding.tie(x, kernel)
        ...         x = jnp.tanh(x @ kernel)
        ...     return x.sum()
        >>> layers = [jnp.eye(3), jnp.eye(3)]
        >>> gradients = jax.grad(loss)(layers, jnp.ones(3))
    """
    if len(trees) < 2:
        raise ValueError(
            "`trees` must be two or more, the input of a layer and its parameters, got "
            f"{len(trees)}; write x, params = tie(x, params)."
        )
    for x in jax.tree.leaves(trees, is_leaf=is_nnx):
        _refuse_module(x)
    leaves, structure = jax.tree.flatten(trees)
    chosen = [i for i, x in enumerate(leaves) if _has_gradient(x)]
    tied = _tied([leaves[i] for i in chosen])
    for i, x in zip(chosen, tied, strict=True):
        leaves[i] = x
    return structure.unflatten(leaves)


def _refuse_module(x: Any) -> None:
    if is_nnx(x):
        raise ValueError(
            "`trees` must hold no NNX module, as its copy would not update the state "
            f"of the module, got {type(x).__name__}; tie nnx.state(layer, nnx.Param), "
            "and put the result back by nnx.update(layer, ...)."
        )
    if is_linen(x):
        raise ValueError(
            "`trees` must hold no Linen module, which does not contain its parameters, "
            f"got {type(x).__name__}; tie the parameters that you give to `apply`, or "
            "inside a module use nn.custom_vjp, as the guide to sharding shows."
        )


def _has_gradient(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jnp.inexact)


@jax.custom_jvp
def _tied(arrays: list[Array]) -> list[Array]:
    return arrays


def _tied_tangents(primals: Any, tangents: Any) -> tuple[list[Array], list[Any]]:
    """Tangents pass a barrier, whose transpose is one of the cotangents.

    A tangent that is zero by its type stays so, as its cotangent is not computed.
    """
    (arrays,), (found,) = primals, tangents
    together: dict[Any, list[int]] = {}
    for i, tangent in enumerate(found):
        if not isinstance(tangent, SymbolicZero):
            together.setdefault(_axes_of(tangent), []).append(i)
    out = list(found)
    for indices in together.values():
        behind = jax.lax.optimization_barrier([found[i] for i in indices])
        for i, tangent in zip(indices, behind, strict=True):
            out[i] = tangent
    return arrays, out


def _axes_of(x: Any) -> Any:
    """What barriers distinguish: in JAX before 0.12, the mesh axes x varies over."""
    if jax.__version_info__ >= (0, 12):
        return None
    kind = jax.typeof(x)
    return getattr(kind, "vma", None) or getattr(kind, "manual_axis_type", None)


_tied.defjvp(_tied_tangents, symbolic_zeros=True)
