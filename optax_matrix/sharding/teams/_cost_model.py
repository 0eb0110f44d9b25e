"""What it costs a device to compute polar factors, alone and in a team."""

import dataclasses
import functools
import math
from typing import NamedTuple

import jax.numpy as jnp
from jax.typing import DTypeLike

from optax_matrix._arguments import check_dtype
from optax_matrix.matrices.view import MatrixView


@dataclasses.dataclass(frozen=True)
class CostModel:
    r"""Numbers of an accelerator from which ``owners(teams=...)`` plans teams.

    A step of Newton-Schulz for an m x n matrix, :math:`m \le n`, has
    :math:`4 m^2 n + 2 m^3` operations. Of c devices that share the matrix, each does a
    c-th, and sends :math:`(c-1)/c` of :math:`m^2` numbers three times: partial sums of
    the Gram matrix in float32, its rows, and those of the polynomial. Before the first
    step and after the last it sends :math:`(c-1)/c` of its own matrix. The time of a
    device is operations at peak plus bytes at link speed, without overlap. Latency is
    not in it.

    The defaults are published numbers of a TPU v5e: its peak in bfloat16, and its two
    links along an axis of the torus. For an H100 within a node, 989e12 and 450e9.

    Attributes:
        peak_flops: Operations per second of a device.
        link_bytes: Bytes per second that a device sends within a team.
        steps: Number of steps of Newton-Schulz.
        compute_dtype: Dtype of the products, in which matrices are sent.

    Raises:
        ValueError: If a number is not positive, or the dtype not floating or of eight
            bits.

    Examples:
        >>> import optax_matrix as om
        >>> v5p = om.sharding.CostModel(peak_flops=459e12, link_bytes=200e9)
        >>> placement = om.owners(("fsdp", "tp"), teams=v5p)
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
        check_dtype("compute_dtype", self.compute_dtype)


class Cost(NamedTuple):
    """The cost of a matrix for one device of a team; times in operations of a step.

    Attributes:
        work: Operations of a step of the whole matrix.
        time: Time of each matrix of the team.
        extra_time: Time of a team that has any.
        sent: Bytes that a device sends for each matrix of the team, in all steps.
        extra_sent: Bytes that a device sends in a team that has any.
    """

    work: float
    time: float
    extra_time: float
    sent: float
    extra_sent: float


@functools.cache
def cost(matrix: MatrixView, team_size: int, model: CostModel) -> Cost:
    """The cost of a matrix that a team shares."""
    pieces = [(p.count, *sorted((p.rows, p.cols))) for p in matrix.pieces]
    work = sum(count * operations(m, n) for count, m, n in pieces)
    size, part = jnp.dtype(model.compute_dtype).itemsize, (team_size - 1) / team_size
    each = once = 0.0
    for count, m, n in pieces:
        each += model.steps * count * m**2 * (max(4, size) + 2 * size) * part
        once += 2 * count * m * n * size * part
    # Operations of one step in the time in which one byte of all steps is sent.
    per_byte = model.peak_flops / model.link_bytes / model.steps
    time = work / team_size + each * per_byte
    return Cost(work, time, once * per_byte, each, once)


def operations(rows: int, cols: int) -> float:
    """Operations of a step: two products with the long side, one of the short.

    This is a step of Newton-Schulz; other methods grow as fast with both sides.
    """
    short, long = sorted((rows, cols))
    return 4.0 * short**2 * long + 2.0 * short**3
