"""Recipes: published optimizers, each a chain of blocks with its paper's defaults.

``<name>(learning_rate, ...)`` is a complete optimizer of a model's parameters: the
matrices by the method, all other leaves by AdamW or what ``other=`` says.
``scale_by_<name>(...)`` is the method alone, for chains: no weight decay, no learning
rate, leaves that are no matrices unchanged. No arithmetic here; read the blocks.
"""

from optax_matrix.recipes._adamuon import adamuon, scale_by_adamuon
from optax_matrix.recipes._from_optax import muon_state_from_optax
from optax_matrix.recipes._mars import mars_adamw, scale_by_mars_adamw
from optax_matrix.recipes._muon import muon, scale_by_muon
from optax_matrix.recipes._muon_plus import muon_plus, scale_by_muon_plus
from optax_matrix.recipes._muoneq import muoneq, scale_by_muoneq
from optax_matrix.recipes._normuon import normuon, scale_by_normuon
from optax_matrix.recipes._racs import racs, scale_by_racs
from optax_matrix.recipes._sinkgd import scale_by_sinkgd, sinkgd
from optax_matrix.recipes._swan import scale_by_swan, swan

__all__ = [
    "adamuon",
    "mars_adamw",
    "muon",
    "muon_plus",
    "muon_state_from_optax",
    "muoneq",
    "normuon",
    "racs",
    "scale_by_adamuon",
    "scale_by_mars_adamw",
    "scale_by_muon",
    "scale_by_muon_plus",
    "scale_by_muoneq",
    "scale_by_normuon",
    "scale_by_racs",
    "scale_by_sinkgd",
    "scale_by_swan",
    "sinkgd",
    "swan",
]
