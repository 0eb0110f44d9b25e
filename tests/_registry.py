"""Every recipe and block by name, and the tree that exercises them."""

import functools

import jax.numpy as jnp
import numpy as np
import optax

import optax_matrix as om

RECIPES = {
    "muon": om.muon,
    "muon-moonlight": functools.partial(om.muon, scaling="max"),
    "muoneq-row": om.muoneq,
    "muoneq-col": functools.partial(om.muoneq, mode="col"),
    "muoneq-rowcol": functools.partial(om.muoneq, mode="rowcol"),
    "muon_plus": om.muon_plus,
    "adamuon-sign": om.adamuon,
    "adamuon-unsigned": functools.partial(om.adamuon, variant="unsigned"),
    "normuon": om.normuon,
    "swan": om.swan,
    "sinkgd": om.sinkgd,
    "racs": om.racs,
    "racs-corrected": functools.partial(om.racs, bias_correction=True),
    "mars_adamw": om.mars_adamw,
    "aro-sinkhorn": om.aro,
    "aro-adam": functools.partial(om.aro, base="adam"),
    "aro-sign": functools.partial(om.aro, base="sign"),
    "aro-row_norm": functools.partial(om.aro, base="row_norm"),
    "eigen_sinkhorn": om.eigen_sinkhorn,
    "eigen_sign": om.eigen_sign,
    "eigen_rownorm": om.eigen_rownorm,
    "eigen_adam": om.eigen_adam,
    "soap": om.soap,
    "splus": om.splus,
    "shampoo": om.shampoo,
    "shampoo-averages": functools.partial(om.shampoo, b2=0.95, b1=0.9),
    "mousse": om.mousse,
    "dion": om.dion,
    "dion-low_rank": functools.partial(om.dion, rank=0.5),
    "galore": functools.partial(om.galore, rank=2),
    "alice": functools.partial(om.alice, rank=2, leading=1),
    "alice-carry": functools.partial(
        om.alice, rank=2, leading=1, update_interval=2, transport="carry", stagger=True
    ),
    "alice_0": functools.partial(om.alice_0, rank=2, leading=1),
    "sumo": functools.partial(om.sumo, rank=2),
    "fira": functools.partial(om.fira, rank=2),
    "fira_plus": functools.partial(om.fira_plus, rank=2),
    "apollo": functools.partial(om.apollo, rank=2),
    "apollo_mini": om.apollo_mini,
    "apollo_svd": functools.partial(om.apollo_svd, rank=2),
    "ldadam": functools.partial(om.ldadam, rank=2),
    "poet": functools.partial(om.poet, block=4, merge_interval=2),
    "poet-full": functools.partial(
        om.poet, variant="full", block=0.5, hold="recovered"
    ),
    "oft": functools.partial(om.oft, block=4),
}
# Those whose trajectories tests/recipes/test_rotated.py follows.
ROTATED = {
    *("aro", "eigen_sinkhorn", "eigen_sign", "eigen_rownorm", "eigen_adam"),
    *("soap", "splus", "shampoo", "mousse", "dion"),
}
# The same for tests/recipes/test_low_rank.py and test_low_rank_recipes.py.
LOW_RANK = {
    *("galore", "alice", "alice_0", "sumo", "fira", "fira_plus"),
    *("apollo", "apollo_mini", "apollo_svd", "ldadam"),
}

_KERNELS = {
    "newton_schulz": om.linalg.newton_schulz,
    "gram_newton_schulz": om.linalg.gram_newton_schulz,
    "polar_svd": om.linalg.polar_svd,
    "polar_eigh": om.linalg.polar_eigh,
    "polar_qr": om.linalg.polar_qr,
    "polar_qdwh": om.linalg.polar_qdwh,
}

BLOCKS = {
    "equilibrate-rows": lambda: om.equilibrate(om.linalg.scale_rows),
    "equilibrate-columns": lambda: om.equilibrate(om.linalg.scale_columns),
    "equilibrate-both": lambda: om.equilibrate(om.linalg.scale_rows_and_columns),
    "equilibrate-standardize": lambda: om.equilibrate(om.linalg.standardize_rows),
    "equilibrate-sinkhorn": lambda: om.equilibrate(om.linalg.sinkhorn),
    "equilibrate_with_ema-racs": lambda: om.equilibrate_with_ema(
        om.linalg.rank_one_scales, 0.9
    ),
    "equilibrate_with_ema-rows": lambda: om.equilibrate_with_ema(
        om.row_rms, 0.9, bias_correction=True
    ),
    "limit_norm_growth": om.limit_norm_growth,
    "match_rms": om.match_rms,
    "scale_by_shape-out/in": lambda: om.scale_by_shape("out/in"),
    "scale_by_shape-max": lambda: om.scale_by_shape("max"),
    "preserve_norm": lambda: om.preserve_norm(optax.scale_by_sign()),
    "correct_variance": om.correct_variance,
    "in_float32": lambda: om.in_float32(optax.ema(0.9)),
    "rotate-aro": lambda: om.rotate(om.equilibrate(om.linalg.sinkhorn)),
    "rotate-eigen": lambda: om.rotate(
        optax.scale_by_sign(), policy="eigen", side="both", update_interval=2
    ),
    "rotate-gradient": lambda: om.rotate(
        om.scale_by_second_moment(bias_correction=True),
        policy="eigen",
        statistics="gradient",
        momentum=optax.ema(0.9),
    ),
    "rotate-polar": lambda: om.rotate(optax.scale_by_sign(), policy="polar"),
    "rotate-rgd": lambda: om.rotate(optax.scale_by_sign(), policy="rgd"),
    "quantize_state": lambda: om.quantize_state(
        optax.scale_by_adam(), block_size=8, min_size=1, batch_axes=1
    ),
    "scale_by_second_moment": om.scale_by_second_moment,
    "precondition": om.precondition,
    "precondition-inner": lambda: om.precondition(
        om.orthogonalize(om.linalg.newton_schulz), decay=0.9, graft=True, side="short"
    ),
    "orthogonalize_low_rank": lambda: om.orthogonalize_low_rank(2),
    "project_low_rank": lambda: om.project_low_rank(optax.trace(0.9), rank=2),
    "project_low_rank-compensated": lambda: om.project_low_rank(
        optax.trace(0.9),
        combine=om.compensate(),
        rank=2,
        basis=om.transforms.subspace_basis(0.9, leading=1),
        update_interval=2,
        transport="carry",
    ),
    "project_low_rank-gaussian": lambda: om.project_low_rank(
        optax.trace(0.9), rank=2, basis="gaussian", side="long"
    ),
    "project_low_rank-scaled": lambda: om.project_low_rank(
        optax.trace(0.9), combine=om.transforms.scale_gradient("tensor"), rank=2
    ),
    "scale_by_tracked_adam": lambda: om.transforms.scale_by_tracked_adam(rank=2),
    **{
        f"orthogonalize-{name}": functools.partial(om.orthogonalize, kernel)
        for name, kernel in _KERNELS.items()
    },
}

SHAPES = {
    "tall": {"kernel": (6, 3)},
    "wide": {"kernel": (3, 6)},
    "square": {"kernel": (4, 4), "bias": (4,)},
    "layers": {"kernel": (2, 3, 6)},
    "embed": {"embedding": (7, 4)},
    "temperature": (),
}
MATRICES = {"tall/kernel", "wide/kernel", "square/kernel", "layers/kernel"}


def tree(seed=0, dtype=np.float32, scale=1.0, shapes=None):
    """A tree of normal numbers in the shapes above."""
    rng = np.random.default_rng(seed)

    def draw(shape):
        if isinstance(shape, dict):
            return {name: draw(s) for name, s in shape.items()}
        return jnp.asarray(scale * rng.standard_normal(shape), dtype)

    return draw(SHAPES if shapes is None else shapes)
