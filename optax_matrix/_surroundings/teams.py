"""Teams of devices that share the work on matrices.

`owners` gives all devices equally many whole matrices, except in the last round, for
which too few are left over. Teams can share that round: each matrix is split along its
long side among the devices of a team, which compute together. State and everything else
in a chain stay with the owners.

A kernel takes part if it has a form for teams, `for_teams`. Others get whole matrices.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array

from optax_matrix._surroundings import here

F = TypeVar("F", bound=Callable)

_FORMS: dict[Callable, Callable] = {}


class Team(NamedTuple):
    """Consecutive devices along mesh axes; its methods run inside a `shard_map`.

    Attributes:
        axes: The mesh axes, major first.
        ways: Number of devices along them.
        size: Number of devices of a team, which divides `ways`.
    """

    axes: tuple[str, ...]
    ways: int
    size: int

    def sum_own_rows(self, x: Array) -> Array:
        """This device's rows of the sum of the team's matrices ``(m, n)``."""
        return jax.lax.psum_scatter(x, self.axes, tiled=True, **self._groups)

    def all_rows(self, x: Array) -> Array:
        """The rows of all devices of the team, one below the other."""
        return jax.lax.all_gather(x, self.axes, tiled=True, **self._groups)

    def split(self, x: Array) -> Array:
        """Exchanges whole matrices for this device's columns of each of the team's.

        Args:
            x: This device's matrix.

        Returns:
            The columns ``(size, m, n / size)`` that are this device's.
        """
        parts = jax.lax.all_to_all(x, self.axes, 1, 0, tiled=True, **self._groups)
        return parts.reshape(self.size, len(x), -1)

    def join(self, x: Array) -> Array:
        """Inverts `split`."""
        flat = x.reshape(-1, x.shape[-1])
        return jax.lax.all_to_all(flat, self.axes, 0, 1, tiled=True, **self._groups)

    @property
    def _groups(self) -> dict[str, Any]:
        starts = range(0, self.ways, self.size)
        return {"axis_index_groups": [list(range(i, i + self.size)) for i in starts]}


class LastRound(NamedTuple):
    """The last matrices of a device's stack, which its team shares.

    Attributes:
        team: The team.
        count: Number of matrices in the stack.
        real: Which of the last ones are no padding, booleans ``(shared,)``.
    """

    team: Team
    count: int
    real: Array

    def together(self, f: Callable[[Array], Array], y: Array) -> Array:
        """Applies a function to columns of matrices, on all devices of the team.

        Args:
            f: Function from this device's columns of one matrix to such columns. It
                gets rows and columns padded with zeros to multiples of the team's size.
            y: This device's matrices ``(shared, m, n)``.

        Returns:
            The results of the same shape, and zeros for padding.
        """
        rows, cols = (-side % self.team.size for side in y.shape[1:])
        # Every device of a team knows which matrices the others have. So each branch
        # below is taken by all of a team or by none, as its collectives require; teams
        # do not wait for one another.
        real = self.team.all_rows(self.real[None]).T  # (shared, size)

        def each(parts: tuple[Array, Array]) -> Array:
            return jax.lax.cond(parts[0], f, jnp.zeros_like, parts[1])

        def of_all(real: Array, y: Array) -> Array:
            return self.team.join(jax.lax.map(each, (real, self.team.split(y))))

        def place(parts: tuple[Array, Array]) -> Array:
            real, y = parts
            nothing = lambda _, y: jnp.zeros_like(y)
            return jax.lax.cond(real.any(), of_all, nothing, real, y)

        padded = jnp.pad(y, [(0, 0), (0, rows), (0, cols)])
        return jax.lax.map(place, (real, padded))[:, : y.shape[1], : y.shape[2]]


def for_teams(kernel: Callable) -> Callable[[F], F]:
    """Declares a function to be the form of a kernel for teams.

    Args:
        kernel: Function of matrices ``(..., m, n)`` and keywords.

    Returns:
        A decorator of functions of matrices ``(shared, m, n)``, a `LastRound`, and the
        same keywords, without defaults.
    """

    def register(form: F) -> F:
        _FORMS[kernel] = form
        return form

    return register


def is_shared(name: str) -> bool:
    """Whether teams share the last round of the stack of this name."""
    return name in here().rounds


def in_teams(kernel: Callable, name: str, x: Array) -> Array | None:
    """Applies a kernel to a stack; teams share its last round.

    Args:
        kernel: The kernel, perhaps a `functools.partial` of it.
        name: Name of the stack.
        x: The stack ``(batch, m, n)``.

    Returns:
        The value of the kernel; None if nothing of this stack is shared.
    """
    last, form = here().rounds.get(name), _form(kernel)
    if last is None or form is None or x.ndim != 3 or len(x) != last.count:
        return None  # Or a block has stacked the matrices otherwise.
    whole = len(x) - len(last.real)
    shared = form(x[whole:], last)
    return jnp.concatenate([kernel(x[:whole]), shared]) if whole else shared


def _form(kernel: Callable) -> Callable | None:
    keywords: dict[str, Any] = {}
    # Functions are compared by identity, since other callables may have no hash.
    while isinstance(kernel, functools.partial) and not kernel.args:
        keywords = kernel.keywords | keywords
        kernel = kernel.func
    form = next((form for known, form in _FORMS.items() if known is kernel), None)
    if form is None:
        return None
    parameters = inspect.signature(kernel).parameters.values()
    defaults = {p.name: p.default for p in parameters if p.kind == p.KEYWORD_ONLY}
    return functools.partial(form, **(defaults | keywords))
