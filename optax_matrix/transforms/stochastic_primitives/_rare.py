"""What seldom happens in a step of many stacks: on CUDA, the host decides once."""

from collections.abc import Callable
from typing import Any

import jax

from optax_matrix._mesh import vary_like
from optax_matrix._platforms import by_platform

Decide = Callable[[Any, Callable[[], Any], Callable[[], Any]], Any]


def decided(
    step: Callable[[Decide], tuple[Any, Any]], like: Any, expected: Any = None
) -> Any:
    """The result of a step that decides between what is rare and what is usual.

    ``step`` gets a function as `jax.lax.cond`, and returns its result and whether
    anything rare happened. What is rare must hold for what is usual, too: it must
    select the matrices that it is about. On CUDA, where the host reads every predicate,
    it reads one, ``expected``: whether anything rare will happen. Where only the step
    itself knows, a usual step is computed first, and again if something happened.
    Arrays vary over the axes of a mesh as those of ``like`` do.
    """
    usual = lambda: jax.tree.map(vary_like, step(_usual)[0], like)
    rare = lambda: jax.tree.map(vary_like, step(_rare)[0], like)

    def on_cuda() -> Any:
        if expected is not None:
            return jax.lax.cond(expected, rare, usual)
        result, happened = step(_usual)
        result = jax.tree.map(vary_like, result, like)
        return jax.lax.cond(happened, rare, lambda: result)

    as_needed = lambda: step(jax.lax.cond)[0]
    return by_platform(as_needed, cuda=on_cuda)


def _usual(predicate: Any, rare: Callable[[], Any], usual: Callable[[], Any]) -> Any:
    del predicate, rare
    return usual()


def _rare(predicate: Any, rare: Callable[[], Any], usual: Callable[[], Any]) -> Any:
    del predicate, usual
    return rare()
