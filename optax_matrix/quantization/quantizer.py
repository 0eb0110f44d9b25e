"""Which moments of a state are stored in fewer bits, and in what form."""

import dataclasses
import functools
import math
import warnings
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding, PartitionSpec

from optax_matrix._arguments import check_not_negative_int, check_positive_int
from optax_matrix._mesh import (
    explicit_spec,
    named_sharding,
    own_mesh,
    shards,
    with_auto_axes,
)
from optax_matrix._paths import key_name, leaves_with_keys, path_name
from optax_matrix.linalg.random import folded, seeded
from optax_matrix.quantization.packing import (
    Packing,
    QuantizedState,
    is_opaque,
    leaves_of,
    map_leaves,
    packed_at,
    unpacked,
)

SIGNED = ("mu", "trace", "ema", "momentum")
UNSIGNED = ("nu", "root", "largest")


@dataclasses.dataclass(frozen=True)
class Quantizer:
    """Packs a state for storage and unpacks it; see `quantize_state`."""

    signed: frozenset[str]
    unsigned: frozenset[str]
    block_size: int
    min_size: int
    batch_axes: int
    seed: int | None
    ids: Mapping[str, Any] | None
    bits: int = 8
    paths: frozenset[tuple] = frozenset()  # Of parameters, whose fields do not count.

    @classmethod
    def of(cls, *, signed: Any, unsigned: Any, **options: Any) -> "Quantizer":
        """Checks the arguments of `quantize_state` and makes a quantizer."""
        names = []
        for name, given in (("signed", signed), ("unsigned", unsigned)):
            if isinstance(given, str) or not all(isinstance(x, str) for x in given):
                raise ValueError(
                    f"`{name}` must be names of fields of the state, got {given!r}; "
                    "pass a tuple such as ('mu',)."
                )
            names.append(frozenset(given))
        if both := sorted(names[0] & names[1]):
            raise ValueError(
                f"`unsigned` must not share names with `signed`, got {both} in both; "
                "fields with negative numbers must be in `signed`."
            )
        if options["bits"] not in (4, 8):
            raise ValueError(f"`bits` must be 4 or 8, got {options['bits']!r}.")
        check_positive_int("block_size", options["block_size"])
        for name in ("min_size", "batch_axes", "seed"):
            value = options[name]
            if value is not None or name != "seed":
                check_not_negative_int(name, value)
        return cls(*names, **options)

    def beside(self, tree: Any) -> "Quantizer":
        """The quantizer of the state of such parameters or gradients."""
        paths = frozenset(keys for keys, _ in leaves_with_keys(tree))
        return dataclasses.replace(self, paths=paths)

    def pack(self, state: Any) -> QuantizedState:
        """Packs the state of `init`."""
        large = [k for k, x in leaves_of(state) if self._is_large_moment(k, x)]
        chosen = dict.fromkeys(large, ())
        count = None if self.seed is None else jnp.zeros((), jnp.int32)
        return self._packed(state, chosen, count)

    def repack(self, state: Any, old: QuantizedState) -> QuantizedState:
        """Packs the state of `update`; the same moments are quantized as before.

        Blocks that did not change keep their codes.
        """
        held = ((k, x, packed_at(old.scales, k)) for k, x in leaves_of(old.inner_state))
        chosen = {k: (x, found[1]) for k, x, found in held if found is not None}
        count = None if old.count is None else optax.safe_increment(old.count)
        return self._packed(state, chosen, count)

    def unpack(self, state: QuantizedState) -> Any:
        """The state that the transformation uses, with moments at least float32."""
        for keys, leaf in leaves_of(state.inner_state):
            found = packed_at(state.scales, keys)
            if found is not None and found[0] != (own := self._packing(keys, leaf)):
                raise ValueError(
                    f"`state` must hold {path_name(keys)} as {own.label} (codes with "
                    "or without signs; block_size, or rows and columns of four bits), "
                    f"got {found[0].label}; restore the options, or carry the state "
                    "over with optax_matrix.to_portable and from_portable."
                )
        return unpacked(state)

    def warn_if_idle(self, state: Any) -> None:
        """Warns if a state has large arrays, and none of them in a known field."""
        large = [k for k, x in leaves_of(state) if self._is_large(x)]
        if not large or any(map(self._field, large)):
            return
        fields = sorted({self._innermost(keys) or path_name(keys) for keys in large})
        warnings.warn(
            "quantize_state stores nothing in fewer bits: none of the large fields of "
            f"the state, {fields}, is in `signed` or `unsigned`; add its moments.",
            stacklevel=3,
        )

    def _is_large_moment(self, keys: tuple, leaf: Any) -> bool:
        if is_opaque(leaf):
            _check_is_quantized(leaf)
        return self._is_large(leaf) and self._field(keys) is not None

    def _is_large(self, leaf: Any) -> bool:
        if not hasattr(leaf, "dtype") or leaf.ndim < self.batch_axes:
            return False  # A state, or a number of Python's.
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return False
        return math.prod(leaf.shape[self.batch_axes :]) >= self.min_size

    def _packed(
        self, state: Any, chosen: Mapping[Any, tuple], count: Any
    ) -> QuantizedState:
        """The state with moments quantized; ``chosen`` has their codes and scales."""
        scales: dict[str, Any] = {}

        def store(keys, leaf):
            if keys not in chosen:
                return leaf
            noise = None if count is None else self._noise(keys, leaf, count)
            old = chosen[keys] or None
            packing = self._packing(keys, leaf)
            run = functools.partial(packing.pack, batch_axes=self.batch_axes)
            codes, found = _beside(leaf, run, noise=noise, old=old)
            _put(scales.setdefault(packing.label, {}), keys, found)
            return codes

        codes = map_leaves(store, state)
        return QuantizedState(codes, scales, count)

    def _innermost(self, keys: tuple) -> str | None:
        """The innermost field of the state that a leaf is in."""
        parts = (k for k in range(len(keys)) if keys[k:] in self.paths)
        own = keys[: next(parts, len(keys))]
        fields = [k.name for k in own if isinstance(k, jax.tree_util.GetAttrKey)]
        return fields[-1] if fields else None

    def _field(self, keys: tuple) -> str | None:
        """That field, if it has moments."""
        field = self._innermost(keys)
        return field if field in self.signed | self.unsigned else None

    def _packing(self, keys: tuple, leaf: Any) -> Packing:
        """That of a moment, or of its codes, which have as many axes."""
        is_matrix = jnp.ndim(leaf) >= self.batch_axes + 2
        size = None if self.bits == 4 and is_matrix else self.block_size
        return Packing(self._field(keys) not in self.unsigned, size)

    def _noise(self, keys: tuple, leaf: Any, count: Any) -> jax.Array:
        """Uniform numbers that do not depend on grouping or placement."""
        key = jax.random.fold_in(seeded(self.seed or 0), count)
        if self.ids is None:
            place = zlib.crc32(path_name(keys).encode())
            key = jax.random.fold_in(key, place)
            return jax.random.uniform(key, leaf.shape, jnp.float32)
        names = [key_name(k) for k in keys]
        group = next(name for name in names if name in self.ids)
        place = zlib.crc32("/".join(n for n in names if n != group).encode())
        of_matrices = folded(jax.random.fold_in(key, place), self.ids[group])
        draw = lambda key: jax.random.uniform(key, leaf.shape[1:], jnp.float32)
        return jax.vmap(draw)(of_matrices)


def _beside(leaf: Any, run: Callable, **arguments: Any) -> tuple[jax.Array, jax.Array]:
    """Codes sharded like the leaf, and scales as far as their number allows.

    Blocks cross the shards of Explicit axes, which reshapes do not.
    """
    spec, mesh = explicit_spec(leaf), own_mesh(leaf)
    if not spec:
        codes, scales = run(leaf, **arguments)
        sharding = named_sharding(leaf)  # None inside of `jax.jit`.
        if sharding is not None:
            found = _fitting(codes.shape, sharding.spec, sharding.mesh)
            codes = jax.device_put(codes, NamedSharding(sharding.mesh, found))
        return codes, scales
    plain = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype)
    shapes = jax.eval_shape(run, plain(leaf), **jax.tree.map(plain, arguments))
    codes, scales = (_fitting(x.shape, spec, mesh) for x in shapes)
    if codes != PartitionSpec(*spec):
        raise ValueError(
            "`bits` must be 8 where a shard of the last axis has an odd number of "
            f"columns: of {leaf.shape}, sharded as {spec}, four bits cannot be."
        )
    shardings = NamedSharding(mesh, codes), NamedSharding(mesh, scales)
    inner = lambda leaf, arguments: run(leaf, **arguments)
    return with_auto_axes(inner, shardings)(leaf, arguments)


def _fitting(shape: tuple[int, ...], spec: Any, mesh: Any) -> PartitionSpec:
    """The entries of a spec whose shards divide these axes."""
    fits = lambda n, entry: n % shards([entry], mesh.shape) == 0
    pairs = zip(shape, spec, strict=False)
    return PartitionSpec(*(x if fits(n, x) else None for n, x in pairs))


def _check_is_quantized(node: Any) -> None:
    inner = getattr(node, "inner_state", None)
    if hasattr(node, "manifest") and not isinstance(inner, QuantizedState):
        raise ValueError(
            "`inner` must not contain stacks of matrices, because a block of numbers "
            "could reach across two matrices; pass placement=om.quantized() and "
            "other=om.adamw_8bit(...) to the recipe (or `on_matrices`) instead."
        )


def _put(scales: dict[str, Any], keys: tuple, value: Any) -> None:
    for key in keys[:-1]:
        scales = scales.setdefault(key_name(key), {})
    scales[key_name(keys[-1])] = value
