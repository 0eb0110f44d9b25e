"""A placement that stores the moments of matrices in eight or four bits."""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from optax_matrix.quantization.quantizer import SIGNED, UNSIGNED, Quantizer
from optax_matrix.sharding.keep_sharding import KeepSharding
from optax_matrix.stacks.layout import Layout
from optax_matrix.stacks.placement import (
    Leaves,
    MakeState,
    Pairs,
    Placement,
    Sides,
    Step,
    Views,
)


def quantized(
    placement: Placement[Any] | None = None,
    *,
    signed: Collection[str] = SIGNED,
    unsigned: Collection[str] = UNSIGNED,
    bits: int = 8,
    block_size: int = 256,
    min_size: int = 4096,
    seed: int | None = None,
) -> Placement[Any]:
    """A placement that stores the moments of matrices in eight or four bits.

    Every recipe accepts it: ``om.galore(1e-3, rank=128, placement=om.quantized())`` is
    8-bit GaLore. Moments are quantized (`quantize_state`) on the devices that hold the
    matrices, and no block reaches across two matrices. Bases, rotations and statistics
    are not quantized.

    Args:
        placement: Placement of whole matrices on a mesh, an `owners`; None keeps the
            sharding of the arrays.
        signed: Fields of either sign, as in `quantize_state`.
        unsigned: Fields without negative numbers, as in `quantize_state`.
        bits: 8 or 4, as in `quantize_state`: 1.02 bytes per number, or 0.5 + 4/m + 4/n
            of an m x n moment, which is less where both sides are above 8.
        block_size: Number of entries that share a scale, with eight bits.
        min_size: Number of entries per matrix below which a moment is not quantized.
        seed: Seed of stochastic rounding; None rounds to the nearest value.

    Returns:
        A placement for `on_matrices` and the recipes.

    Raises:
        ValueError: If an argument is out of range.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> tx = om.muon(1e-3, placement=om.quantized(), other=om.adamw_8bit(1e-3))
        >>> state = tx.init({"kernel": jnp.ones((64, 128)), "bias": jnp.ones(128)})
        >>> [x.dtype.name for x in state.inner_state.inner_state[0].mu.values()]
        ['uint8']
        >>> params = {"kernel": jnp.ones((64, 128))}
        >>> tx = om.muon(1e-3, placement=om.quantized(bits=4))
        >>> state = tx.init(params)
        >>> [x.shape for x in state.inner_state.inner_state[0].mu.values()]
        [(1, 128, 32)]
    """
    options = {
        "signed": signed,
        "unsigned": unsigned,
        "bits": bits,
        "block_size": block_size,
        "min_size": min_size,
        "batch_axes": 1,
        "seed": seed,
        "ids": None,
    }
    if placement is None:
        placement = KeepSharding()
    elif isinstance(placement, type) or not isinstance(placement, Placement):
        raise ValueError(
            "`placement` must be None or optax_matrix.owners(mesh_axes, ...), got "
            f"{placement!r}; pass options by keyword."
        )
    return _Quantized(placement, Quantizer.of(**options))


@dataclasses.dataclass(frozen=True)
class _Quantized:
    """Runs the placement `base`, with the inner state packed between steps."""

    base: Placement[Any]
    quantizer: Quantizer

    @property
    def wire_dtype(self) -> Any:
        return self.base.wire_dtype

    def layout(
        self, leaves: Leaves, views: Views, max_batch: int | None, pairs: Pairs
    ) -> Layout:
        return self.base.layout(leaves, views, max_batch, pairs)

    def init(
        self,
        layout: Layout,
        make_state: MakeState,
        params: Leaves,
        arrays: Any,
        needs_params: bool,
    ) -> Any:
        make_packed = self._packing(make_state)
        return self.base.init(layout, make_packed, params, arrays, needs_params)

    def update(
        self,
        layout: Layout,
        step: Step,
        leaves: Mapping[str, Leaves],
        state: Any,
        arrays: Any,
        sides: Mapping[str, Sides],
        make_state: MakeState,
    ) -> tuple[Leaves, Any]:
        def run(local, stacks, packed, arrays):
            quantizer = dataclasses.replace(self.quantizer, ids=local.ids)
            old = quantizer.unpack(packed.inner_state)
            new, state = step(local, stacks, packed._replace(inner_state=old), arrays)
            inner_state = quantizer.repack(state.inner_state, packed.inner_state)
            return new, state._replace(inner_state=inner_state)

        make_packed = self._packing(make_state)
        return self.base.update(layout, run, leaves, state, arrays, sides, make_packed)

    def specs(
        self, layout: Layout, state: Any, param_specs: Mapping[str, tuple], mesh: Any
    ) -> Any:
        return self.base.specs(layout, state, param_specs, mesh)

    def _packing(self, make_state: MakeState) -> MakeState:
        def make_packed(local, stacks, arrays):
            state = make_state(local, stacks, arrays)
            return state._replace(inner_state=self.quantizer.pack(state.inner_state))

        return make_packed
