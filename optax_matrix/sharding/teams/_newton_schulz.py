"""Newton-Schulz iterations of matrices that are split among the devices of a team."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array

from optax_matrix.linalg import newton_schulz
from optax_matrix.linalg.coefficients import rows_for
from optax_matrix.linalg.products import dot, rounded
from optax_matrix.linalg.quintic_steps import (
    dtype_of_factors,
    first_iterate,
    with_narrow_factors,
)
from optax_matrix.linalg.scale import work_dtype
from optax_matrix.sharding.teams._last_round import LastRound


def in_team(last: LastRound, kernel: Callable, x: Array) -> Array | None:
    """A kernel of a stack whose last round a team shares.

    None if the kernel is not `newton_schulz`, perhaps in a `functools.partial`, or if
    a block has stacked the matrices otherwise.
    """
    keywords: dict[str, Any] = {}
    while isinstance(kernel, functools.partial) and not kernel.args:
        keywords = kernel.keywords | keywords
        kernel = kernel.func
    if kernel is not newton_schulz or x.ndim != 3 or len(x) != last.count:
        return None
    whole = len(x) - len(last.real)
    options = _DEFAULTS | keywords
    # Members form different rows, so that no kernel of ours would save half of them.
    dtype = dtype_of_factors(options["compute_dtype"], options.pop("kernel"))
    options["compute_dtype"] = dtype
    shared = newton_schulz_in_team(last, x[whole:], **options)
    if not whole:
        return shared
    return jnp.concatenate([newton_schulz(x[:whole], **keywords), shared])


def newton_schulz_in_team(
    last: LastRound,
    x: Array,
    *,
    coefficients: Sequence[Sequence[float]] | np.ndarray,
    steps: int,
    eps: ArrayLike,
    preconditioning: str,
    compute_dtype: DTypeLike | Literal["auto"] | None,
) -> Array:
    """`newton_schulz` of matrices of the last round, their long sides split.

    The iteration needs the whole of two small matrices only. Each device forms its
    summand of the Gram matrix A in float32, from which ``psum_scatter`` leaves it some
    rows of A; it computes the same rows of ``b A + c A^2``, and ``all_gather`` brings
    the others. All other products are local, and nothing of the long side moves. In 16
    bits ``a`` is on the diagonal, as in `quintic_steps`.
    """
    if compute_dtype == "auto":
        form = functools.partial(
            newton_schulz_in_team,
            last,
            coefficients=coefficients,
            steps=steps,
            eps=eps,
            preconditioning=preconditioning,
        )
        return with_narrow_factors(lambda x, t: form(x, compute_dtype=t), x)
    rows = rows_for(coefficients, steps)
    dtype = jnp.dtype(compute_dtype or work_dtype(x.dtype))
    team = last.team

    def step(y: Array, row: Array) -> tuple[Array, None]:
        a, b, c = row
        gram = team.sum_own_rows(dot(y, y.mT))
        narrow = gram.astype(dtype)
        z = (b * gram + c * dot(narrow, team.all_rows(narrow))).astype(dtype)
        return (a * y.astype(a.dtype) + dot(team.all_rows(z), y)).astype(dtype), None

    def narrow_step(y: Array, row: Array) -> tuple[Array, None]:
        a, b, c = row
        gram = team.sum_own_rows(dot(y, y.mT)).astype(dtype)
        diagonal = a * team.own_rows_of_identity(len(y), a.dtype)
        z = b * gram.astype(a.dtype) + c * dot(gram, team.all_rows(gram))
        return rounded(dot)(team.all_rows((diagonal + z).astype(dtype)), y), None

    step = narrow_step if dtype.itemsize == 2 else step
    table = jnp.asarray(rows, work_dtype(dtype))
    y, transposed = first_iterate(x, eps, dtype, preconditioning == "aol")
    y = last.on_columns(lambda y: jax.lax.scan(step, y, table)[0], y)
    return (y.mT if transposed else y).astype(x.dtype)


_PARAMETERS = inspect.signature(newton_schulz).parameters.values()
_DEFAULTS = {p.name: p.default for p in _PARAMETERS if p.kind == p.KEYWORD_ONLY}
