"""Rotates the coordinates of the residual stream of a model."""

from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from optax_matrix._paths import map_named
from optax_matrix.linalg.products import full_dot
from optax_matrix.matrices import with_embeddings
from optax_matrix.matrices.decisions import decide

_TOLERANCE = 1e-3


def rotate_residual(
    params: Any, rotation: ArrayLike, *, dimension_numbers: Any = None
) -> Any:
    r"""Multiplies the residual side of every matrix by an orthogonal matrix.

    .. math::
        W \mapsto W Q \text{ if } W \text{ reads the stream}, \qquad
        W \mapsto Q^\top W \text{ if it writes the stream}

    with :math:`W` as ``(out, in)``, embeddings and head included. The stream h becomes
    :math:`Q^\top h`. A transformer with RMSNorm whose norm weights are equal computes
    the same function as before. LayerNorm, norm weights that differ, and biases that
    are added to the stream break the symmetry.

    Args:
        params: Parameters.
        rotation: The orthogonal matrix Q, ``(d, d)`` for a stream of width d.
        dimension_numbers: Which leaves are matrices, and which of their sides is on the
            stream: ``matrices.infer(model)``, or a rule or tree whose
            `MatrixDimensionNumbers` have ``residual``. None is the default rule, which
            covers the usual names except embeddings and heads.

    Returns:
        The parameters with rotated matrices; vectors are unchanged.

    Raises:
        ValueError: If the rotation is not orthogonal, if a matrix has another size on
            the stream, or if its side is unknown.

    Examples:
        >>> import jax.numpy as jnp, optax_matrix as om
        >>> reads = om.MatrixDimensionNumbers(residual="in")
        >>> writes = om.MatrixDimensionNumbers(residual="out")
        >>> rule = om.matrices.by_path(numbers={"up": reads, "down": writes})
        >>> params = {"up": jnp.eye(2, 3), "down": jnp.eye(3, 2)}  # (in, out)
        >>> quarter = jnp.array([[0.0, -1.0], [1.0, 0.0]])
        >>> new = om.weights.rotate_residual(params, quarter, dimension_numbers=rule)
        >>> h = jnp.array([1.0, 2.0])
        >>> new["up"].T @ (quarter.T @ h) - params["up"].T @ h
        Array([0., 0., 0.], dtype=float32)

    References:
        ARO, Section 6.4, Eq. 47, with the same rotation for all layers.
    """
    q = jnp.asarray(rotation)
    _check(q)
    decisions = decide(params, with_embeddings(dimension_numbers))

    def one(path: str, leaf: Any) -> Any:
        view = decisions[path].view
        if view is None:
            return leaf
        side = view.residual
        size = {"in": view.cols, "out": view.rows}.get(side or "")
        if size != len(q):
            raise ValueError(
                f"`params` must have matrices with one side on a stream of {len(q)} "
                f"coordinates, got {path!r} of shape {leaf.shape} with "
                + (f"{size} on it" if side else "unknown sides")
                + "; pass matrices.infer(model), or residual= in the dimension numbers."
            )
        rotate = lambda x: full_dot(x, q) if side == "in" else full_dot(q.T, x)
        pieces = [rotate(x).astype(leaf.dtype) for x in view.to_matrices(leaf[None])]
        return view.from_matrices(pieces)[0]

    return map_named(one, params)


def _check(q: jax.Array) -> None:
    if q.ndim != 2 or q.shape[0] != q.shape[1]:
        raise ValueError(f"`rotation` must be a square matrix, got shape {q.shape}.")
    if isinstance(q, jax.core.Tracer):
        return
    known = np.asarray(q, np.float64)  # Not a product of JAX, which `jax.jit` traces.
    error = np.abs(known.T @ known - np.eye(len(q))).max()
    if not error < _TOLERANCE:
        raise ValueError(
            "`rotation` must be orthogonal, got one with an entry of Q'Q - I of "
            f"{error:.2g}; pass for instance the Q of jnp.linalg.qr."
        )
