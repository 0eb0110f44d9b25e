"""What the leaves around a leaf show about it: stacks, routers, orientation."""

import dataclasses
import functools
import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from optax_matrix.matrices._scopes import Scopes, Shape, scopes_of
from optax_matrix.matrices._words import name_of
from optax_matrix.matrices.names import LORA_FACTOR, numbers_of_kernel, side_by_name
from optax_matrix.matrices.view import make_view

_ROUTER = re.compile(r"(^|/)gate(/(kernel|weight|w))?$", re.I)
_EXPERTS = re.compile(r"(^|/)(experts?|expert_\d+)(/|$)", re.I)


_USUAL = ("kernel", "weight", "w")
_OTHER_FACTOR = str.maketrans("abAB", "baBA")
STACK_OF_VECTORS = "a stack of vectors: its siblings are stacks of matrices"
NO_NAME = "two axes, but not the name of a kernel"


@dataclasses.dataclass(frozen=True)
class Leaf:
    """A leaf, with what the default rule uses of its tree.

    Attributes:
        shape: Its shape.
        dtype: Its dtype.
        layer: Dimension numbers (or None) and the reason, if the type of its layer
            determines them.
        other: Why it is no kernel by its siblings, or None.
        stack: Number of axes in front that count layers, experts or members.
        is_transposed: Whether it is ``(out, in)`` by its siblings.
        axes: Those of its inputs and of its outputs, if its siblings determine them.
    """

    shape: tuple[int, ...]
    dtype: Any
    layer: tuple[Any, str] | None = None
    other: str | None = None
    stack: int = 0
    is_transposed: bool = False
    axes: tuple[tuple[int, ...], tuple[int, ...]] | None = None


class Siblings:
    """The shapes of a tree, with questions about one path of them.

    Each fact about a scope is computed once for the scope, so that the work grows no
    faster than the number of leaves.
    """

    def __init__(self, leaves: Mapping[str, Any]):
        self.shapes = {p: tuple(x.shape) for p, x in leaves.items()}
        self.names = {path: name_of(path) for path in self.shapes}
        self.scopes = Scopes(self.shapes)
        self.stack = functools.cache(self._stack)
        self._batch_axes = functools.cache(self._find_batch_axes)
        self._stacks_of = functools.cache(self._find_stacks)
        self._has_flat_vector = functools.cache(self._find_flat_vector)
        self._around_router = functools.cache(self._find_around_router)
        self._of_three_axes = functools.cache(self._find_of_three_axes)

    def why_other(self, path: str) -> str | None:
        """Why a leaf is no kernel: a stack of vectors, or a router; else None."""
        if not self._is_surely_kernel(path) and self._is_stack_of_vectors(path):
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

    def _is_surely_kernel(self, path: str) -> bool:
        """Whether a leaf is called ``kernel``, or has a bias of fewer axes."""
        bias = self._bias(path)
        has_bias = bias is not None and len(bias) < len(self.shapes[path])
        return self.names[path].name == "kernel" or has_bias

    def _is_stack_of_vectors(self, path: str) -> bool:
        """Whether all axes but the last are those of a stack of kernels.

        In the smallest scope that has such kernels, all leaves have these axes in
        front.
        """
        front = self.shapes[path][:-1]
        scopes = (x for x in scopes_of(path) if self._stacks_of(x, front))
        scope = next(scopes, None)
        return scope is not None and self.scopes.all_start(scope, front)

    def _find_stacks(self, scope: str, front: Shape) -> list[str]:
        n = len(front)
        return [p for p in self.scopes.starting(scope, front) if self._is_stack(p, n)]

    def _is_stack(self, path: str, n: int) -> bool:
        if len(self.shapes[path]) < n + 2 or self.names[path].is_vector:
            return False
        return self._batch_axes(path)[:n] == tuple(range(n))

    def _find_batch_axes(self, path: str) -> tuple[int, ...]:
        leaf = Leaf(self.shapes[path], None, stack=self.stack(path))
        leaf = dataclasses.replace(leaf, axes=self.axes(path))
        return make_view(leaf.shape, numbers_of_kernel(path, leaf)[0], path).batch_axes

    def _stack(self, path: str) -> int:
        """One if a scope of the leaf is stacked, which named vectors of two axes show.

        All leaves of the scope have the same first axis, and one of them is a bias or
        scale by its name.
        """
        first = self.shapes[path][:1]
        for scope in scopes_of(path):
            if not self.scopes.all_start(scope, first):
                return 0
            if self._has_flat_vector(scope):
                return 1
        return 0

    def _find_flat_vector(self, scope: str) -> bool:
        members = self.scopes.members[scope]
        vectors = (p for p in members if self.names[p].is_vector)
        return any(len(self.shapes[p]) == 2 for p in vectors)

    def _is_router(self, path: str) -> bool:
        """A gate beside stacks of experts."""
        shape = self.shapes[path]
        name = self.names[path].path
        if not _ROUTER.search(name) or len(shape) != 2 + self.stack(path):
            return False
        parent, n = scopes_of(self.names[path].module)[0], len(shape) - 2
        inside, counts = self._around_router(parent, n)
        return len(inside) > (path in inside) or bool(counts & set(shape[n:]))

    def _find_around_router(self, scope: str, n: int) -> tuple[set, set]:
        """Paths of experts, and sizes that count experts."""
        around = self.scopes.members.get(scope, [])
        inside = {p for p in around if _EXPERTS.search(p.removeprefix(scope))}
        stacks = (p for p in around if len(self.shapes[p]) == n + 3)
        counts = {self.shapes[p][n] for p in stacks if self._is_stack(p, n + 1)}
        return inside, counts

    def axes(self, path: str) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """Axes of inputs and outputs of a kernel of three or more, by its siblings.

        A bias has the axes of a stack, if there is one, and that of the outputs: the
        last, the first of a convolution ``(out, in, ...)``, or the last but one of a
        transposed one, ``(..., out, in)``. Kernels ``(in, heads, dim)`` and
        ``(heads, dim, out)`` of one attention share their axes of heads, both factors
        of a LoRA pair that of their rank.
        """
        if factor := LORA_FACTOR.search(path):
            return self._of_pair(path, factor)
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
            around = self._of_three_axes(self._scope(path))
            if any(s[1:] == shape[:2] and s[0] != shape[0] for s in around):
                return (0, 1), (2,)
            if any(s[:2] == shape[1:] and s[0] != shape[0] for s in around):
                return (0,), (1, 2)
        return None

    def _of_pair(self, path: str, factor: re.Match) -> Any:
        """Axes of a LoRA factor, whose rank is a side of both factors.

        It is the last axis of A and the first of B, ``(..., rank)`` and ``(rank,
        ...)``, or the other way round as in PyTorch; axes in front may be of layers.
        """
        start, end = factor.span("factor")
        other = path[:start] + factor["factor"].translate(_OTHER_FACTOR) + path[end:]
        shape, pair = self.shapes[path], self.shapes.get(other, ())
        is_a, n = factor["factor"] in "aA", len(shape)
        a, b = (shape, pair) if is_a else (pair, shape)
        for k in range(min(len(a), len(b)) - 2, -1, -1):
            every, last = tuple(range(k, n)), n - 1
            if a[:k] == b[:k] and a[-1] == b[k]:
                return (every[:-1], (last,)) if is_a else ((k,), every[1:])
            if a[:k] == b[:k] and a[k] == b[-1]:
                return (every[1:], (k,)) if is_a else ((last,), every[:-1])
        return None

    def _find_of_three_axes(self, scope: str) -> set[Shape]:
        kernels = (p for p in self.scopes.members[scope] if self._scope(p) == scope)
        return {s for p in kernels if len(s := self.shapes[p]) == 3}

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

        Its bias decides, or the width of the embedding together with its name; else all
        leaves of this name for which it is known.
        """
        own = self._transposed(path)
        return self._convention(path) == {True} if own is None else own

    def is_of_unknown_side(self, path: str) -> bool:
        """Whether a ``weight`` could as well be ``(out, in)`` or ``(out, in, ...)``."""
        if self.names[path].name != "weight" or self._has_flax:
            return False
        if len(self.shapes[path]) > 2 + self.layers(path):
            return self.axes(path) is None
        return self._transposed(path) is None and len(self._convention(path)) != 1

    @functools.cached_property
    def _has_flax(self) -> bool:
        return any(p.rpartition("/")[2] == "kernel" for p in self.shapes)

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
        if first == last or len(front) - 2 != self.layers(path):
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

    def layers(self, path: str) -> int:
        """Axes in front of a kernel that count layers."""
        return min(self.stack(path), len(self.shapes[path]) - 2)

    @functools.cached_property
    def _width(self) -> int | None:
        """The width of the model: the shorter side of its largest embedding."""
        tables = [
            shape
            for path, shape in self.shapes.items()
            if len(shape) == 2 and self.names[path].is_embedding
        ]
        return min(max(tables, key=max)) if tables else None
