"""What it costs a device to compute polar factors, alone and in a team."""

import dataclasses
import math

import jax.numpy as jnp
from jax.typing import DTypeLike

from optax_matrix.sharding._bundles import whole_matrix
from optax_matrix.sharding._exchange import Exchange


@dataclasses.dataclass(frozen=True)
class CostModel:
    r"""Numbers of an accelerator from which ``owners(plan=...)`` plans teams.

    A step of Newton-Schulz for an m x n matrix, :math:`m \le n`, has
    :math:`4 m^2 n + 2 m^3` operations. Of c chips that share the matrix, each does a
    c-th, and sends :math:`(c-1)/c` of :math:`m^2` numbers three times: partial sums of
    the Gram matrix in float32, its rows, and those of the polynomial. Before the first
    step and after the last it sends :math:`(c-1)/c` of its own matrix. The time of a
    device is operations at peak plus bytes at link speed, without overlap. Latency is
    not in it.

    The defaults are published numbers of a TPU v5e: its peak in bfloat16, and its two
    links along an axis of the torus. For an H100 within a node, 989e12 and 450e9.

    Attributes:
        peak_flops: Operations per second of a chip.
        link_bytes: Bytes per second that a chip sends within a team.
        steps: Number of steps of Newton-Schulz.
        compute_dtype: Dtype of the products, in which matrices are sent.

    Raises:
        ValueError: If a number is not positive, or the dtype not floating.

    Examples:
        >>> import optax_matrix as om
        >>> v5p = om.sharding.CostModel(peak_flops=459e12, link_bytes=200e9)
        >>> placement = om.owners(("fsdp", "tp"), plan=v5p)
    """

    peak_flops: float = 197e12
    link_bytes: float = 90e9
    _: dataclasses.KW_ONLY
    steps: int = 5
    compute_dtype: DTypeLike = jnp.bfloat16

    def __post_init__(self):
        for name in ("peak_flops", "link_bytes", "steps"):
            value = getattr(self, name)
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not is_number or not 0 < value < math.inf:
                raise ValueError(
                    f"`{name}` must be a positive finite number, got {value!r}; see "
                    "the data sheet of the accelerator."
                )
        try:
            jnp.finfo(self.compute_dtype)
        except (TypeError, ValueError):
            raise ValueError(
                "`compute_dtype` must be a floating dtype, got "
                f"{self.compute_dtype!r}; pass jnp.bfloat16 or jnp.float32."
            ) from None

    def per_byte(self) -> float:
        """Operations of a step in the time in which one byte of all steps is sent."""
        return self.peak_flops / self.link_bytes / self.steps

    def sent(self, exchange: Exchange, chips: int) -> tuple[float, float]:
        """Bytes that a device sends in its team.

        Args:
            exchange: The exchange of the matrices.
            chips: Number of devices of a team.

        Returns:
            Bytes for each matrix of the team, and bytes if it has any.
        """
        size, part = jnp.dtype(self.compute_dtype).itemsize, (chips - 1) / chips
        sums = max(4, size)
        each = once = 0.0
        for piece in whole_matrix(exchange.view).pieces:
            short, long = sorted((piece.rows, piece.cols))
            each += self.steps * piece.count * short**2 * (sums + 2 * size) * part
            once += 2 * piece.count * short * long * size * part
        return each, once
