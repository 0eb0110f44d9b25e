"""What seldom happens in a step of many stacks: on CUDA, the host decides once."""

from collections.abc import Callable
from typing import Any

import jax

from optax_matrix._mesh import vary_like

Decide = Callable[[Any, Callable[[], Any], Callable[[], Any]], Any]


def decided(step: Callable[[Decide], tuple[Any, Any]]) -> Any:
    """The result of a step that decides between what is rare and what is usual.

    ``step`` gets a function as `jax.lax.cond`, and returns its result and whether
    anything rare happened. What is rare must hold for what is usual, too: it must
    select the matrices that it is about. On CUDA, where the host reads every predicate,
    a usual step is computed, and again with all that is rare if anything happened.
    """

    def on_cuda() -> Any:
        result, happened = step(_usual)
        again = lambda: vary_like(step(_rare)[0], result)
        return jax.lax.cond(happened, again, lambda: result)

    as_needed = lambda: step(jax.lax.cond)[0]
    return jax.lax.platform_dependent(cuda=on_cuda, default=as_needed)


def _usual(predicate: Any, rare: Callable[[], Any], usual: Callable[[], Any]) -> Any:
    del predicate, rare
    return usual()


def _rare(predicate: Any, rare: Callable[[], Any], usual: Callable[[], Any]) -> Any:
    del predicate, usual
    return rare()
