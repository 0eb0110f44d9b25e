"""What a traced program leaves to the host of a CUDA device."""

import collections
import re

# Library calls that go through a batch from the host, one matrix at a time.
ONE_BY_ONE = re.compile(r"gesvd|geqrf|orgqr|ormqr|householder|sytrd|gees")


def decisions(program, platform="cuda"):
    """Counts predicates that the host reads.

    A `cond` is one, a `while` without a known length is one; inside of a loop, and on
    the branch with the most, each counts once.
    """
    found = 0
    for eqn in getattr(program, "jaxpr", program).eqns:
        name, params = eqn.primitive.name, eqn.params
        if params.get("branches_platforms"):
            chosen = _branch(params["branches_platforms"], platform)
            found += decisions(params["branches"][chosen], platform)
        elif name == "cond":
            found += 1 + max(decisions(b, platform) for b in params["branches"])
        else:
            found += name == "while"
            found += sum(decisions(x, platform) for x in _inner(params))
    return found


def library_calls(text):
    """Counts the library calls of a lowered program, without jax's own."""
    names = re.findall(r"custom_call @([\w$]+)", text)
    ours = [n for n in names if n.startswith(("cusolver", "cu_", "cublas", "lapack"))]
    return collections.Counter(ours)


def _branch(platforms, platform):
    for i, names in enumerate(platforms):
        if names is None or platform in names:
            return i
    raise ValueError(f"no branch for {platform} among {platforms}")


def _inner(params):
    for value in params.values():
        for x in value if isinstance(value, list | tuple) else (value,):
            if hasattr(x, "eqns") or hasattr(getattr(x, "jaxpr", None), "eqns"):
                yield x
