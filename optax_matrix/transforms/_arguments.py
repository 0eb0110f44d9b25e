"""Argument types that only blocks use; see `optax_matrix.arguments`."""

from typing import Annotated

import optax

from optax_matrix.arguments import check_not_negative_int, check_transformation

NotNegativeInt = Annotated[int, check_not_negative_int]
Transformation = Annotated[optax.GradientTransformation, check_transformation]
