"""Signatures with types and kernels by the names that the source uses."""

import inspect
import re
import sys
import typing
from collections.abc import Callable
from types import NoneType, UnionType
from typing import Any

import jax
import optax


def setup(app: Any) -> dict[str, Any]:
    """Formats the signatures that autodoc finds."""
    app.connect("autodoc-process-signature", format_signature)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def format_signature(
    app: Any, what: str, name: str, value: Any, options: Any, *signature: str
) -> tuple[str, str] | None:
    """Formats the signature of a function or method."""
    del app, name, options, signature
    if what not in ("function", "method"):
        return None
    own = inspect.signature(value, eval_str=True)
    parameters = [
        p.replace(annotation=_annotation(p.annotation), default=_default(p.default))
        for p in own.parameters.values()
    ]
    if what == "method" and parameters and parameters[0].name == "self":
        parameters = parameters[1:]
    plain = own.replace(parameters=parameters, return_annotation=own.empty)
    result = "" if own.return_annotation is own.empty else _hint(own.return_annotation)
    return str(plain), result


class _Text(str):
    """A text that stands for itself in a signature."""

    __repr__ = str.__str__


def _annotation(hint: Any) -> Any:
    return hint if hint is inspect.Parameter.empty else _Text(_hint(hint))


def _default(value: Any) -> Any:
    return _Text(value.__name__) if inspect.isroutine(value) else value


def _aliases() -> dict[str, Any]:
    """Names of types that are unions or annotated, by which the source knows them."""
    known = {"ArrayLike": jax.typing.ArrayLike, "DTypeLike": jax.typing.DTypeLike}
    known["ScalarOrSchedule"] = optax.ScalarOrSchedule
    module = sys.modules.get("optax_matrix._arguments")
    for name, value in vars(module).items() if module else ():
        if typing.get_origin(value) is typing.Annotated:
            known.setdefault(name, value)
    return known


_ALIASES = _aliases()


def _hint(hint: Any) -> str:
    for name, alias in _ALIASES.items():
        if hint == alias:
            return name
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Union or isinstance(hint, UnionType):
        return " | ".join(_union(list(parts)))
    if origin is typing.Literal:
        return f"Literal[{', '.join(map(repr, parts))}]"
    if origin is typing.Annotated:
        return _hint(parts[0])
    if origin is Callable:
        inputs, output = parts or (..., Any)
        inside = "..." if inputs is ... else f"[{', '.join(map(_hint, inputs))}]"
        return f"Callable[{inside}, {_hint(output)}]"
    if origin is not None:
        return f"{_hint(origin)}[{', '.join(map(_hint, parts))}]"
    if hint in (..., None, NoneType):
        return "..." if hint is ... else "None"
    name = getattr(hint, "__name__", str(hint))
    return re.sub(r"\b(\w+\.)+(?=\w)", "", name)


def _union(parts: list[Any]) -> list[str]:
    for name, alias in _ALIASES.items():
        inner = typing.get_args(alias)
        is_union = typing.get_origin(alias) in (typing.Union, UnionType)
        if is_union and set(inner) <= set(parts):
            rest = [part for part in parts if part not in inner]
            return [name, *_union(rest)]
    return [_hint(part) for part in parts]
