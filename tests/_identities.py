"""Blocks outside of `on_matrices` whose matrices have identities all the same."""

import types

import optax

from optax_matrix._surroundings import within


def identified(tx, ids):
    """A block that runs where the identities of the matrices are known, by stack."""
    tx, layout = optax.with_extra_args_support(tx), types.SimpleNamespace(ids=ids)

    def init(params):
        with within(layout=layout):
            return tx.init(params)

    def update(*args, **extra):
        with within(layout=layout):
            return tx.update(*args, **extra)

    return optax.GradientTransformationExtraArgs(init, update)
