"""Symmetric products on Hopper GPUs: lower tiles only, each stored with its mirror."""

import functools
import inspect
import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

# Two compute warpgroups share a block of 256 x 128, and two blocks that run side by
# side make a square tile: the rows that they have in common are loaded once for both.
_HALF = 128
TILE = 2 * _HALF
DTYPES = (jnp.bfloat16, jnp.float16)
DEPTH = 64
_STAGES = 3
_PROCESSORS = 132  # Of an H100 or H200 with SXM; others have fewer.
# JAX 0.10 has the same interface, but cannot lower the kernels.
_FIRST_JAX = (0, 11)


@functools.cache
def is_in_this_jax() -> bool:
    """Whether JAX can lower the kernels, as far as its version and interface show."""
    try:
        from jax.experimental.pallas import mosaic_gpu as plgpu

        known = inspect.signature(plgpu.kernel).parameters
    except (ImportError, AttributeError):
        return False
    has_names = {"out_type", "scratch_types", "interpret"} <= {*known}
    return jax.__version_info__ >= _FIRST_JAX and has_names


def gram(x: Array, *, interpret: Any = None, **tuning: Any) -> Array:
    """``x x'`` for ``(..., m, n)`` in half precision, in the dtype of ``x``."""
    return _stacked(x, None, interpret, **tuning)


def quadratic(
    gram: Array, row: Array, *, interpret: Any = None, **tuning: Any
) -> Array:
    """``a I + b A + c A A`` for symmetric A in half precision, in the dtype of A."""
    return _stacked(gram, row.astype(jnp.float32), interpret, **tuning)


def _stacked(x: Array, row: Array | None, interpret: Any, **tuning: Any) -> Array:
    """Give the kernel one leading axis and whole tiles."""
    batch, (m, n) = x.shape[:-2], x.shape[-2:]
    down, across = padded(m, TILE), padded(n, DEPTH if row is None else TILE)
    out = _symmetric(stacked(x, down, across), row, interpret, **tuning)
    return out[:, :m, :m].reshape(*batch, m, m)


def _symmetric(
    x: Array,
    row: Array | None,
    interpret: Any,
    *,
    stages: int = _STAGES,
    cluster: int = 2,
    processors: int = _PROCESSORS,
) -> Array:
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import mosaic_gpu as plgpu

    count, m, n = x.shape
    tiles, steps = m // TILE, n // DEPTH
    tiling = (plgpu.TilingTransform((8, DEPTH)), plgpu.SwizzleTransform(128))
    transpose = lambda ref: ref.transpose((1, 0))
    index = lambda axis: plgpu.broadcasted_iota(
        jnp.int32, (_HALF, _HALF), axis, layout=plgpu.Layout.WGMMA
    )

    def body(*refs: Any) -> None:
        x_gmem, *more = refs
        row_gmem = more.pop(0) if row is not None else None
        out_gmem, place, barrier = more
        group = jax.lax.axis_index("group")

        @plgpu.nd_loop(
            (count, tiles + 1 - tiles % 2, (tiles + 1) // 2, 2 // cluster),
            collective_axes="pair",
        )
        def _(info: Any) -> None:
            matrix, r, c, half = info.index
            half = half + jax.lax.axis_index("half")
            i, j = unfolded(r, c, tiles)
            i, j = 2 * i, 2 * j + half
            own = pl.ds((i + group) * _HALF, _HALF)
            rows, cols = pl.ds(i * _HALF, TILE), pl.ds(j * _HALF, _HALF)
            mine = place.at[group]

            def compute(multiply: Any) -> None:
                plgpu.wait_smem_to_gmem(0, wait_read_only=True)
                if row_gmem is not None:
                    plgpu.copy_gmem_to_smem(
                        x_gmem.at[matrix, own, cols], mine, barrier.at[group]
                    )

                def product(total: Any) -> Array:
                    multiply(total)
                    return total[...]

                total = pl.run_scoped(
                    product, plgpu.WGMMAAccumulatorRef((_HALF, _HALF), jnp.float32)
                )
                if row_gmem is not None:
                    plgpu.barrier_wait(barrier.at[group])
                    old = mine[...].astype(jnp.float32)
                    total = row_gmem[1] * old + row_gmem[2] * total
                    here = index(0) + (i + group) * _HALF == index(1) + j * _HALF
                    total += jnp.where(here, row_gmem[0], 0.0)
                total = total.astype(x.dtype)
                mine[...] = total
                plgpu.commit_smem()
                plgpu.copy_smem_to_gmem(mine, out_gmem.at[matrix, own, cols])
                plgpu.wait_smem_to_gmem(0, wait_read_only=True)
                transpose(mine)[...] = total
                plgpu.commit_smem()
                plgpu.copy_smem_to_gmem(mine, out_gmem.at[matrix, cols, own])

            def step(_: Any, left: Any, right: Any, total: Any) -> Any:
                part = left.at[pl.ds(group * _HALF, _HALF)]
                plgpu.wgmma(total, part, transpose(right))
                plgpu.wgmma_wait(0)
                return total

            shared: Any = {"collective_axes": ("half",)} if cluster > 1 else {}
            plgpu.emit_pipeline_warp_specialized(
                step,
                grid=(steps,),
                memory_registers=40,
                in_specs=[
                    plgpu.BlockSpec(
                        (TILE, DEPTH), lambda k: (0, k), transforms=tiling, **shared
                    ),
                    plgpu.BlockSpec(
                        (_HALF, DEPTH), lambda k: (0, k), transforms=tiling
                    ),
                ],
                wg_axis="group",
                num_compute_wgs=2,
                max_concurrent_steps=min(stages, steps),
                compute_context=compute,
            )(x_gmem.at[matrix, rows], x_gmem.at[matrix, cols])

        plgpu.wait_smem_to_gmem(0)

    operands = (x,) if row is None else (x, row)
    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((count, m, m), x.dtype),
        grid=(processors // cluster,),
        grid_names=("pair",),
        cluster=(cluster,),
        cluster_names=("half",),
        num_threads=3,
        thread_name="group",
        scratch_types=[
            plgpu.SMEM((2, _HALF, _HALF), x.dtype, transforms=tiling),
            plgpu.Barrier(num_barriers=2),
        ],
        interpret=interpret,
    )(*operands)


def padded(side: int, tile: int) -> int:
    """The least multiple of a tile's side that is no less than a matrix's."""
    return -(-side // tile) * tile


def stacked(x: Array, rows: int, columns: int) -> Array:
    """Matrices with one leading axis, padded with zeros to so many rows and columns."""
    *batch, m, n = x.shape
    x = x.reshape(math.prod(batch), m, n)
    return jnp.pad(x, ((0, 0), (0, rows - m), (0, columns - n)))


def unfolded(r: Array, c: Array, tiles: int) -> tuple[Array, Array]:
    """Row and column of such a tile in the triangle, from those in a rectangle.

    The rectangle is the triangle, folded: ``(tiles + 1) // 2`` tiles wide.
    """
    even = 1 - tiles % 2
    below = r >= c + even
    i = jnp.where(below, r - even, tiles - 1 - r)
    return i, jnp.where(below, c, tiles - even - c)
