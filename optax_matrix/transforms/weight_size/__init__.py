"""Weight size: steps that it decides, and decay that is cautious."""

from optax_matrix.transforms.weight_size._cautious_decay import (
    add_cautious_decay as add_cautious_decay,
)
from optax_matrix.transforms.weight_size._decayed_weights import (
    add_decayed_weights as add_decayed_weights,
)
from optax_matrix.transforms.weight_size._finish_step import (
    finish_step as finish_step,
)
from optax_matrix.transforms.weight_size._on_directions import (
    on_directions as on_directions,
)
