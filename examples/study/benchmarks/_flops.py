"""FLOPs of matrix products in a traced program, those in loops included.

Compilers count the body of a loop once.
"""

import math
from typing import Any

PLATFORM = "tpu"


def product_flops(jaxpr: Any, trips: int = 1) -> tuple[float, bool]:
    """Counts the FLOPs of matrix products, on each device inside of `shard_map`.

    Of a `cond` the most expensive branch counts. A loop whose length is not a constant,
    such as those of Cholesky QR, counts ``trips`` times.

    Args:
        jaxpr: `jax.make_jaxpr` of the program, or its `jaxpr`.
        trips: The number of trips of a loop whose length is not a constant.

    Returns:
        The FLOPs, and whether there are loops of unknown length.
    """
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    total, unknown = 0.0, False
    platforms: dict[Any, int] = {}
    for eqn in jaxpr.eqns:
        name, params = eqn.primitive.name, eqn.params
        if name == "platform_index":
            platforms[eqn.outvars[0]] = _branch(params["platforms"])
        elif name == "dot_general":
            total += _of_product(eqn)
        elif name == "cond":
            chosen = platforms.get(_source(eqn.invars[0], jaxpr, platforms))
            branches = params["branches"]
            branches = branches if chosen is None else branches[chosen : chosen + 1]
            counts = [product_flops(branch, trips) for branch in branches]
            total += max(count for count, _ in counts)
            unknown |= any(more for _, more in counts)
        else:
            known = {"scan": params.get("length", 1), "while": trips}
            times = known.get(name, 1)
            for inner in _inner(params):
                count, more = product_flops(inner, trips)
                total += times * count
                unknown |= more or (name == "while" and count > 0)
    return total, unknown


def contains(jaxpr: Any, name: str) -> bool:
    """Whether a primitive occurs in a program."""
    eqns = getattr(jaxpr, "jaxpr", jaxpr).eqns
    return any(
        eqn.primitive.name == name
        or any(contains(inner, name) for inner in _inner(eqn.params))
        for eqn in eqns
    )


def _of_product(eqn: Any) -> float:
    """FLOPs of a product of matrices; none for one with a vector."""
    (contracted, right_contracted), (batch, _) = eqn.params["dimension_numbers"]
    left, right = (x.aval.shape for x in eqn.invars)
    size = lambda shape, axes: math.prod(shape[i] for i in axes)
    inner = size(left, contracted)
    rows = math.prod(left) // max(1, inner * size(left, batch))
    cols = math.prod(right) // max(1, size(right, right_contracted) * size(left, batch))
    return 2.0 * eqn.outvars[0].aval.size * inner if min(rows, cols) > 1 else 0.0


def _branch(platforms: Any) -> int:
    """The number of the branch of `PLATFORM`; None stands for all other platforms."""
    for i, names in enumerate(platforms):
        if names is None or PLATFORM in names:
            return i
    raise ValueError(f"no branch for {PLATFORM} among {platforms}")


def _source(variable: Any, jaxpr: Any, platforms: dict) -> Any:
    """The platform index that a variable is computed from, or the variable."""
    while variable not in platforms:
        eqns = [e for e in jaxpr.eqns if variable in e.outvars]
        if not eqns:
            return variable
        inputs = [x for x in eqns[0].invars if hasattr(x, "count")]
        if len(inputs) != 1:
            return variable
        variable = inputs[0]
    return variable


def _inner(params: dict) -> list:
    """The programs among the parameters of an equation."""
    found = []
    for value in params.values():
        for x in value if isinstance(value, list | tuple) else (value,):
            if hasattr(x, "eqns") or hasattr(getattr(x, "jaxpr", None), "eqns"):
                found.append(x)
    return found
