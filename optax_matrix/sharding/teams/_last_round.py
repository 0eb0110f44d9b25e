"""Teams of devices that compute the last round of a stack together."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array


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

    JAX has none for the derivative under `jax.vmap` either, which this leaves to it.
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
        # Every device of a team knows which matrices the others have. So each branch
        # below is taken by all of a team or by none, as its collectives require; teams
        # do not wait for one another.
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
