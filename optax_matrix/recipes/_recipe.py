"""A recipe: the signature of a method, its documentation, and its chain of blocks.

    @recipe
    def name(
        learning_rate: Rate, *, b1: Decay = 0.9, ..., **common: Unpack[Common]
    ) -> Method:
        '''What `help` shows.'''

        def chain(layout):
            return optax.chain(...)

        return Method(chain)

    scale_by_name = direction(name)

The decorator checks arguments by their types and makes the optimizer of a whole tree.
`direction` derives the update of the matrices alone, `preset` a variant.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, Concatenate, ParamSpec, TypedDict, get_type_hints

import jax
import optax

from optax_matrix._arguments import Checker, Rate, injectable, is_number
from optax_matrix.recipes._docstrings import of_direction, of_preset, with_arguments
from optax_matrix.recipes._method import (
    TREE_ONLY,
    Method,
    optimizer_of_tree,
    update_of_matrices,
)
from optax_matrix.stacks.layout import Layout
from optax_matrix.transforms.arguments import Mask, Transformation
from optax_matrix.tree import NonFinite

P = ParamSpec("P")
Optimizer = optax.GradientTransformationExtraArgs


class Common(TypedDict, total=False):
    """Keywords of every recipe.

    Attributes:
        weight_decay_mask: Tree or prefix tree of True and False, or a function from
            the parameters to one, as in `optax.adamw`.
        cautious_decay: Whether entries decay only where the update moves them towards
            zero (`add_cautious_decay`); None for False.
        dimension_numbers: Which leaves are matrices, as in `on_matrices`.
        placement: Where whole matrices live on a mesh, as in `on_matrices`.
        other: Optimizer of all other leaves; None for AdamW.
        other_learning_rate: Learning rate of that AdamW; None for the recipe's choice.
        nonfinite: As in `on_matrices`; None for ``"propagate"``.
    """

    weight_decay_mask: Mask | None
    cautious_decay: bool | None
    dimension_numbers: Any
    placement: Any
    other: Transformation | None
    other_learning_rate: Rate | None
    nonfinite: NonFinite | None


def recipe(factory: Callable[P, Method]) -> Callable[P, Optimizer]:
    """Makes the optimizer of a whole parameter tree from a method.

    Args:
        factory: Function of the method's arguments and ``**common: Unpack[Common]``.
            Its docstring documents them, the latter as ``**common: See `Common`.``.

    Returns:
        A function with all arguments in its signature and docstring. It checks them by
        their types.
    """
    doc = inspect.cleandoc(factory.__doc__ or "")
    common = inspect.cleandoc(Common.__doc__ or "").partition("Attributes:\n")[2]
    doc = doc.replace("    **common: See `Common`.", common)
    return _Public(factory, factory.__name__, _spelled_out(factory), doc).optimizer()


def preset(
    base: Callable[P, Optimizer],
    name: str,
    doc: str,
    *,
    fixed: Mapping[str, Any] | None = None,
    types: Mapping[str, Any] | None = None,
    **defaults: Any,
) -> Callable[P, Optimizer]:
    """A variant of a recipe: other defaults, under a name of its own.

    Args:
        base: The recipe.
        name: The variant's name.
        doc: Its docstring. ``Args:`` lists what differs from `base` only.
        fixed: Arguments that the variant sets and does not take.
        types: Narrower types of arguments.
        **defaults: Defaults that differ.

    Returns:
        A function like that of `recipe`.
    """
    of: _Public = base.public  # pyright: ignore[reportFunctionMemberAccess]
    fixed, types = {**of.fixed, **(fixed or {})}, types or {}
    parameters = [
        p.replace(
            default=defaults.get(p.name, p.default),
            annotation=types.get(p.name, p.annotation),
        )
        for p in of.signature.parameters.values()
        if p.name not in fixed
    ]
    signature = of.signature.replace(parameters=parameters)
    doc = of_preset(inspect.cleandoc(doc), of.doc)
    return _Public(of.factory, name, signature, doc, fixed).optimizer()


def direction(
    base: Callable[Concatenate[Rate, P], Optimizer], without: Collection[str] = ()
) -> Callable[P, Optimizer]:
    """The update of a recipe's matrices, for `optax.chain`.

    Args:
        base: The recipe.
        without: Arguments that do not concern the matrices, besides those of the
            learning rate, the weight decay and the other leaves.

    Returns:
        A function of the recipe's other arguments. Leaves that are not matrices pass
        through its transformation unchanged.
    """
    of: _Public = base.public  # pyright: ignore[reportFunctionMemberAccess]
    parameters = [
        p
        for p in of.signature.parameters.values()
        if p.name not in TREE_ONLY and p.name not in without
    ]
    signature = of.signature.replace(parameters=parameters)
    name = f"scale_by_{of.name}"
    fixed = {**of.fixed, "learning_rate": 0.0}  # No chain depends on it.
    doc = of_direction(of.doc, of.name)
    return _Public(of.factory, name, signature, doc, fixed).direction()


@dataclasses.dataclass(frozen=True)
class _Public:
    """A public function in the making: the factory of its method, and what users see.

    Attributes:
        factory: Function that returns the `Method`.
        name: Name of the public function.
        signature: Its signature.
        doc: Its docstring; arguments that the signature lacks are left out.
        fixed: Arguments of the factory that the public function does not take.
    """

    factory: Callable[..., Method]
    name: str
    signature: inspect.Signature
    doc: str
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def optimizer(self) -> Any:
        """The function that makes the optimizer of a whole tree."""
        return self._function(optimizer_of_tree)

    def direction(self) -> Any:
        """The function that makes the update of the matrices."""
        return self._function(update_of_matrices)

    def _function(self, make: Callable[[Method, Mapping[str, Any]], Optimizer]) -> Any:
        check = Checker(self.name, self.signature)

        @functools.wraps(self.factory)
        def run(*args: Any, **kwargs: Any) -> Optimizer:
            arguments = {**self.fixed, **check(args, kwargs).arguments}
            name = self.name.removeprefix("scale_by_")
            method = dataclasses.replace(
                self.factory(**arguments),
                name=name,
                chain=_chain(self.factory, arguments),
            )
            return make(method, arguments)

        parameters = self.signature.parameters
        public: Any = run
        public.public = self
        public.__name__ = public.__qualname__ = self.name
        public.__doc__ = with_arguments(self.doc, parameters)
        shown = injectable(self.signature, is_number)
        public.__signature__ = shown.replace(return_annotation=Optimizer)
        public.__annotations__ = {k: p.annotation for k, p in parameters.items()}
        public.__annotations__["return"] = Optimizer
        return public


def _chain(factory: Callable[..., Method], arguments: Mapping[str, Any]) -> Any:
    """The chain of a method as a function of the arrays among its arguments.

    A chain reads them from its factory, but JAX does not let a function on a mesh with
    Explicit axes read arrays from the function around it. `on_matrices` hands those of
    a ``Partial`` on, and the factory runs once more with them.
    """

    def chain(layout: Layout, **arrays: jax.Array) -> optax.GradientTransformation:
        return factory(**{**arguments, **arrays}).chain(layout)

    is_array = lambda value: isinstance(value, jax.Array)
    arrays = {name: x for name, x in arguments.items() if is_array(x)}
    return jax.tree_util.Partial(chain, **arrays)


def _spelled_out(factory: Callable[..., Any]) -> inspect.Signature:
    """The signature of a factory, with the keywords of `Common` one by one."""
    signature = inspect.signature(factory, eval_str=True)
    *own, _ = signature.parameters.values()
    common = [
        inspect.Parameter(name, own[-1].KEYWORD_ONLY, default=None, annotation=hint)
        for name, hint in get_type_hints(Common).items()
    ]
    return signature.replace(parameters=[*own, *common])
