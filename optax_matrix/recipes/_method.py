"""From the chain of a method to a transformation of a whole parameter tree."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.core
import optax
from jax.typing import ArrayLike

from optax_matrix._arguments import is_function
from optax_matrix._paths import shown
from optax_matrix.matrices.boxes import unboxed
from optax_matrix.transforms import Policy, add_cautious_decay
from optax_matrix.transforms.arguments import check_fits
from optax_matrix.transforms.weight_size import add_decayed_weights
from optax_matrix.tree import on_matrices
from optax_matrix.tree.other_leaves import (
    but_vectors,
    climbs,
    running_statistics,
    with_warning,
)

TREE_ONLY = {  # Arguments that do not concern the update of matrices.
    *("learning_rate", "weight_decay", "weight_decay_mask", "cautious_decay"),
    *("other", "other_learning_rate", "other_weight_decay"),
}
_NOT_IN_CHAINS = TREE_ONLY | {
    *("dimension_numbers", "heads", "placement", "max_batch"),
    *("nonfinite", "zero_gradient", "precision"),
    "scaling",  # A function of shapes.
}

Arguments = Mapping[str, Any]  # Those of a recipe, by name.
Wrap = Callable[[optax.GradientTransformation], optax.GradientTransformation]


@dataclasses.dataclass(frozen=True)
class Method:
    """What a recipe returns: its chain, and where it departs from the common rule.

    The common rule: matrices get the chain, decoupled weight decay and the learning
    rate; all other leaves get AdamW with the same weight decay and learning rate, but
    vectors (biases, norms) do not decay.

    Attributes:
        chain: The transformation of stacks of matrices.
        dimension_numbers: Which leaves are matrices, if not what the user passed.
        weight_decay: Decay rate, if not what the user passed.
        wrap_decay: Function of the transformation that adds the weight decay.
        other: Optimizer of the other leaves in place of AdamW, as in `on_matrices`.
        other_rate: Learning rate of that AdamW relative to that of the matrices, unless
            the user passes ``other_learning_rate``; None for the same.
        other_b2: Second decay rate of that AdamW; the first is 0.9.
        other_eps: Its epsilon.
        couples: Whether the chain lets matrices influence one another on purpose.
        name: Name of the recipe, which is stored in its state; `recipe` sets it.
        stops: Whether the chain moves no matrix whose gradient is zero; None if that
            depends on whether ``b1`` is zero, as without error feedback.
        is_step: Whether the chain returns finished steps: it applies the learning rate
            and uses the parameters by itself, and weight decay leaves matrices alone.
    """

    chain: optax.GradientTransformation
    dimension_numbers: Any = None
    weight_decay: Any = None
    wrap_decay: Wrap = lambda tx: tx
    other: Any = None
    other_rate: ArrayLike | None = None
    other_b2: ArrayLike = 0.95
    other_eps: ArrayLike = 1e-8
    couples: bool = False
    name: str | None = None
    stops: bool | None = None
    is_step: bool = False


def update_of_matrices(
    method: Method, arguments: Arguments
) -> optax.GradientTransformationExtraArgs:
    """The chain of a method on the matrices of a tree; other leaves pass through."""
    return _on_matrices(method, arguments)


def optimizer_of_tree(
    method: Method, arguments: Arguments
) -> optax.GradientTransformationExtraArgs:
    """The optimizer of a whole tree: the method for matrices, AdamW for the rest.

    Weight decay is multiplied by the learning rate, as everywhere in optax. A mask sees
    the whole tree.
    """
    for name in ("other_learning_rate", "other_weight_decay"):
        if arguments["other"] is not None and arguments[name] is not None:
            raise ValueError(
                f"`{name}` must be None beside `other`, which has its own, got "
                f"{arguments[name]!r}; give it to `other`."
            )
    decay = method.weight_decay
    if decay is None:
        decay = arguments["weight_decay"]

    def after(params: Any) -> optax.GradientTransformation:
        decayed = method.wrap_decay(decayed_weights(decay, arguments, params))
        rate = optax.scale_by_learning_rate(arguments["learning_rate"])
        return optax.chain(decayed, rate)

    def adamw(params: Any) -> optax.GradientTransformation:
        moments = {"b1": 0.9, "b2": method.other_b2, "eps": method.other_eps}
        return optax.chain(
            optax.scale_by_adam(**moments, mu_dtype=arguments["mu_dtype"]),
            decayed_others(decay, arguments, params),
            optax.scale_by_learning_rate(
                rate_of_others(
                    arguments["learning_rate"],
                    method.other_rate,
                    arguments["other_learning_rate"],
                )
            ),
        )

    return _on_matrices(
        method,
        arguments,
        after=None if method.is_step else after,
        other=with_warning(
            arguments["other"] or method.other or adamw,
            lambda leaves: _mistake_in_other_leaves(arguments, leaves),
        ),
    )


def _mistake_in_other_leaves(arguments: Arguments, leaves: Any) -> str | None:
    """What is probably meant otherwise: statistics, an ascent, or half a schedule."""
    other, given = arguments["other"], arguments["other_learning_rate"]
    if statistics := running_statistics(leaves):
        return (
            f"`params` should hold parameters alone, but {shown(statistics)} look like "
            "the running statistics of a normalization, and the optimizer would change "
            "them. Pass variables['params'] in Linen, or nnx.state(model, nnx.Param) "
            "in NNX."
        )
    rates = {"learning_rate": arguments["learning_rate"], "other_learning_rate": given}
    if other is not None and climbs(other, leaves):
        return (
            "`other` must return finished steps, but its first update points along "
            "the gradient, so the loss of the other leaves would increase. Pass an "
            "optimizer with a learning rate, such as optax.adam(1e-3), or put "
            "optax.scale_by_learning_rate(1e-3) behind it in optax.chain."
        )
    scheduled = [name for name, rate in rates.items() if callable(rate)]
    if len(scheduled) != 1 or given is None:
        return None
    (constant,) = rates.keys() - set(scheduled)
    is_traced = isinstance(rates[constant], jax.core.Tracer)  # It may have a schedule.
    if is_traced or (constant == "other_learning_rate" and given == 0):
        return None
    return (
        f"`{scheduled[0]}` is a schedule, but `{constant}` is a number, which stays "
        f"constant. Pass a schedule for both: {constant}=lambda step: factor * "
        f"schedule(step), or {constant}=optax.constant_schedule(...) if this is meant."
    )


def _on_matrices(method: Method, arguments: Arguments, **rest: Any):
    inside = [x for name, x in arguments.items() if name not in _NOT_IN_CHAINS]
    numbers = method.dimension_numbers
    if numbers is None:
        numbers = arguments["dimension_numbers"]
    return on_matrices(
        method.chain,
        name=method.name,
        dimension_numbers=numbers,
        placement=arguments["placement"],
        max_batch=arguments["max_batch"],
        needs_params=method.is_step,
        moves_zeros=not method.is_step,
        nonfinite=arguments["nonfinite"] or "propagate",
        zero_gradient=_zero_gradient(method, arguments),
        precision=arguments["precision"],
        probe=not method.couples and any(map(_is_foreign, inside)),
        **rest,
    )


def _zero_gradient(method: Method, arguments: Arguments) -> Any:
    """What `on_matrices` does where gradients are zero: "fade" at the rate ``b1``."""
    policy, decay = arguments["zero_gradient"] or "fade", arguments.get("b1")
    if policy != "fade":
        return policy
    stops = method.stops
    if stops is None:
        stops = isinstance(decay, int | float) and decay == 0
    return "follow" if decay is None or stops else decay


def decayed_weights(
    rate: Any, arguments: Arguments, params: Any
) -> optax.GradientTransformation:
    """Weight decay at a rate or schedule, for the place before the learning rate.

    Without decay it needs no parameters. ``params`` are those of the whole tree, for
    the mask among the recipe's arguments.
    """
    mask: Any = arguments.get("weight_decay_mask")
    if mask is None and isinstance(rate, int | float) and rate == 0:
        return optax.identity()
    if mask is not None and params is not None:
        if is_function(mask):
            # Without boxes it is a prefix of trees with and without them.
            mask = unboxed(_called_mask(mask, params))[0]
        check_fits("weight_decay_mask", mask, params)
    if arguments.get("cautious_decay"):
        return add_cautious_decay(rate, mask)
    return add_decayed_weights(rate, mask)


def _called_mask(mask: Any, params: Any) -> Any:
    try:
        return mask(params)
    except Exception as error:  # Of the user's code, of any kind.
        raise ValueError(
            "`weight_decay_mask` must be a tree of bools or a function from the whole "
            f"tree of parameters to one, but raises {type(error).__name__}: {error}; "
            "for a rule of leaves write lambda params: jax.tree.map(rule, params)."
        ) from error


def decayed_others(
    rate: Any, arguments: Arguments, params: Any
) -> optax.GradientTransformation:
    """`decayed_weights` of leaves that are no matrices: by default, not of vectors.

    ``other_weight_decay`` takes the place of the rate. The state does not depend on
    which leaves decay.
    """
    given = arguments.get("other_weight_decay")
    decay = decayed_weights(rate if given is None else given, arguments, params)
    if arguments.get("weight_decay_mask") is not None or params is None:
        return decay
    return but_vectors(decay)


def rate_of_others(rate: Any, factor: Any, given: Any) -> Any:
    """The learning rate of other leaves: what is given, or a multiple of the rate."""
    if given is not None or factor is None:
        return rate if given is None else given
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
