"""Symmetric products on TPUs: lower tiles only, each stored with its mirror."""

import functools
import math
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from examples.study.tpu._tiles import (
    dot,
    like,
    lower_tile,
    lower_tiles,
    ones,
    part,
    tile_of,
)
from optax_matrix.linalg.pallas import padded, stacked

# The larger a tile, the less often rows are read again. A matrix has few of them.
_TILES = (1024, 768, 512)
_DEPTH = 512
_ROWS = 256  # Of a tile, computed at a time.
_LIMIT = 48 * 2**20  # Bytes of fast memory; with less, the smallest tiles.


def gram(x: Array, *, vmem: int, interpret: Any = False) -> Array:
    """``x x'`` for ``(..., m, n)``, in the dtype of ``x``."""
    return _stacked(x, None, vmem, interpret)


def quadratic(gram: Array, row: Array, *, vmem: int, interpret: Any = False) -> Array:
    """``a I + b A + c A A`` for symmetric A, in the dtype of A."""
    return _stacked(gram, row.astype(jnp.float32), vmem, interpret)


def _stacked(x: Array, row: Array | None, vmem: int, interpret: Any) -> Array:
    """Give the kernel one leading axis and whole tiles."""
    batch, (m, n) = x.shape[:-2], x.shape[-2:]
    limit = min(_LIMIT, vmem - 2**20)
    tile = tile_of(m, _TILES if limit == _LIMIT else _TILES[-1:])
    down = padded(m, tile)
    across = padded(n, _DEPTH) if row is None else down
    out = _symmetric(stacked(x, down, across), row, tile, limit, interpret)
    return out[:, :m, :m].reshape(*batch, m, m)


def _symmetric(
    x: Array, row: Array | None, tile: int, limit: int, interpret: Any
) -> Array:
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    count, m, n = x.shape
    # Of a square operand there are as many columns as rows.
    depth = _DEPTH if row is None else tile // -(-tile // _DEPTH)
    tiles, steps = m // tile, n // depth
    number = lower_tiles(tiles)
    left, right, own = (functools.partial(f, tiles) for f in (_left, _right, _own))
    specs = [pl.BlockSpec((None, tile, depth), index) for index in (left, right)]
    operands = [x, x]
    if row is not None:
        fixed = pl.BlockSpec(memory_space=pltpu.SMEM)
        specs = [*specs, pl.BlockSpec((None, tile, tile), own), fixed]
        operands = [*operands, x, row]
    size = x.dtype.itemsize
    return pl.pallas_call(
        functools.partial(_body, tiles, steps),
        name="gram" if row is None else "quadratic",
        out_shape=like(x, lambda x: x[:, :, :1] * x[:, :, :1].mT),
        grid=(count, number, steps),
        in_specs=specs,
        out_specs=pl.BlockSpec(memory_space=pl.ANY),
        scratch_shapes=[
            pltpu.VMEM((tile, tile), jnp.float32),
            pltpu.VMEM((2, tile, tile), x.dtype),
            pltpu.SemaphoreType.DMA,
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary", "arbitrary"),
            vmem_limit_bytes=limit,
        ),
        cost_estimate=pl.CostEstimate(
            flops=2 * count * number * tile * tile * n,
            bytes_accessed=2 * size * count * number * tile * (n + tile),
            transcendentals=0,
        ),
        interpret=interpret,
    )(*operands)


def _left(tiles: int, matrix: Array, k: Array, step: Array) -> tuple[Array, ...]:
    return matrix, lower_tile(k, tiles)[0], step


def _right(tiles: int, matrix: Array, k: Array, step: Array) -> tuple[Array, ...]:
    return matrix, lower_tile(k, tiles)[1], step


def _own(tiles: int, matrix: Array, k: Array, _: Array) -> tuple[Array, ...]:
    return matrix, *lower_tile(k, tiles)


def _body(tiles: int, steps: int, left: Any, right: Any, *refs: Any) -> None:
    from jax.experimental import pallas as pl

    *more, out, total, places, done = refs
    tile = total.shape[0]
    rows = math.gcd(tile, _ROWS)
    matrix, k, step = map(pl.program_id, range(3))

    @pl.when(step == 0)
    def _() -> None:
        total[...] = jnp.zeros_like(total)

    @pl.loop(0, tile // rows)
    def _(i: Array) -> None:
        own = part(i, rows)
        total[own, :] += dot(left[own, :], right[...].T)

    at = lower_tile(k, tiles)
    copies = _copies(places, out.at[matrix], at, done)

    def wait() -> None:
        for copy in copies:
            copy.wait()

    @pl.when(step == steps - 1)
    def _() -> None:
        # Copies of the tile before are of the same size, and are waited for alike.
        pl.when(k > 0)(wait)

        @pl.loop(0, tile // rows)
        def _(i: Array) -> None:
            own = part(i, rows)
            value = total[own, :]
            if more:
                old, row = more
                value = row[1] * old[own, :].astype(jnp.float32) + row[2] * value
                value += jnp.where(at[0] == at[1], row[0], 0.0) * ones(value, i * rows)
            places[0, own, :] = value.astype(places.dtype)
            places[1, :, own] = value.T.astype(places.dtype)

        for copy in copies:
            copy.start()
        pl.when(k == lower_tiles(tiles) - 1)(wait)


def _copies(places: Any, out: Any, index: tuple[Array, Array], done: Any) -> list[Any]:
    """Copies of a tile to its place and to that of its mirror.

    A tile on the diagonal is its own mirror.
    """
    from jax.experimental.pallas import tpu as pltpu

    i, j = index
    own, other = (part(i, places.shape[-1]) for i in index)
    mirror = jnp.where(i == j, 0, 1)
    return [
        pltpu.make_async_copy(places.at[0], out.at[own, other], done),
        pltpu.make_async_copy(places.at[mirror], out.at[other, own], done),
    ]
