"""The dtypes in which a transformation runs and returns its updates."""

from typing import Any

import jax
import optax

from optax_matrix._arguments import checked
from optax_matrix.linalg.scale import widened
from optax_matrix.transforms.arguments import Transformation


def with_dtypes_of(old: Any, new: Any) -> Any:
    """A tree in the dtypes of an old one of its structure, such as a state's."""

    def cast(x: Any, y: Any) -> Any:
        wanted = getattr(x, "dtype", None)  # A Python number has none.
        return y if wanted in (None, getattr(y, "dtype", None)) else y.astype(wanted)

    return jax.tree.map(cast, old, new)


@checked
def in_float32(inner: Transformation) -> optax.GradientTransformationExtraArgs:
    """Runs a transformation in float32 where the updates are in half precision.

    optax keeps second moments in the parameters' dtype; with a decay of 0.999 a
    bfloat16 moment stops following its input. Here the state is float32 (float64 for
    float64 parameters), and the updates are cast back to the dtype they came in.

    Args:
        inner: The transformation to run.

    Returns:
        A transformation with the state of ``inner``, at least float32.

    Raises:
        ValueError: If ``inner`` is not a transformation.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax
        >>> import optax_matrix as om
        >>> tx = om.transforms.in_float32(optax.scale_by_rms(0.999))
        >>> tx.init({"w": jnp.ones((2, 2), jnp.bfloat16)}).nu["w"].dtype
        dtype('float32')
    """
    inner = optax.with_extra_args_support(inner)

    def widen(tree: Any) -> Any:
        return jax.tree.map(widened, tree)

    def init_fn(params):
        return inner.init(widen(params))

    def update_fn(updates, state, params=None, **extra_args):
        wide, state = inner.update(widen(updates), state, widen(params), **extra_args)
        updates = jax.tree.map(lambda new, old: new.astype(old.dtype), wide, updates)
        return updates, state

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


@checked
def keep_dtype(inner: Transformation) -> optax.GradientTransformationExtraArgs:
    """Runs a transformation and casts its updates to the dtype of the parameters.

    For example, a traced learning rate is a float32 array, which promotes bfloat16
    updates to float32. Without parameters the dtype is that of the incoming updates.

    Args:
        inner: The transformation to run.

    Returns:
        A transformation with the state of ``inner``.

    Raises:
        ValueError: If ``inner`` is not a transformation.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax
        >>> import optax_matrix as om
        >>> tx = om.transforms.wrappers.keep_dtype(optax.scale(jnp.float32(0.1)))
        >>> w = {"w": jnp.ones((2, 2), jnp.bfloat16)}
        >>> tx.update(w, tx.init(w))[0]["w"].dtype
        dtype(bfloat16)
    """
    inner = optax.with_extra_args_support(inner)

    def cast(x, like):
        return None if x is None else x.astype(like.dtype)

    def update_fn(updates, state, params=None, **extra_args):
        like = updates if params is None else params
        new, state = inner.update(updates, state, params, **extra_args)
        return jax.tree.map(cast, new, like, is_leaf=lambda x: x is None), state

    return optax.GradientTransformationExtraArgs(inner.init, update_fn)
