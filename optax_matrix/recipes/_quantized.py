"""Eight-bit optimizers: recipes with their moments quantised, and 8-bit AdamW."""

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any

import optax
from jax.typing import ArrayLike

from optax_matrix.arguments import check_decay, check_not_negative, check_rate
from optax_matrix.layout import Layout
from optax_matrix.layout._as_sharded import AsSharded
from optax_matrix.transforms import quantize_state
from optax_matrix.transforms.wrappers import SIGNED, UNSIGNED, Quantizer


def quantized(
    placement: Any = None,
    *,
    signed: Collection[str] = SIGNED,
    unsigned: Collection[str] = UNSIGNED,
    block_size: int = 256,
    min_size: int = 4096,
    seed: int | None = None,
) -> Any:
    """A placement under which the moments of matrices are stored in eight bits.

    Every recipe takes it: ``om.galore(1e-3, rank=128, placement=om.quantized())`` is
    8-bit GaLore. Moments are quantised (`quantize_state`) where the matrices live, in
    blocks that stay inside a matrix; bases, rotations and statistics stay as they are.

    Args:
        placement: Where whole matrices live on a mesh, an `owners`; None leaves arrays
            as they are sharded.
        signed: Fields of either sign, as in `quantize_state`.
        unsigned: Fields without negative numbers, as in `quantize_state`.
        block_size: Numbers that share a scale.
        min_size: Moments of fewer numbers per matrix stay as they are.
        seed: Seed of stochastic rounding; None rounds to the nearest.

    Returns:
        A placement for `on_matrices` and the recipes.

    Raises:
        ValueError: If an argument is out of range.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> tx = om.muon(1e-3, placement=om.quantized(), other=om.adamw_8bit(1e-3))
        >>> state = tx.init({"kernel": jnp.ones((64, 128)), "bias": jnp.ones(128)})
        >>> stacks = state.inner_states["matrix"].inner_state[0].inner_state
        >>> [x.dtype.name for x in stacks.inner_state[0].trace.values()]
        ['uint8']
    """
    options = {
        "signed": signed,
        "unsigned": unsigned,
        "block_size": block_size,
        "min_size": min_size,
        "batch_axes": 1,
        "seed": seed,
        "ids": None,
    }
    if placement is None:
        placement = AsSharded()
    elif isinstance(placement, type) or not hasattr(placement, "update"):
        raise ValueError(
            "`placement` must be None or optax_matrix.owners(mesh_axes, ...), got "
            f"{placement!r}; options go by keyword."
        )
    return _Quantized(placement, Quantizer.of(**options))


def adamw_8bit(
    learning_rate: optax.ScalarOrSchedule,
    *,
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.999,
    eps: ArrayLike = 1e-8,
    weight_decay: optax.ScalarOrSchedule = 1e-4,
    weight_decay_mask: Any = None,
    block_size: int = 256,
    min_size: int = 4096,
    seed: int | None = None,
) -> optax.GradientTransformationExtraArgs:
    """AdamW with both moments in eight bits: 2.03 bytes of state for a number.

    `optax.adamw` in `quantize_state`.

    Args:
        learning_rate: Learning rate, a number or a schedule.
        b1: Decay rate of the first moment.
        b2: Decay rate of the second moment.
        eps: Term added to the root of the second moment.
        weight_decay: Decoupled weight decay, a number or a schedule.
        weight_decay_mask: Tree, prefix tree or callable, as in `optax.adamw`.
        block_size: Numbers that share a scale.
        min_size: Leaves of fewer numbers keep their moments as they are.
        seed: Seed of stochastic rounding; None rounds to the nearest.

    Returns:
        An optimizer of any tree.

    Raises:
        ValueError: If an argument is out of range.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> tx, params = om.adamw_8bit(1e-3), {"w": jnp.ones((64, 64))}
        >>> updates, _ = tx.update(params, tx.init(params), params)
        >>> round(float(updates["w"][0, 0]), 4)
        -0.001
    """
    check_rate("learning_rate", learning_rate)
    check_decay("b1", b1)
    check_decay("b2", b2)
    check_not_negative("eps", eps)
    check_rate("weight_decay", weight_decay)
    adamw = optax.adamw(
        learning_rate,
        b1=b1,
        b2=b2,
        eps=eps,
        weight_decay=weight_decay,
        mask=weight_decay_mask,
    )
    return quantize_state(adamw, block_size=block_size, min_size=min_size, seed=seed)


@dataclasses.dataclass(frozen=True)
class _Quantized:
    """Stores what the step leaves behind, inside of where `base` runs it."""

    base: Any
    quantizer: Quantizer

    def layout(self, leaves: Any, dimension_numbers: Any, max_batch: Any) -> Layout:
        return self.base.layout(leaves, dimension_numbers, max_batch)

    def init(
        self,
        layout: Layout,
        make_state: Callable[[Layout, Any, Any], Any],
        leaves: Mapping[str, Any],
        arrays: Any,
        needs_params: bool,
    ) -> Any:
        def make(layout, stacks, arrays):
            state = make_state(layout, stacks, arrays)
            return state._replace(inner_state=self.quantizer.pack(state.inner_state))

        return self.base.init(layout, make, leaves, arrays, needs_params)

    def update(
        self,
        layout: Layout,
        step: Callable[[Layout, Any, Any, Any], Any],
        leaves: Mapping[str, Mapping[str, Any]],
        state: Any,
        arrays: Any,
    ) -> tuple[Mapping[str, Any], Any]:
        def run(layout, leaves, stored, arrays):
            quantizer = dataclasses.replace(self.quantizer, ids=layout.ids)
            old = quantizer.unpack(stored.inner_state)
            new, state = step(layout, leaves, stored._replace(inner_state=old), arrays)
            inner_state = quantizer.repack(state.inner_state, stored.inner_state)
            return new, state._replace(inner_state=inner_state)

        return self.base.update(layout, run, leaves, state, arrays)
