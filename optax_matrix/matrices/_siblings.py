"""What the leaves around a leaf say of it: stacks, routers, orientation."""

import dataclasses
import functools
import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from optax_matrix._paths import prefixes
from optax_matrix.matrices._words import name_of
from optax_matrix.matrices.names import numbers_of_kernel, side_by_name
from optax_matrix.matrices.view import make_view

ROUTER = re.compile(r"(^|/)(gate|wg|switch|gating)(/(kernel|weight|w))?$", re.I)
_UP = re.compile(r"(^|/)(up|w3|wi)(_proj)?(/(kernel|weight|w))?$", re.I)
_EXPERTS = re.compile(r"(^|/)(experts?|expert_\d+)(/|$)", re.I)


_USUAL = ("kernel", "weight", "w")
STACK_OF_VECTORS = "a stack of vectors: its siblings are stacks of matrices"
NO_NAME = "two axes, but not the name of a kernel"


@dataclasses.dataclass(frozen=True)
class Leaf:
    """A leaf as the default rule sees it.

    Attributes:
        shape: Its shape.
        dtype: Its dtype.
        layer: Dimension numbers (or None) and the reason, if the type of its layer
            tells them.
        other: Why its siblings say that it is no kernel, or None.
        stack: Number of axes in front that count layers, experts or members.
        is_transposed: Whether its siblings say that it is ``(out, in)``.
        axes: Those of its inputs and of its outputs, if its siblings tell them.
    """

    shape: tuple[int, ...]
    dtype: Any
    layer: tuple[Any, str] | None = None
    other: str | None = None
    stack: int = 0
    is_transposed: bool = False
    axes: tuple[tuple[int, ...], tuple[int, ...]] | None = None


class Siblings:
    """The shapes of a tree, with questions about one path of them."""

    def __init__(self, leaves: Mapping[str, Any]):
        self.shapes = {p: tuple(x.shape) for p, x in leaves.items()}
        self.names = {path: name_of(path) for path in self.shapes}
        self.stack = functools.cache(self._stack)
        self._stacks_of = functools.cache(self._find_stacks)
        self._all_start = functools.cache(self._do_all_start)
        self.scopes: dict[str, list[str]] = defaultdict(list)
        for path in self.shapes:
            for scope in _scopes(path):
                self.scopes[scope].append(path)

    def why_other(self, path: str) -> str | None:
        """Why a leaf is no kernel: a stack of vectors, or a router; else None."""
        if self._is_stack_of_vectors(path):
            return STACK_OF_VECTORS
        if self._is_router(path):
            return "a router beside experts"
        name = self.names[path]
        is_known = name.is_kernel or name.is_embedding
        return NO_NAME if self._has_names and not is_known else None

    @functools.cached_property
    def _has_names(self) -> bool:
        """Whether kernels have the usual names in the modules of this tree."""
        return any(x.module and x.name in _USUAL for x in self.names.values())

    def _is_stack_of_vectors(self, path: str) -> bool:
        """Whether all axes but the last are those of a stack of kernels.

        In the smallest scope that has such kernels, all leaves must have these axes in
        front, or such a kernel must be beside the leaf and have a side of its size.
        """
        *front, size = self.shapes[path]
        front = tuple(front)
        for scope in _scopes(path):
            stacks = self._stacks_of(scope, front)
            if not stacks:
                continue
            if self._all_start(scope, front):
                return True
            parent = _scopes(path)[0]
            return scope == parent and any(
                _scopes(p)[0] == parent and self._is_clear(p, len(front), size)
                for p in stacks
            )
        return False

    def _is_clear(self, path: str, front: int, size: int) -> bool:
        """Whether a stack has a side of this size and few matrices for their sides."""
        stack, sides = self.shapes[path][:front], self.shapes[path][front:]
        return size in sides and max(stack) <= max(16, *sides) and min(sides) >= 8

    def _find_stacks(self, scope: str, front: tuple[int, ...]) -> list[str]:
        return [p for p in self.scopes[scope] if self._is_stack(p, front)]

    def _do_all_start(self, scope: str, front: tuple[int, ...]) -> bool:
        return all(self._starts(p, front) for p in self.scopes[scope])

    def _is_stack(self, path: str, front: tuple[int, ...]) -> bool:
        shape, n = self.shapes[path], len(front)
        if len(shape) < n + 2 or shape[:n] != front or self.names[path].is_vector:
            return False
        return self._batch_axes(path)[:n] == tuple(range(n))

    def _batch_axes(self, path: str) -> tuple[int, ...]:
        leaf = Leaf(self.shapes[path], None, stack=self.stack(path))
        leaf = dataclasses.replace(leaf, axes=self.axes(path))
        return make_view(leaf.shape, numbers_of_kernel(path, leaf)[0], path).batch_axes

    def _starts(self, path: str, front: tuple[int, ...]) -> bool:
        return self.shapes[path][: len(front)] == front

    def _stack(self, path: str) -> int:
        """One if a scope of the leaf is stacked, as its named vectors of two axes say.

        All leaves of the scope have the same first axis, and one of them is a bias or
        scale by its name.
        """
        first = self.shapes[path][:1]
        for scope in _scopes(path):
            members = self.scopes[scope]
            if not self._all_start(scope, first):
                return 0
            vectors = (p for p in members if self.names[p].is_vector)
            if any(len(self.shapes[p]) == 2 for p in vectors):
                return 1
        return 0

    def _is_router(self, path: str) -> bool:
        """A gate beside stacks of experts; not one beside an `up` of its own shape."""
        shape = self.shapes[path]
        name = self.names[path].path
        if not ROUTER.search(name) or len(shape) != 2 + self.stack(path):
            return False
        parent = _scopes(self.names[path].module)[0]
        around = self.scopes.get(parent, [])
        if any(_UP.search(p) and self.shapes[p] == shape for p in around):
            return False
        inside = [p.removeprefix(parent) for p in around if p != path]
        n = len(shape) - 2
        counts = {self.shapes[p][n] for p in around if len(self.shapes[p]) == n + 3}
        return any(map(_EXPERTS.search, inside)) or bool(counts & set(shape[n:]))

    def axes(self, path: str) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """Axes of inputs and outputs of a kernel of three or more, by its siblings.

        A bias has the axes of a stack, if there is one, and that of the outputs: the
        last, the first of a convolution ``(out, in, ...)``, or the last but one of a
        transposed one, ``(..., out, in)``. Kernels ``(in, heads,
        dim)`` and ``(heads, dim, out)`` of one attention share their axes of heads.
        """
        shape, bias = self.shapes[path], self._bias(path)
        n = len(shape)
        if n < 3 or self.names[path].is_vector:
            return None
        if bias is not None:
            front = len(bias) - 1
            if bias == (*shape[:front], shape[-1]):
                several = n > front + 2
                return (tuple(range(front, n - 1)), (n - 1,)) if several else None
            sizes = tuple(size for size in bias if size > 1)
            if sizes == shape[:1] and bias[0] != shape[-1]:
                return tuple(range(1, n)), (0,)
            if n > 3 and sizes == shape[-2:-1] and sizes != shape[-1:]:
                return (*range(n - 2), n - 1), (n - 2,)
        if n == 3 and bias is None:
            scope = self._scope(path)
            kernels = (p for p in self.scopes[scope] if self._scope(p) == scope)
            around = [s for p in kernels if len(s := self.shapes[p]) == 3]
            if any(s[1:] == shape[:2] and s[0] != shape[0] for s in around):
                return (0, 1), (2,)
            if any(s[:2] == shape[1:] and s[0] != shape[0] for s in around):
                return (0,), (1, 2)
        return None

    def _scope(self, path: str) -> str:
        """The scope that the module of a leaf is in."""
        return self.names[path].module.rpartition("/")[0]

    def _bias(self, path: str) -> tuple[int, ...] | None:
        of_path = self.names[path]
        plain, module, name = of_path.path, of_path.module, of_path.name
        own = re.sub(r"weights?|kernel", "bias", name)
        own = re.sub(r"(?<![^_])w(?=\d*$)", "b", own)
        is_usual = name in (*_USUAL, "weight_v")  # The direction of a weight norm.
        names = (own, "bias", "b") if is_usual else (own,)
        paths = (f"{module}/{n}{end}".lstrip("/") for n in names for end in ("", "/0"))
        return next(
            (self.shapes[p] for p in paths if p in self.shapes and p != plain), None
        )

    def is_transposed(self, path: str) -> bool:
        """Whether a leaf of two axes (and stack) is ``(out, in)``.

        Its bias tells it, or the width of the embedding beside its name; else it is as
        all leaves of this name are of which that is known.
        """
        own = self._transposed(path)
        return self._convention(path) == {True} if own is None else own

    def is_of_unknown_side(self, path: str) -> bool:
        """Whether a ``weight`` could as well be ``(out, in)``."""
        name = self.names[path].name
        known = self._transposed(path) is not None or len(self._convention(path)) == 1
        has_flax = any(p.rpartition("/")[2] == "kernel" for p in self.shapes)
        return name == "weight" and not known and not has_flax

    def _convention(self, path: str) -> set[bool]:
        return self._conventions[self.names[path].name]

    @functools.cached_property
    def _conventions(self) -> dict[str, set[bool]]:
        found = defaultdict(set)
        for path in self.shapes:
            if (known := self._transposed(path)) is not None:
                found[self.names[path].name].add(known)
        return found

    def _transposed(self, path: str) -> bool | None:
        *front, first, last = (1, 1, *self.shapes[path])
        if first == last or len(front) - 2 != self._layers(path):
            return None
        bias = self._bias(path)
        if bias and bias[-1] in (first, last):
            return bias[-1] == first
        side = side_by_name(path)
        is_named = self.names[path].name == "weight"
        if side and is_named and not self.names[path].is_embedding:
            width = {"in": (first, last), "out": (last, first)}[side]
            found = [self._width == w for w in width]
            return found[1] if any(found) else None
        return None

    def _layers(self, path: str) -> int:
        """Axes in front of a kernel, if its stack or the axes of its bias tell them."""
        bias = self._bias(path)
        in_front = len(self.shapes[path]) - 2
        if bias and len(bias) == in_front + 1 and self._starts(path, bias[:-1]):
            return in_front
        return min(self.stack(path), in_front)

    @functools.cached_property
    def _width(self) -> int | None:
        """The width of the model: the shorter side of its largest embedding."""
        tables = [
            shape
            for path, shape in self.shapes.items()
            if len(shape) == 2 and self.names[path].is_embedding
        ]
        return min(max(tables, key=max)) if tables else None

    def layers_on_axis_one(self, path: str) -> int | None:
        """The size of axis 1 if all leaves of a scope have it, and not one axis 0."""
        for scope in _scopes(path):
            shapes = [self.shapes[p] for p in self.scopes[scope]]
            if sum(len(s) > 2 for s in shapes) < 2 or any(len(s) < 2 for s in shapes):
                continue
            kernels = {s[0] for s in shapes if len(s) > 2}
            if len({s[1] for s in shapes}) == 1 and len(kernels) > 1:
                return shapes[0][1]
        return None

    def beside(self, path: str) -> dict[str, tuple[int, ...]]:
        """The other kernels of the smallest scope that has some."""
        for scope in _scopes(path):
            found = {p: self.shapes[p] for p in self.scopes[scope] if p != path}
            found = {
                p: shape
                for p, shape in found.items()
                if len(shape) >= 2 and not self.names[p].is_vector
            }
            if found:
                return found
        return {}


@functools.cache
def _scopes(path: str) -> list[str]:
    """The paths above a leaf, the nearest first; the root is ``""``."""
    return [*prefixes(path)[1:], ""]
