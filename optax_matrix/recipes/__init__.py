"""Recipes: published optimizers, each a chain of blocks with its paper's defaults.

``<name>(learning_rate, ...)`` is a complete optimizer of a model's parameters: the
matrices by the method, all other leaves by AdamW or what ``other=`` says.
``scale_by_<name>(...)`` is the method alone, for chains: no weight decay, no learning
rate, leaves that are no matrices unchanged. No arithmetic here; read the blocks.
"""

from optax_matrix.recipes._adamuon import adamuon, scale_by_adamuon
from optax_matrix.recipes._alice import alice, scale_by_alice
from optax_matrix.recipes._alice_0 import alice_0, scale_by_alice_0
from optax_matrix.recipes._apollo import apollo, scale_by_apollo
from optax_matrix.recipes._apollo_mini import apollo_mini, scale_by_apollo_mini
from optax_matrix.recipes._apollo_svd import apollo_svd, scale_by_apollo_svd
from optax_matrix.recipes._aro import aro, scale_by_aro
from optax_matrix.recipes._dion import dion, scale_by_dion
from optax_matrix.recipes._eigen_adam import eigen_adam, scale_by_eigen_adam
from optax_matrix.recipes._eigen_rownorm import eigen_rownorm, scale_by_eigen_rownorm
from optax_matrix.recipes._eigen_sign import eigen_sign, scale_by_eigen_sign
from optax_matrix.recipes._eigen_sinkhorn import eigen_sinkhorn, scale_by_eigen_sinkhorn
from optax_matrix.recipes._fira import fira, scale_by_fira
from optax_matrix.recipes._fira_plus import fira_plus, scale_by_fira_plus
from optax_matrix.recipes._galore import galore, scale_by_galore
from optax_matrix.recipes._ldadam import ldadam, scale_by_ldadam
from optax_matrix.recipes._mars import mars_adamw, scale_by_mars_adamw
from optax_matrix.recipes._mousse import mousse, scale_by_mousse
from optax_matrix.recipes._muon import muon, scale_by_muon
from optax_matrix.recipes._muon_plus import muon_plus, scale_by_muon_plus
from optax_matrix.recipes._muoneq import muoneq, scale_by_muoneq
from optax_matrix.recipes._normuon import normuon, scale_by_normuon
from optax_matrix.recipes._poet import oft, poet
from optax_matrix.recipes._racs import racs, scale_by_racs
from optax_matrix.recipes._shampoo import scale_by_shampoo, shampoo
from optax_matrix.recipes._sinkgd import scale_by_sinkgd, sinkgd
from optax_matrix.recipes._soap import scale_by_soap, soap
from optax_matrix.recipes._splus import scale_by_splus, splus
from optax_matrix.recipes._sumo import scale_by_sumo, sumo
from optax_matrix.recipes._swan import scale_by_swan, swan

__all__ = [
    "adamuon",
    "alice",
    "alice_0",
    "apollo",
    "apollo_mini",
    "apollo_svd",
    "aro",
    "dion",
    "eigen_adam",
    "eigen_rownorm",
    "eigen_sign",
    "eigen_sinkhorn",
    "fira",
    "fira_plus",
    "galore",
    "ldadam",
    "mars_adamw",
    "mousse",
    "muon",
    "muon_plus",
    "muoneq",
    "normuon",
    "oft",
    "poet",
    "racs",
    "scale_by_adamuon",
    "scale_by_alice",
    "scale_by_alice_0",
    "scale_by_apollo",
    "scale_by_apollo_mini",
    "scale_by_apollo_svd",
    "scale_by_aro",
    "scale_by_dion",
    "scale_by_eigen_adam",
    "scale_by_eigen_rownorm",
    "scale_by_eigen_sign",
    "scale_by_eigen_sinkhorn",
    "scale_by_fira",
    "scale_by_fira_plus",
    "scale_by_galore",
    "scale_by_ldadam",
    "scale_by_mars_adamw",
    "scale_by_mousse",
    "scale_by_muon",
    "scale_by_muon_plus",
    "scale_by_muoneq",
    "scale_by_normuon",
    "scale_by_racs",
    "scale_by_shampoo",
    "scale_by_sinkgd",
    "scale_by_soap",
    "scale_by_splus",
    "scale_by_sumo",
    "scale_by_swan",
    "shampoo",
    "sinkgd",
    "soap",
    "splus",
    "sumo",
    "swan",
]
