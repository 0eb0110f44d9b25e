"""Connectives: blocks made of other blocks, or of a function and what it keeps.

A chain, `optax.chain`, gives the output of one block to the next. `add` gives all of
them the same input and sums what they return. `with_state` makes a block of a function
of one matrix and a state, such as one number for each matrix.
"""

from optax_matrix.transforms.connectives._add import add as add
from optax_matrix.transforms.connectives._with_state import (
    WithStateState as WithStateState,
    with_state as with_state,
)
