"""Weight size: steps that keep the norm of the weights."""

from optax_matrix.transforms.weight_size._fix_norm import FixNormState, fix_norm

__all__ = ["FixNormState", "fix_norm"]
