"""What the argument `scaling` of a recipe may be."""

import dataclasses
from typing import Annotated, Any

import jax
import numpy as np
import optax
from jax.typing import ArrayLike
from typing_extensions import TypeAliasType

from optax_matrix._arguments import Positive, check_choice, check_not_negative, checked
from optax_matrix.linalg.scale import widened
from optax_matrix.transforms.update_size._match_rms import match_rms
from optax_matrix.transforms.update_size._scale_by_shape import (
    SHAPE_RULES,
    ShapeRule,
    scale_by_shape,
)

_OTHERS = "a number", "a function of (rows, cols)", "om.target_rms(...)"


@dataclasses.dataclass(frozen=True)
class TargetRms:
    """What `target_rms` returns: a function of ``(rows, cols)``."""

    rms: ArrayLike

    def __call__(self, rows: int, cols: int) -> Any:
        """The factor that gives a semi-orthogonal matrix this root mean square."""
        return self.rms * max(rows, cols) ** 0.5


@checked
def target_rms(rms: Positive = 0.2) -> TargetRms:
    r"""Updates of this root mean square, for ``scaling=`` of a recipe.

    In recipes that return a polar factor (`muon`, `muoneq`, `mousse`, ...) it is the
    factor :math:`\rho \sqrt{\max(m, n)}`, which gives a semi-orthogonal matrix the root
    mean square :math:`\rho`: 0.2 is Moonlight's ``"max"``, and ``consistent_rms`` of
    `optax.contrib.muon`. In recipes whose directions have no size of their own (`aro`,
    `sinkgd`, `adamuon`, `normuon`) each update is scaled to it, by `match_rms`.

    Args:
        rms: The root mean square :math:`\rho`, above zero. That of Adam's updates is
            usually 0.2 to 0.4.

    Raises:
        ValueError: If ``rms`` is not positive.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> tx = om.scale_by_muon(scaling=om.target_rms(0.18), polar="polar_svd")
        >>> params = {"kernel": jnp.eye(3, 5)}
        >>> updates, _ = tx.update(params, tx.init(params))
        >>> print(jnp.sqrt(jnp.mean(updates["kernel"] ** 2)).round(3))
        0.18
    """
    return TargetRms(rms)


def check_scaling(name: str, value: Any) -> None:
    """Raises unless a value is a number, or a function of ``(rows, cols)`` to one."""
    if not callable(value) or isinstance(value, type):
        if not hasattr(value, "__float__"):
            check_choice(name, value, SHAPE_RULES, _OTHERS)
        check_not_negative(name, value)
        return
    advice = "pass a name, a number, om.target_rms(0.2), or such a function."
    try:
        factor = value(4, 2)
    except Exception as error:
        said = f"raises {type(error).__name__}: {error}"
    else:
        if isinstance(factor, int | float | np.number | jax.Array):
            return
        said = f"is {factor!r}"
    raise ValueError(
        f"`{name}` must be a function of (rows, cols) to a number, but {name}(4, 2) "
        f"{said}; {advice}"
    )


Scaling = TypeAliasType(
    "Scaling",
    ShapeRule | Annotated[Any, check_scaling, *_OTHERS],
)


def check_matched(scaling: Any) -> None:
    """Raises unless updates of leaves of any shape can have this size."""
    if scaling != "rms" and not isinstance(scaling, TargetRms):
        raise ValueError(
            "`scaling` must be 'rms' or om.target_rms(...) with full_model=True, got "
            f"{scaling!r}; vectors have no rows and columns."
        )


def matched(scaling: Any) -> optax.GradientTransformation:
    """The size of directions that have none of their own: ``"rms"`` is 0.2."""
    rms = _rms_of(scaling)
    return scale_by_shape(scaling) if rms is None else match_rms(rms)


def scaled(scaling: Any) -> optax.GradientTransformation:
    """`matched` for directions with a root mean square of one, which is not computed.

    Those of `linalg.sinkhorn` have it. Nothing need be read for a factor.
    """
    rms = _rms_of(scaling)
    if rms is None:
        return scale_by_shape(scaling)
    scale: Any = lambda x, _: (rms * widened(x)).astype(x.dtype)
    return optax.stateless_with_tree_map(scale)


def _rms_of(scaling: Any) -> Any:
    if scaling == "rms":
        return 0.2
    return scaling.rms if isinstance(scaling, TargetRms) else None
