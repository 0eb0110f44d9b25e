"""Update size: rescaling an update before the learning rate is applied.

The size is multiplied by a factor that depends on the shape (`scale_by_shape`), set to
a given root mean square (`match_rms`), restored to the norm before a transformation
(`preserve_norm`), or limited to a multiple of the norm of the last update
(`limit_norm_growth`).
"""

from optax_matrix.transforms.update_size._limit_norm_growth import (
    LimitNormGrowthState as LimitNormGrowthState,
    limit_norm_growth as limit_norm_growth,
    limited_norm as limited_norm,
)
from optax_matrix.transforms.update_size._match_rms import match_rms as match_rms
from optax_matrix.transforms.update_size._preserve_norm import (
    preserve_norm as preserve_norm,
)
from optax_matrix.transforms.update_size._scale_by_shape import (
    SHAPE_RULES as SHAPE_RULES,
    ShapeRule as ShapeRule,
    scale_by_shape as scale_by_shape,
)
from optax_matrix.transforms.update_size._scaling import (
    Scaling as Scaling,
    TargetRms as TargetRms,
    check_matched as check_matched,
    matched as matched,
    scaled as scaled,
    target_rms as target_rms,
)
