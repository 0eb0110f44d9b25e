"""A recipe: the signature of a method, its documentation, and its chain of blocks.

    @recipe
    def name(
        learning_rate: Rate, *, b1: Decay = 0.9, ..., **common: Unpack[Common]
    ) -> Method:
        '''What `help` shows.'''

        chain = optax.chain(...)
        return Method(chain)

    scale_by_name = direction(name)

The decorator checks arguments by their types and makes the optimizer of a whole tree.
`direction` derives the update of the matrices alone, `preset` a variant. Type checkers
see the arguments of the function above in all three. They cannot remove keywords, so
one that a variant lacks fails when it is called.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, Concatenate, Literal, ParamSpec, TypedDict, get_type_hints

import jax
import optax

from optax_matrix._arguments import (
    Checker,
    PositiveInt,
    Rate,
    injectable,
    is_number,
)
from optax_matrix.linalg.precision import Precision
from optax_matrix.matrices import split_heads
from optax_matrix.recipes._method import (
    TREE_ONLY,
    Method,
    optimizer_of_tree,
    update_of_matrices,
)
from optax_matrix.transforms.arguments import Mask, Transformation
from optax_matrix.tree import NonFinite, OnZero

P = ParamSpec("P")
Optimizer = optax.GradientTransformationExtraArgs


class Common(TypedDict, total=False):
    """Keywords of every recipe; the docstring of the package explains them."""

    weight_decay_mask: Mask | None
    cautious_decay: bool | None
    dimension_numbers: Any
    heads: Literal["split"] | None
    placement: Any
    max_batch: PositiveInt | None
    other: Transformation | None
    other_learning_rate: Rate | None
    other_weight_decay: Rate | None
    nonfinite: NonFinite | None
    zero_gradient: OnZero | None
    precision: Precision


_DEFAULTS = {"precision": "default"}  # That of the others is None.


@dataclasses.dataclass(frozen=True)
class _Recipe:
    """The function of a method's arguments, and those that users give."""

    factory: Callable[..., Method]
    signature: inspect.Signature
    fixed: Mapping[str, Any]  # The other arguments of the factory.


def recipe(factory: Callable[P, Method]) -> Callable[P, Optimizer]:
    """Makes the optimizer of a whole parameter tree from the function of a method."""
    made = _Recipe(factory, _spelled_out(factory), {})
    return _public(made, factory.__name__, factory.__doc__, optimizer_of_tree)


def preset(
    base: Callable[P, Optimizer],
    *,
    fixed: Mapping[str, Any] | None = None,
    types: Mapping[str, Any] | None = None,
    **defaults: Any,
) -> Callable[[Callable[[], None]], Callable[P, Optimizer]]:
    """A variant of a recipe, with the name and the docstring of a function.

    It has other ``defaults``, narrower ``types``, and no arguments ``fixed``.
    """
    of: _Recipe = base.recipe  # pyright: ignore[reportFunctionMemberAccess]
    fixed, types = {**of.fixed, **(fixed or {})}, types or {}
    parameters = [
        p.replace(
            default=defaults.get(p.name, p.default),
            annotation=types.get(p.name, p.annotation),
        )
        for p in of.signature.parameters.values()
        if p.name not in fixed
    ]
    made = _Recipe(of.factory, of.signature.replace(parameters=parameters), fixed)
    return lambda f: _public(made, f.__name__, f.__doc__, optimizer_of_tree)


def _update_of_muon():
    """The update of `muon` for matrices; other leaves pass through unchanged.

    Args:
        **options: Those of `muon`, without those of the learning rate, the weight
            decay and the other leaves.

    Returns:
        A transformation, without learning rate and weight decay.

    Examples:
        >>> import optax
        >>> import optax_matrix as om
        >>> step = optax.scale_by_learning_rate(1e-3)
        >>> tx = optax.chain(om.scale_by_muon(), step)
    """


def direction(
    base: Callable[Concatenate[Rate, P], Optimizer], without: Collection[str] = ()
) -> Callable[P, Optimizer]:
    """The update of a recipe's matrices, for `optax.chain`.

    It does not take the arguments that do not concern the matrices: `TREE_ONLY` and
    ``without``.
    """
    of: _Recipe = base.recipe  # pyright: ignore[reportFunctionMemberAccess]
    names = [n for n in of.signature.parameters if n not in {*TREE_ONLY, *without}]
    parameters = [of.signature.parameters[name] for name in names]
    fixed = {**of.fixed, "learning_rate": 0.0}  # No chain depends on it.
    made = _Recipe(of.factory, of.signature.replace(parameters=parameters), fixed)
    doc = str(_update_of_muon.__doc__).replace("muon", base.__name__)
    return _public(made, f"scale_by_{base.__name__}", doc, update_of_matrices)


def _public(made: _Recipe, name: str, doc: str | None, transformation: Any) -> Any:
    """The function that checks the user's arguments and makes a transformation."""
    check = Checker(name, made.signature)

    @functools.wraps(made.factory)
    def run(*args: Any, **kwargs: Any) -> Optimizer:
        arguments = {**made.fixed, **check(args, kwargs).arguments}
        if arguments["heads"] is not None:
            numbers = arguments["dimension_numbers"]
            arguments["dimension_numbers"] = split_heads(numbers)
        method = made.factory(**arguments)
        arrays = {k: x for k, x in arguments.items() if isinstance(x, jax.Array)}
        if arrays:
            chain: Any = _chain_of_arrays(made.factory, arguments, arrays)
            method = dataclasses.replace(method, chain=chain)
        of_name = dataclasses.replace(method, name=name.removeprefix("scale_by_"))
        return transformation(of_name, arguments)

    public: Any = run
    public.recipe = made
    public.__name__ = public.__qualname__ = name
    public.__doc__ = doc
    public.__signature__ = injectable(made.signature, is_number)
    hints = {name: p.annotation for name, p in made.signature.parameters.items()}
    public.__annotations__ = {**hints, "return": Optimizer}
    return public


def _chain_of_arrays(
    factory: Callable[..., Method],
    arguments: Mapping[str, Any],
    arrays: Mapping[str, jax.Array],
) -> Any:
    """The chain of a method as a function of the arrays among its arguments.

    A chain holds them, but JAX does not let a function on a mesh with Explicit axes
    read arrays that it holds. `on_matrices` passes the arrays of a ``Partial`` to the
    step, where the factory makes the chain again from them.
    """

    def chain(_: Any, **arrays: jax.Array) -> optax.GradientTransformation:
        return factory(**{**arguments, **arrays}).chain

    return jax.tree_util.Partial(chain, **arrays)


def _spelled_out(factory: Callable[..., Any]) -> inspect.Signature:
    """The signature of the optimizer, with the keywords of `Common` one by one."""
    signature = inspect.signature(factory, eval_str=True)
    *own, _ = signature.parameters.values()
    common = [
        inspect.Parameter(
            name, own[-1].KEYWORD_ONLY, default=_DEFAULTS.get(name), annotation=hint
        )
        for name, hint in get_type_hints(Common, include_extras=True).items()
    ]
    return signature.replace(parameters=[*own, *common], return_annotation=Optimizer)
