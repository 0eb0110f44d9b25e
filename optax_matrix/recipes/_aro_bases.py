"""The base optimizers of ARO, by name."""

from functools import partial
from typing import Any, Literal

import optax
from jax.typing import ArrayLike

from optax_matrix.linalg import scale_rows, sinkhorn
from optax_matrix.transforms import equilibrate, scale_by_second_moment, scale_by_shape
from optax_matrix.transforms.rotation import equilibrate_rows_jointly, sinkhorn_jointly

BaseName = Literal["sinkhorn", "adam", "sign", "row_norm"]


def aro_base(
    base: Any, b2: ArrayLike, jointly: bool = False
) -> optax.GradientTransformation:
    """The base of a name; a transformation is returned as it is.

    ``jointly`` takes row norms over all matrices that share a rotation;
    `scale_by_second_moment` and signs have none.
    """
    if not isinstance(base, str):
        return base
    joint = {"sinkhorn": sinkhorn_jointly, "row_norm": equilibrate_rows_jointly}
    if jointly and base in joint:
        return joint[base]()
    return {
        "sinkhorn": lambda: equilibrate(partial(sinkhorn, rounds=5)),
        "adam": lambda: scale_by_second_moment(b2),
        "sign": optax.scale_by_sign,
        "row_norm": lambda: optax.chain(
            equilibrate(partial(scale_rows, eps=0.0)),
            scale_by_shape(lambda _, cols: cols**0.5),
        ),
    }[base]()
