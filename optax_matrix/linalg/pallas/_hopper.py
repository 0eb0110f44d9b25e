"""Symmetric products on Hopper GPUs: lower tiles only, each stored with its mirror."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

_TILE = 128
_STAGES = 4


def gram(x: Array, *, interpret: Any = None) -> Array:
    """``x x'`` for ``(..., m, n)``, in the dtype of ``x``."""
    return _stacked(_symmetric, x, interpret=interpret)


def quadratic(gram: Array, b: Array, c: Array, *, interpret: Any = None) -> Array:
    """``b A + c A A`` for symmetric A, in the dtype of A."""
    row = jnp.stack([jnp.asarray(b), jnp.asarray(c)]).astype(jnp.float32)
    return _stacked(_symmetric, gram, row, interpret=interpret)


def _stacked(f: Any, x: Array, *rest: Array, interpret: Any) -> Array:
    """Apply ``f`` to a stack with one leading axis and sides padded to whole tiles."""
    batch, (m, n) = x.shape[:-2], x.shape[-2:]
    depth = 128 // x.dtype.itemsize
    down, across = -m % _TILE, -n % (_TILE if rest else depth)
    flat = x.reshape(math.prod(batch), m, n)
    flat = jnp.pad(flat, ((0, 0), (0, down), (0, across)))
    return f(flat, *rest, interpret=interpret)[:, :m, :m].reshape(*batch, m, m)


def _symmetric(x: Array, row: Array | None = None, *, interpret: Any) -> Array:
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import mosaic_gpu as plgpu

    count, m, n = x.shape
    tile, depth = _TILE, 128 // x.dtype.itemsize
    tiles, steps = m // tile, n // depth
    even = 1 - tiles % 2
    tiling = (plgpu.TilingTransform((8, depth)), plgpu.SwizzleTransform(128))
    transpose = lambda ref: plgpu.transpose_ref(ref, (1, 0))

    def body(*refs: Any) -> None:
        x_gmem, *more = refs
        row_gmem = more.pop(0) if row is not None else None
        out_gmem, place, barrier = more
        matrix, r, c = (jax.lax.axis_index(name) for name in ("matrix", "r", "c"))
        # A triangle of tiles, folded to a rectangle.
        below = r >= c + even
        i = jnp.where(below, r - even, tiles - 1 - r)
        j = jnp.where(below, c, tiles - even - c)
        rows, cols = pl.ds(i * tile, tile), pl.ds(j * tile, tile)
        if row_gmem is not None:
            plgpu.copy_gmem_to_smem(x_gmem.at[matrix, rows, cols], place, barrier)

        def product(total: Any) -> Array:
            def step(_: Any, left: Any, right: Any) -> None:
                plgpu.wgmma(total, left, transpose(right))
                plgpu.wgmma_wait(1)

            block = lambda i: plgpu.BlockSpec(
                (tile, depth), lambda k: (i, k), transforms=tiling, delay_release=1
            )
            plgpu.emit_pipeline(
                step,
                grid=(steps,),
                in_specs=[block(i), block(j)],
                max_concurrent_steps=min(_STAGES, steps),
            )(x_gmem.at[matrix], x_gmem.at[matrix])
            return total[...]

        total = pl.run_scoped(product, plgpu.ACC((tile, tile), jnp.float32))
        if row_gmem is not None:
            plgpu.barrier_wait(barrier)
            old = place[...].astype(jnp.float32)
            total = row_gmem[0] * old + row_gmem[1] * total
        total = total.astype(x.dtype)
        place[...] = total
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(place, out_gmem.at[matrix, rows, cols])
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        transpose(place)[...] = total
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(place, out_gmem.at[matrix, cols, rows])
        plgpu.wait_smem_to_gmem(0)

    smem = plgpu.SMEM((tile, tile), x.dtype, transforms=tiling)
    operands = (x,) if row is None else (x, row)
    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((count, m, m), x.dtype),
        grid=(count, tiles + even, (tiles + 1) // 2),
        grid_names=("matrix", "r", "c"),
        scratch_types=[smem, plgpu.Barrier()],
        interpret=interpret,
    )(*operands)


def newton_schulz(y: Array, rows: Array, *, interpret: Any = None) -> Array:
    """All steps on scaled wide matrices, in half precision; only ``Z X`` is XLA's."""

    def step(y: Array, row: Array) -> tuple[Array, None]:
        a, b, c = row
        z = quadratic(gram(y, interpret=interpret), b, c, interpret=interpret)
        product = jnp.matmul(z, y, preferred_element_type=jnp.float32)
        return (a * y + product).astype(y.dtype), None

    return jax.lax.scan(step, y, rows)[0]
