"""Options in a method's name: ``muoneq:mode=col:nesterov=False``.

After the method's name, every ``:keyword=value`` sets one keyword of its recipe; they
are read from the recipe's signature. A value is a Python literal (``0.9``, ``True``,
``None``), ``inf``, or a word (``col``); functions are given by their names in
`optax_matrix.linalg`, such as ``polar=polar_svd`` or ``polar=newton_schulz(steps=3)``.
An argument of a function may also be a table there, as in ``coefficients=YOU``.
"""

import ast
import dataclasses
import difflib
import functools
import inspect
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import optax

from examples.pretrain.errors import UserError
from optax_matrix import linalg
from optax_matrix._arguments import KERNELS

TABLES = "AOL", "CUBIC", "JORDAN", "POLAR_EXPRESS", "TAYLOR", "YOU"
# Keywords that the comparison sets itself, in the same way for every method.
FIXED = (
    *(
        "weight_decay",
        "weight_decay_mask",
        "cautious_decay",
        "other",
        "other_learning_rate",
        "other_weight_decay",
    ),
    *("dimension_numbers", "placement", "mu_dtype"),
)


@dataclasses.dataclass(frozen=True)
class Method:
    """A method with its options: a function from learning rate to optimizer.

    Attributes:
        build: ``build(learning_rate, **options)`` makes the optimizer.
        options: Every keyword that a name can set, and its value.
    """

    build: Callable[..., optax.GradientTransformation]
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __call__(self, learning_rate: optax.ScalarOrSchedule):
        return self.build(learning_rate, **self.options)

    def replace(self, **options):
        """The method with other values of some options."""
        return dataclasses.replace(self, options={**self.options, **options})

    def with_numbers(self, dimension_numbers: Any):
        """The method with these dimension numbers, if it takes any."""
        takes = "dimension_numbers" in inspect.signature(self.build).parameters
        return self.replace(dimension_numbers=dimension_numbers) if takes else self


def keywords(factory: Callable[..., Any]) -> dict[str, Any]:
    """The keywords of a function that a name can set, and their defaults."""
    parameters = inspect.signature(factory).parameters.values()
    given = {x.name: x.default for x in parameters if x.name not in FIXED}
    return {k: v for k, v in given.items() if v is not inspect.Parameter.empty}


def with_options(name: str, methods: Mapping[str, Method]) -> Method:
    """The method of a name such as ``poet:block=16:init=xavier``.

    Args:
        name: A key of ``methods``, then options.
        methods: Methods by name.

    Returns:
        The method.

    Raises:
        UserError: If there is no such method or option, or a value is refused.
    """
    head, *settings = re.split(r":(?![^{]*})", name)  # Not inside a dict.
    if head not in methods:
        close = difflib.get_close_matches(head, methods, n=1, cutoff=0.7)
        meant = f"did you mean {close[0]}? All are" if close else "choose from"
        raise UserError(
            f"There is no optimizer {head!r}; {meant} {', '.join(methods)}."
        )
    method, given = methods[head], {}
    for setting in settings:
        key, equals, word = setting.partition("=")
        _check(head, method, key)
        if key in given:
            raise UserError(f"{head}: `{key}` is given twice.")
        if not equals:
            example = f"{head}:{key}={_shown(method.options[key])}"
            raise UserError(f"{head}: give `{key}` a value: {example}")
        given[key] = _value(key, word)
    if given.get("nonfinite") == "raise":
        raise UserError(f"{name}: a compiled step cannot raise; use nonfinite=skip.")
    if not given:
        return method
    method = method.replace(**given)
    try:
        method(0.0)  # Recipes check their arguments.
    except (TypeError, ValueError) as error:
        raise UserError(f"{name}: {error}") from None
    return method


def listing(methods: Mapping[str, Method]) -> str:
    """All methods, each with its options and their defaults."""
    lines = [
        "Methods, the options of each, and their defaults; set options in the name, "
        "as in muoneq:mode=col:nesterov=False.",
        "",
    ]
    for name, method in methods.items():
        options = [f"{key}={_shown(value)}" for key, value in method.options.items()]
        lines.append(f"{name}: {', '.join(options) or 'no options'}")
    lines += ["", "Options that take a function take one of these names:"]
    lines += [f"{key}: {', '.join(names)}" for key, names in KERNELS.items()]
    return "\n".join(lines)


def _check(head, method, key):
    if key in FIXED:
        raise UserError(
            f"{head}: `{key}` is the same for every method of a comparison; "
            "a name cannot set it."
        )
    if key not in method.options:
        have = ", ".join(method.options) or "none"
        raise UserError(f"{head} has no option {key!r}; its options: {have}.")


def _value(key, word):
    """The value that a word of the command line stands for."""
    kernels = KERNELS.get(key, {})
    name, has_arguments, _ = word.partition("(")
    if name in kernels:
        kernel = kernels[name]
        return _with_arguments(kernel, word) if has_arguments else kernel
    try:
        return ast.literal_eval(word)
    except (ValueError, SyntaxError):
        pass
    if kernels:
        raise UserError(f"`{key}` must be one of {', '.join(kernels)}, got {word!r}.")
    return math.inf if word == "inf" else word


def _with_arguments(kernel, word):
    """A kernel with the keyword arguments of ``newton_schulz(steps=3)``."""
    try:
        call: Any = ast.parse(word, mode="eval").body
        given = {x.arg: _argument(x.value) for x in call.keywords}
        inspect.signature(kernel).bind_partial(**given)
        if call.args:
            raise ValueError
    except (AttributeError, TypeError, ValueError, SyntaxError):
        keywords = [x for x in inspect.signature(kernel).parameters if x != "x"]
        raise UserError(
            f"The arguments of a function are keywords with Python literals or tables "
            f"of optax_matrix.linalg ({', '.join(TABLES)}), such as "
            f"newton_schulz(steps=3), and it has {', '.join(keywords)}; got {word!r}."
        ) from None
    return functools.partial(kernel, **given)


def _argument(node):
    """A literal, or a table of coefficients by its name."""
    if isinstance(node, ast.Name) and node.id in TABLES:
        return getattr(linalg, node.id)
    return ast.literal_eval(node)


def _shown(value):
    return getattr(value, "__name__", value)
