"""Newton-Schulz on TPUs with all steps of a matrix in fast memory (VMEM).

A matrix is read from main memory and written there once. Of both symmetric products
only tiles on and below the diagonal are computed, each stored with its mirror.
"""

from collections.abc import Callable
from typing import Any

import jax
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

_PANELS = tuple(range(1536, 511, -128))
_DEPTH = 4096  # At most as many columns are multiplied at a time.
# Beside what `_bytes` counts: what the compiler takes for itself; and sums in float32
# and registers that it spills.
_LEFT = 2**20
_SPARE = 4 * 2**20 + _LEFT


def fits(m: int, n: int, dtype: jnp.dtype, vmem: int) -> bool:
    """Whether the iteration on wide matrices fits in so many bytes of fast memory."""
    return _bytes(m, n, dtype, 1) <= vmem


def _bytes(m: int, n: int, dtype: jnp.dtype, copies: int) -> int:
    """Input and result in so many copies, two symmetric matrices, and a panel."""
    tile, panel = _tiles(m, n)
    m, n = padded(m, tile), padded(n, panel)
    return dtype.itemsize * (2 * copies * m * n + 2 * m * m + m * panel) + _SPARE


def _tiles(m: int, n: int) -> tuple[int, int]:
    """Side of the tiles of symmetric products, and width of the panels of the other."""
    tile = 128 if m <= 128 else tile_of(m, (256, 384))
    return tile, padded(n, 128) if n <= _PANELS[0] else tile_of(n, _PANELS)


def iterate(y: Array, rows: Array, *, vmem: int, interpret: Any = False) -> Array:
    """A step for each row of coefficients, on scaled wide matrices ``(..., m, n)``."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    (m, n), dtype = y.shape[-2:], y.dtype
    tile, panel = _tiles(m, n)
    down, across = padded(m, tile), padded(n, panel)
    x = stacked(y, down, across)
    # With two copies the next matrix is fetched, and the last one sent, meanwhile.
    copies = 2 if _bytes(m, n, dtype, 2) <= vmem else 1
    block = pl.BlockSpec(
        (None, down, across),
        lambda i: (i, 0, 0),
        pipeline_mode=pl.Buffered(copies),
    )
    out = pl.pallas_call(
        _body(down // tile, tile, across // panel, panel, len(rows)),
        name="newton_schulz",
        out_shape=like(x, lambda x: x),
        grid=(len(x),),
        in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM), block],
        out_specs=block,
        scratch_shapes=[
            pltpu.VMEM((down, down), dtype),
            pltpu.VMEM((down, down), dtype),
            pltpu.VMEM((down, panel), dtype),
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel",), vmem_limit_bytes=vmem - _LEFT
        ),
        cost_estimate=pl.CostEstimate(
            flops=len(rows) * len(x) * _flops(down, across, tile),
            bytes_accessed=2 * x.size * dtype.itemsize,
            transcendentals=0,
        ),
        interpret=interpret,
    )(rows, x)
    return out[:, :m, :n].reshape(y.shape)


def _flops(m: int, n: int, tile: int) -> int:
    """Operations of the products in a step."""
    return m * (m + tile) * (n + m) + 2 * m * m * n


def _body(tiles: int, tile: int, panels: int, panel: int, steps: int) -> Any:
    from jax.experimental import pallas as pl

    divisors = (k for k in range(1, panels + 1) if panels % k == 0)
    depth = panel * max(k for k in divisors if k * panel <= _DEPTH)

    def square(x: Any, below: Any, right: Any) -> Array:
        """A tile of ``X X'``."""

        def add(k: Array, total: Array) -> Array:
            columns = part(k, depth)
            return total + dot(x[below, columns], x[right, columns].T)

        zero = jnp.zeros((tile, tile), jnp.float32)
        return jax.lax.fori_loop(0, panels * panel // depth, add, zero)

    def multiply_panels(factor: Any, x: Any, old: Any) -> None:
        """``Z X`` in place of X."""

        @pl.loop(0, panels)
        def _(k: Array) -> None:
            columns = part(k, panel)
            old[...] = x[:, columns]

            @pl.loop(0, tiles)
            def _(i: Array) -> None:
                own = part(i, tile)
                x[own, columns] = dot(factor[own, :], old[...]).astype(x.dtype)

    def kernel(
        table: Any, source: Any, x: Any, gram: Any, factor: Any, old: Any
    ) -> None:
        @pl.loop(0, tiles)
        def _(i: Array) -> None:
            x[part(i, tile), :] = source[part(i, tile), :]

        @pl.loop(0, steps)
        def _(step: Array) -> None:
            a, b, c = (table[step, k] for k in range(3))

            def polynomial(below: Any, right: Any, is_diagonal: Array) -> Array:
                linear = b * gram[below, right].astype(jnp.float32)
                linear += jnp.where(is_diagonal, a, 0.0) * ones(linear)
                return linear + c * dot(gram[below, :], gram[:, right])

            _fill(gram, tiles, lambda below, right, _: square(x, below, right))
            _fill(factor, tiles, polynomial)
            multiply_panels(factor, x, old)

    return kernel


def _fill(out: Any, tiles: int, tile_at: Callable[[Any, Any, Any], Array]) -> None:
    """Store the tiles of a symmetric matrix below the diagonal, and their mirrors."""
    from jax.experimental import pallas as pl

    tile, number = out.shape[0] // tiles, lower_tiles(tiles)
    # Two tiles or three in a round: one begins while the last one ends.
    together = next(k for k in (2, 3, 1) if number % k == 0)

    @pl.loop(0, number, unroll=together)
    def _(k: Array) -> None:
        i, j = lower_tile(k, tiles)
        below, right = part(i, tile), part(j, tile)
        value = tile_at(below, right, i == j).astype(out.dtype)
        out[right, below] = value.T
        out[below, right] = value
