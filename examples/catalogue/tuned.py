"""Five methods of the catalogue as functions from a learning rate, to be compared.

    python -m examples.study equal try examples.catalogue.tuned:anvil --rate 0.008

They are those that looked best in short runs. Each has Newton-Schulz in place of the
polar factor, weight decay, and the size of updates of its program; settings that the
search does not have keep the values of the catalogue.
"""

import optax

import optax_matrix as om
from examples.catalogue.blocks import conda as _conda
from examples.catalogue.matrices import cosmos as _cosmos
from examples.catalogue.states import namo as _namo
from examples.catalogue.sums import anvil as _anvil
from examples.catalogue.weights import muown as _muown

polar = om.linalg.newton_schulz


def anvil(
    learning_rate, b1=0.93, b2=0.9, weight_decay=0.1, other=None, dimension_numbers=None
):
    """ANVIL; b1 is that of the fast momentum, b2 that of the rows' energy.

    Its size is 0.2 times the root of the longer side, as MuonEq's: the pull request is
    about a model whose rates are set by hand for each kind of matrix.
    """
    chain = optax.chain(_anvil.make(b1, b2, polar), om.scale_by_shape("max"))
    return _optimizer(chain, learning_rate, weight_decay, other, dimension_numbers)


def cosmos(
    learning_rate, b1=0.9, b2=0.96, weight_decay=0.1, other=None, dimension_numbers=None
):
    """COSMOS with eight directions of 96, the share of 64 of 768 in the paper."""
    chain = _cosmos.make(b1, b2, rank=8, kernel=polar)
    return _optimizer(chain, learning_rate, weight_decay, other, dimension_numbers)


def conda(
    learning_rate, b1=0.9, b2=0.99, weight_decay=0.1, other=None, dimension_numbers=None
):
    """Conda with new vectors after each fifth of 400 steps.

    The scripts have that share of the steps, the shorter side, and the factor 0.25.
    """
    chain = _conda.make(b1, b2, side="short", update_interval=80)
    sized = optax.chain(chain, optax.scale(0.25))
    return _optimizer(sized, learning_rate, weight_decay, other, dimension_numbers)


def namo(
    learning_rate,
    b1=0.95,
    b2=0.99,
    weight_decay=0.1,
    other=None,
    dimension_numbers=None,
):
    """NAMO, with the factor of its program."""
    chain = optax.chain(_namo.make(b1, b2, polar), om.scale_by_shape("max"))
    return _optimizer(chain, learning_rate, weight_decay, other, dimension_numbers)


def muown(learning_rate, b1=0.95, weight_decay=0.1, other=None, dimension_numbers=None):
    """Muown; the decay is that of the gains, and the steps are finished."""
    chain = _muown.make(b1, weight_decay, learning_rate, polar)
    return om.on_matrices(
        chain, other=other, dimension_numbers=dimension_numbers, needs_params=True
    )


def _optimizer(chain, learning_rate, weight_decay, other, dimension_numbers):
    after = optax.chain(
        optax.add_decayed_weights(weight_decay),
        optax.scale_by_learning_rate(learning_rate),
    )
    return om.on_matrices(
        chain, after=after, other=other, dimension_numbers=dimension_numbers
    )
