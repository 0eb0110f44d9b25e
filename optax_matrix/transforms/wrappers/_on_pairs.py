"""A function of two matrices whose product, or circuit, a model computes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import optax
from jax import Array

from optax_matrix._arguments import checked
from optax_matrix._surroundings import here
from optax_matrix._surroundings.layouts import pairs_here
from optax_matrix._surroundings.trees import is_by_stack
from optax_matrix.linalg.scale import widened
from optax_matrix.transforms.arguments import Transformation


class Factor(NamedTuple):
    """The matrices of one side of a pair; stacks ``(batch, m, n)``, at least float32.

    Attributes:
        update: What comes in: the gradient, or the momentum behind `momentum`.
        params: The parameters; None unless ``needs_params``.
        gradient: The gradient inside of `with_gradient`; None elsewhere.
    """

    update: Array
    params: Any
    gradient: Any


@checked
def on_pairs(
    f: Callable[[Factor, Factor], tuple[Array, Array]],
    otherwise: Transformation | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Updates two matrices together by a function of both.

    `on_matrices` is told which matrices are pairs (its argument ``pairs``). Other
    blocks may stand before and behind this one, so that momentum, weight decay and
    scaling are not its concern.

    Args:
        f: ``f(first, second)`` from two `Factor` to two updates in their shapes. Matrix
            i of the first stack is the partner of matrix i of the second. In
            ``{"lora_a": "lora_b"}`` the first is A.
        otherwise: The transformation of matrices without a partner; None refuses them.

    Returns:
        A transformation with the state of ``otherwise``.

    Raises:
        ValueError: If ``otherwise`` is not a transformation; at `init`, if a matrix has
            no partner and there is no ``otherwise``; if there is no `on_matrices`
            around, or ``f`` returns other shapes.

    Examples:
        Scaled gradient descent for :math:`W = B A`: each factor's gradient is divided
        by the Gram matrix of the other factor, so that a step does not depend on how W
        is split between them.

        >>> import jax, jax.numpy as jnp
        >>> import optax_matrix as om
        >>> def scaled(a, b):
        ...     divide = lambda gram, g: jnp.linalg.solve(gram + 1e-6 * jnp.eye(2), g)
        ...     new_a = divide(b.params.mT @ b.params, a.update)
        ...     return new_a, divide(a.params @ a.params.mT, b.update.mT).mT
        >>> block = om.transforms.on_pairs(scaled)
        >>> pairs = {"lora_a": "lora_b"}
        >>> tx = om.on_matrices(block, pairs=pairs, needs_params=True)
        >>> params = {"lora_a": jnp.eye(3, 2), "lora_b": 10 * jnp.eye(2, 4)}
        >>> grads = {"lora_a": jnp.ones((3, 2)), "lora_b": jnp.ones((2, 4))}
        >>> updates, _ = tx.update(grads, tx.init(params), params)
        >>> [round(float(updates[name][0, 0]), 2) for name in ("lora_a", "lora_b")]
        [0.01, 1.0]

    References:
        Zhang and Pilanci, `Riemannian Preconditioned LoRA
        <https://arxiv.org/abs/2402.02347>`_, 2024, is the example; ``examples`` has
        others.
    """
    inner = None if otherwise is None else optax.with_extra_args_support(otherwise)

    def init_fn(params):
        rest = _without_pairs(params, pairs_here())
        if inner is None:
            _refuse(rest)
            return optax.EmptyState()
        return inner.init(rest)

    def update_fn(updates, state, params=None, **extra_args):
        pairs = {a: b for a, b in pairs_here().items() if a in updates}
        new: dict[str, Any] = {}
        trees: Any = updates, params, extra_args.get("gradient")
        for names in pairs.items():
            each = [_factor(name, trees) for name in names]
            found = zip(names, _checked(f(*each), each), strict=True)
            new |= {name: x.astype(updates[name].dtype) for name, x in found}
        part = lambda x: _without_pairs(x, pairs) if is_by_stack(x, updates) else x
        rest: Any = part(updates)
        if inner is None:
            _refuse(rest)
        else:
            extra = {name: part(x) for name, x in extra_args.items()}
            rest, state = inner.update(rest, state, part(params), **extra)
        return {name: (new | rest)[name] for name in updates}, state

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def _factor(name: str, trees: Sequence[Any]) -> Factor:
    """What is known of a stack, of trees that may be None."""
    found: list[Any] = [None if tree is None else tree[name] for tree in trees]
    if isinstance(found[0], Mapping):
        raise ValueError(_whole("blocks of them", "in_blocks"))
    return Factor._make(x if x is None else widened(jnp.asarray(x)) for x in found)


def _whole(got: str, wrapper: str) -> str:
    return (
        f"`on_pairs` must get whole matrices, got {got}; put `{wrapper}` around other "
        "blocks, or into `otherwise`."
    )


def _without_pairs(stacks: Any, pairs: Mapping[str, str]) -> Any:
    if not isinstance(stacks, Mapping):
        raise ValueError(_whole("one matrix by itself", "per_matrix"))
    paired = {*pairs, *pairs.values()}
    return {name: x for name, x in stacks.items() if name not in paired}


def _checked(new: Any, old: list[Factor]) -> Any:
    wanted = [x.update.shape for x in old]
    found = [getattr(x, "shape", None) for x in new] if isinstance(new, tuple) else new
    if found != wanted:
        raise ValueError(
            "`f` must return the updates of both stacks as a tuple, in the shapes "
            f"{wanted}, got {found}."
        )
    return new


def _refuse(rest: Mapping[str, Any]) -> None:
    """Raises if matrices are without a partner."""
    groups = here().layout.groups
    paths = sorted({m.path for name in rest for m in groups[name].members})
    if paths:
        shown = ", ".join(paths[:3]) + (", ..." if len(paths) > 3 else "")
        raise ValueError(
            f"`pairs` must give every matrix a partner for `on_pairs`, but {shown} has "
            "none; pass on_pairs(f, otherwise=...) a transformation of these, or leave "
            "them to the other optimizer by `dimension_numbers`."
        )
