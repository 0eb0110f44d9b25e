"""First moments: the averages of gradients that most methods start from."""

from optax_matrix.transforms.first_moments._momentum import (
    momentum as momentum,
)
