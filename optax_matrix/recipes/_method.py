"""From the chain of a method to a transformation of a whole parameter tree."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import optax
from jax.typing import ArrayLike

from optax_matrix.matrices import label_params
from optax_matrix.stacks.layout import Layout
from optax_matrix.stacks.zeros import warn_of_zeros
from optax_matrix.transforms import Policy, add_cautious_decay, keep_dtype
from optax_matrix.tree import on_matrices
from optax_matrix.tree.guarded import guarded

TREE_ONLY = {  # Arguments that do not concern the update of matrices.
    *("learning_rate", "weight_decay", "weight_decay_mask", "cautious_decay"),
    *("other", "other_learning_rate"),
}
_NOT_IN_CHAINS = TREE_ONLY | {"dimension_numbers", "placement", "nonfinite"}

Arguments = Mapping[str, Any]  # Those of a recipe, by name.
Wrap = Callable[[optax.GradientTransformation], optax.GradientTransformation]


@dataclasses.dataclass(frozen=True)
class Method:
    """What a recipe returns: its chain, and where it departs from the common rule.

    The common rule: matrices get the chain, decoupled weight decay and the learning
    rate; all other leaves get AdamW with the same weight decay and learning rate.

    Attributes:
        chain: ``chain(layout)``, the transformation of stacks of matrices. It reads the
            recipe's arguments, traced or not, from the function around it.
        dimension_numbers: Which leaves are matrices, if not what the user passed.
        weight_decay: Decay rate, if not what the user passed.
        wrap_decay: Function of the transformation that adds the weight decay.
        other: Optimizer of the other leaves in place of AdamW.
        other_rate: Learning rate of that AdamW relative to that of the matrices, unless
            the user passes ``other_learning_rate``; None for the same.
        other_b2: Second decay rate of that AdamW; the first is 0.9.
        other_eps: Its epsilon.
        couples: Whether the chain lets matrices influence one another on purpose.
        name: Name of the recipe, which is stored in its state; `recipe` sets it.
        is_step: Whether the chain returns finished steps: it applies the learning rate
            and uses the parameters by itself, and weight decay leaves matrices alone.
    """

    chain: Callable[[Layout], optax.GradientTransformation]
    dimension_numbers: Any = None
    weight_decay: Any = None
    wrap_decay: Wrap = lambda tx: tx
    other: optax.GradientTransformation | None = None
    other_rate: ArrayLike | None = None
    other_b2: ArrayLike = 0.95
    other_eps: ArrayLike = 1e-8
    couples: bool = False
    name: str | None = None
    is_step: bool = False


def update_of_matrices(
    method: Method, arguments: Arguments
) -> optax.GradientTransformationExtraArgs:
    """The chain of a method, run on the matrices of a tree.

    Args:
        method: The method.
        arguments: The recipe's arguments.

    Returns:
        A transformation of the whole tree. Other leaves pass through unchanged.
    """
    inside = [x for name, x in arguments.items() if name not in _NOT_IN_CHAINS]
    return on_matrices(
        method.chain,
        name=method.name,
        dimension_numbers=_dimension_numbers(method, arguments),
        placement=arguments["placement"],
        needs_params=method.is_step,
        nonfinite=arguments["nonfinite"] or "propagate",
        probe=not method.couples and any(map(_is_foreign, inside)),
    )


def optimizer_of_tree(
    method: Method, arguments: Arguments
) -> optax.GradientTransformationExtraArgs:
    """The optimizer of a whole tree: the method for matrices, AdamW for the rest.

    Weight decay is multiplied by the learning rate, as everywhere in optax.

    Args:
        method: The method.
        arguments: The recipe's arguments.

    Returns:
        An `optax.partition` of ``"matrix"`` and ``"other"``.
    """
    rate = arguments["learning_rate"]
    decay = method.weight_decay
    if decay is None:
        decay = arguments["weight_decay"]
    matrix = update_of_matrices(method, arguments)
    numbers = _dimension_numbers(method, arguments)
    if method.is_step:
        matrix = warn_of_zeros(matrix, numbers, method.name or "poet")
    else:
        decayed = method.wrap_decay(decayed_weights(decay, arguments))
        matrix = optax.chain(matrix, decayed, optax.scale_by_learning_rate(rate))
    other = arguments["other"] or method.other
    if other is None:
        moments = {"b1": 0.9, "b2": method.other_b2, "eps": method.other_eps}
        other = optax.chain(
            optax.scale_by_adam(**moments, mu_dtype=arguments["mu_dtype"]),
            decayed_weights(decay, arguments),
            optax.scale_by_learning_rate(_other_rate(method, arguments)),
        )
    labels = label_params(numbers)
    tx = optax.partition({"matrix": matrix, "other": other}, labels)
    return guarded(keep_dtype(tx), numbers)


def decayed_weights(rate: Any, arguments: Arguments) -> optax.GradientTransformation:
    """Weight decay, which needs no parameters if there is none; the state is alike.

    Args:
        rate: The rate, a number or a schedule.
        arguments: The recipe's arguments, which may have a mask.

    Returns:
        A transformation for the place before the learning rate.
    """
    mask = arguments.get("weight_decay_mask")
    if mask is None and isinstance(rate, int | float) and rate == 0:
        return optax.identity()
    if arguments.get("cautious_decay"):
        return add_cautious_decay(rate, mask)
    return optax.add_decayed_weights(rate, mask)


def _dimension_numbers(method: Method, arguments: Arguments) -> Any:
    if method.dimension_numbers is not None:
        return method.dimension_numbers
    return arguments["dimension_numbers"]


def _other_rate(method: Method, arguments: Arguments) -> Any:
    if arguments["other_learning_rate"] is not None:
        return arguments["other_learning_rate"]
    rate: Any = arguments["learning_rate"]
    factor: Any = method.other_rate
    if factor is None:
        return rate
    return (lambda count: factor * rate(count)) if callable(rate) else rate * factor


def _is_foreign(value: Any) -> bool:
    """Whether an argument is code of the user's, which may couple matrices."""
    if isinstance(value, optax.GradientTransformation):
        return True
    if isinstance(value, Policy):
        return _is_foreign(value.step)
    module = getattr(getattr(value, "func", value), "__module__", None) or ""
    is_function = callable(value) and not isinstance(value, type)
    return is_function and not module.startswith("optax_matrix.")
