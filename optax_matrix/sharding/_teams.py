"""Teams of devices that compute the last round of a stack together.

`in_team` is the form of `newton_schulz` in which each device of a team has some columns
of every matrix. Kernels without such a form get whole matrices, and everything else in
a chain stays with the owners. All of this runs inside the ``shard_map`` of `owners`.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

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


def in_team(last: "LastRound", kernel: Callable, x: Array) -> Array | None:
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
    # Each device forms other rows of a symmetric product, so a kernel of our own, which
    # computes half of it, would save nothing.
    dtype = dtype_of_factors(options["compute_dtype"], options.pop("kernel"))
    options["compute_dtype"] = dtype
    shared = newton_schulz_in_team(last, x[whole:], **options)
    if not whole:
        return shared
    return jnp.concatenate([newton_schulz(x[:whole], **keywords), shared])


def newton_schulz_in_team(
    last: "LastRound",
    x: Array,
    *,
    coefficients: Sequence[Sequence[float]] | np.ndarray,
    steps: int,
    eps: ArrayLike,
    preconditioning: str,
    compute_dtype: DTypeLike | Literal["auto"] | None,
) -> Array:
    """`newton_schulz` of matrices of the last round, their long sides split.

    The iteration needs two small matrices whole, and nothing else. Each device forms
    its summand of the Gram matrix A in float32, and ``psum_scatter`` returns some rows
    of A to it. It computes the same rows of ``b A + c A^2``, and ``all_gather`` returns
    the others. All other products are local, and columns are not sent. In 16 bits ``a``
    is on the diagonal, as in `quintic_steps`.
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


class Team(NamedTuple):
    """Consecutive devices along mesh axes; its methods run inside a `shard_map`.

    Attributes:
        axes: The mesh axes, major first.
        devices: Number of devices along them.
        size: Number of devices of a team, which divides `devices`.
    """

    axes: tuple[str, ...]
    devices: int
    size: int

    def sum_own_rows(self, x: Array) -> Array:
        """This device's rows of the sum of the team's matrices ``(m, n)``."""
        return jax.lax.psum_scatter(x, self.axes, tiled=True, **self.groups)

    def all_rows(self, x: Array) -> Array:
        """The rows of all devices of the team, one below the other."""
        return jax.lax.all_gather(x, self.axes, tiled=True, **self.groups)

    def own_rows_of_identity(self, m: int, dtype: Any) -> Array:
        """This device's rows of the identity, of those that `sum_own_rows` gives it."""
        count = m // self.size
        first = jax.lax.axis_index(self.axes) % self.size * count
        own = first + jnp.arange(count)
        return (own[:, None] == jnp.arange(m)).astype(dtype)

    def split(self, x: Array) -> Array:
        """Own columns ``(size, m, n / size)`` of every matrix, from a whole one."""
        parts = _all_to_all(self, x, 1, 0)
        return parts.reshape(self.size, len(x), -1)

    def join(self, x: Array) -> Array:
        """Inverts `split`."""
        return _all_to_all(self, x.reshape(-1, x.shape[-1]), 0, 1)

    @property
    def groups(self) -> dict[str, Any]:
        """The argument of JAX's collectives that says who is in a team."""
        starts = range(0, self.devices, self.size)
        return {"axis_index_groups": [list(range(i, i + self.size)) for i in starts]}


def _all_to_all(team: Team, x: Array, split: int, concat: int) -> Array:
    """The collective, with the rule for `jax.vmap` that JAX lacks where it has groups.

    JAX has no rule for the derivative under `jax.vmap` either; none is added here.
    """

    def plain(x: Array) -> Array:
        options = {"tiled": True, **team.groups}
        return jax.lax.all_to_all(x, team.axes, split, concat, **options)

    in_lanes = jax.custom_batching.custom_vmap(plain)
    # One collective for all lanes, whose axis stays in front.
    in_lanes.def_vmap(
        lambda *args: (_all_to_all(team, args[2], split + 1, concat + 1), True)
    )
    run = jax.custom_jvp(in_lanes)
    run.defjvp(lambda primals, tangents: (run(*primals), plain(*tangents)))
    return run(x)


class LastRound(NamedTuple):
    """The last matrices of a device's stack, which its team shares.

    Attributes:
        team: The team.
        count: Number of matrices in the stack.
        real: Which of the last ones are no padding, booleans ``(last,)``.
    """

    team: Team
    count: int
    real: Array

    def on_columns(self, f: Callable[[Array], Array], y: Array) -> Array:
        """`f` of matrices ``(last, m, n)``, of which each device has some columns.

        `f` maps this device's columns of one matrix to such columns. It gets rows and
        columns padded with zeros to multiples of the team's size. Padding gives zeros.
        """
        rows, cols = (-side % self.team.size for side in y.shape[1:])
        # Every device of a team gets the flags of the others. So all of a team or none
        # take each branch below, as its collectives require, and teams do not wait for
        # one another.
        real = self.team.all_rows(self.real[None]).T  # (last, size)

        def each(parts: tuple[Array, Array]) -> Array:
            return jax.lax.cond(parts[0], f, jnp.zeros_like, parts[1])

        def of_all(real: Array, y: Array) -> Array:
            return self.team.join(jax.lax.map(each, (real, self.team.split(y))))

        def of_any(parts: tuple[Array, Array]) -> Array:
            real, y = parts
            nothing = lambda _, y: jnp.zeros_like(y)
            return jax.lax.cond(real.any(), of_all, nothing, real, y)

        padded = jnp.pad(y, [(0, 0), (0, rows), (0, cols)])
        return jax.lax.map(of_any, (real, padded))[:, : y.shape[1], : y.shape[2]]


_PARAMETERS = inspect.signature(newton_schulz).parameters.values()
_DEFAULTS = {p.name: p.default for p in _PARAMETERS if p.kind == p.KEYWORD_ONLY}
