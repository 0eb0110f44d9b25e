"""Low rank: an inner optimizer run in a subspace of the rows or columns.

`project_low_rank` projects the gradient onto a basis and runs the inner optimizer on
the coordinates. It turns the result into an update with `back_project` (GaLore, SUMO),
`compensate`, which adds a part of the residual (Alice, Fira), or `scale_gradient`
(APOLLO). ``project_both_sides`` projects rows and columns (SUMO). A basis has a name or
comes from `subspace_basis` or `given_basis`. Two blocks move their subspace at every
update: `scale_by_tracked_adam` (LDAdam) and `orthogonalize_low_rank` (Dion).
`orthogonalize_selected` takes a few rows in the place of a subspace (Dion2).
"""

from optax_matrix.transforms.low_rank._basis import Basis as Basis, Subspace as Subspace
from optax_matrix.transforms.low_rank._combine import (
    as_combining as as_combining,
    back_project as back_project,
)
from optax_matrix.transforms.low_rank._compensate import (
    Compensation as Compensation,
    compensate as compensate,
)
from optax_matrix.transforms.low_rank._coordinate_adam import (
    coordinate_adam as coordinate_adam,
)
from optax_matrix.transforms.low_rank._orthogonalize_low_rank import (
    OrthogonalizeLowRankState as OrthogonalizeLowRankState,
    orthogonalize_low_rank as orthogonalize_low_rank,
)
from optax_matrix.transforms.low_rank._orthogonalize_selected import (
    orthogonalize_selected as orthogonalize_selected,
)
from optax_matrix.transforms.low_rank._project_both_sides import (
    project_both_sides as project_both_sides,
)
from optax_matrix.transforms.low_rank._project_low_rank import (
    ProjectLowRankState as ProjectLowRankState,
    project_low_rank as project_low_rank,
)
from optax_matrix.transforms.low_rank._scale_gradient import (
    scale_gradient as scale_gradient,
)
from optax_matrix.transforms.low_rank._subspace_bases import (
    Start as Start,
    gaussian_basis as gaussian_basis,
    given_basis as given_basis,
    subspace_basis as subspace_basis,
    svd_basis as svd_basis,
)
from optax_matrix.transforms.low_rank._switching import (
    Sampling as Sampling,
    Switch as Switch,
)
from optax_matrix.transforms.low_rank._tracked_adam import (
    ScaleByTrackedAdamState as ScaleByTrackedAdamState,
    scale_by_tracked_adam as scale_by_tracked_adam,
)
