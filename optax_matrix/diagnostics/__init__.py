"""Measuring matrices, methods and optimizers.

Measures are functions of stacks ``(..., m, n)`` with one number per matrix. They
compute in float32 at least and work inside `jax.jit`. For zero and rank-deficient
matrices they return finite numbers, or infinity if their docstrings say so, never NaN.

====================  ==================================================================
``_spectra``          `singular_values`, `stable_rank`, `condition_number`, and
                      `newton_schulz_errors`, which follow from them
``_norms``            `norm_spread` of rows or columns, `eigenvector_cosines`,
                      `diagnostics.orthogonality_error`
``_follow_policies``  `follow_policies` runs policies of `rotate` along one trajectory
                      of momenta: ARO's objective and `alignment_score`
``_of_matrices``      `of_matrices` applies a measure to every matrix of a tree
``_states``           `bases` that a state holds, by parameter path; the function
                      `diagnostics.rotations` returns R and P of POET and OFT, dense
``_monitor``          `monitor` measures the updates of any optimizer, inside of jit and
``_monitor_state``    under sharding; `read_monitor` returns the values by path
``_state_bytes``      `state_bytes`: every array of a state, from shapes alone
``_method_style``     `method_style`: the color of a method in figures
====================  ==================================================================

``.docs/guides/look_inside.rst`` shows them in use.

Measures of a single figure are in the notebook that draws it.
"""

from optax_matrix.diagnostics._follow_policies import alignment_score, follow_policies
from optax_matrix.diagnostics._method_style import method_style
from optax_matrix.diagnostics._monitor import monitor
from optax_matrix.diagnostics._monitor_state import MonitorState, read_monitor
from optax_matrix.diagnostics._norms import (
    eigenvector_cosines,
    norm_spread,
    orthogonality_error,
)
from optax_matrix.diagnostics._of_matrices import of_matrices
from optax_matrix.diagnostics._spectra import (
    condition_number,
    newton_schulz_errors,
    singular_values,
    stable_rank,
)
from optax_matrix.diagnostics._state_bytes import StateBytes, state_bytes
from optax_matrix.diagnostics._states import Rotations, bases, rotations

__all__ = [
    "MonitorState",
    "Rotations",
    "StateBytes",
    "alignment_score",
    "bases",
    "condition_number",
    "eigenvector_cosines",
    "follow_policies",
    "method_style",
    "monitor",
    "newton_schulz_errors",
    "norm_spread",
    "of_matrices",
    "orthogonality_error",
    "read_monitor",
    "rotations",
    "singular_values",
    "stable_rank",
    "state_bytes",
]
