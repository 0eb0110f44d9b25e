"""Recipes: published optimizers, each a chain of blocks with its paper's defaults.

``<name>(learning_rate, ...)`` is a complete optimizer of a model's parameters: the
matrices by the method, all other leaves by AdamW or by ``other=``.
``scale_by_<name>(...)`` is the method alone, for `optax.chain`: no weight decay, no
learning rate, and leaves that are not matrices pass through. A recipe contains no
arithmetic: the chain is in its file, the arithmetic in the blocks of `transforms`.
"""

from optax_matrix.recipes.table import *  # noqa: F403
from optax_matrix.recipes.table import METHODS as METHODS, names

__all__ = names()  # pyright: ignore[reportUnsupportedDunderAll]
