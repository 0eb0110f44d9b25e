"""Every recipe and block by name, and the tree that exercises them."""

import functools
import inspect
import numbers

import jax.numpy as jnp
import numpy as np
import optax

import optax_matrix as om
from optax_matrix.linalg.scale import matrix_norm, safe_divide
from optax_matrix.recipes import METHODS

TABLE = {recipe.__name__: recipe for group in METHODS.values() for recipe in group}


def _small(recipe):
    """Arguments for matrices of a few rows, in place of ints for large ones."""
    given = inspect.signature(recipe).parameters
    wanted = {"rank": 2, "leading": 1, "block": 4}
    return {
        key: value
        for key, value in wanted.items()
        if key in given and isinstance(given[key].default, numbers.Integral)
    }


SMALL = {name: options for name, x in TABLE.items() if (options := _small(x))}
# The first gradient leaves the basis of a null space to rounding.
SMALL["kl_soap"] = {"side": "short"}


def small(name, **options):
    """A recipe with arguments that suit small matrices."""
    return functools.partial(TABLE[name], **{**SMALL.get(name, {}), **options})


RECIPES = {
    **{name: small(name) for name in TABLE},
    # What has another state or another chain than the defaults.
    "muon-moonlight": small("muon", scaling="max"),
    "muoneq-col": small("muoneq", mode="col"),
    "muoneq-rowcol": small("muoneq", mode="rowcol"),
    "adamuon-unsigned": small("adamuon", variant="unsigned"),
    "racs-corrected": small("racs", bias_correction=True),
    "aro-adam": small("aro", base="adam"),
    "aro-sign": small("aro", base="sign"),
    "aro-row_norm": small("aro", base="row_norm"),
    "shampoo-averages": small("shampoo", b2=0.95, b1=0.9),
    "shampoo-blocks": small("shampoo", block_size=3, update_interval=2),
    "soap-blocks": small("soap", block_size=3, update_interval=2),
    "mousse-blocks": small("mousse", block_size=4, update_interval=2),
    "dion-low_rank": small("dion", rank=0.5),
    # With noise that shows, so that it is the same wherever a matrix lives.
    "kron-full": small("kron", max_skew=None, update_interval=2, damping=0.3),
    "alice-carry": small("alice", update_interval=2, transport="carry", stagger=True),
    "poet": small("poet", merge_interval=2),
    "poet-full": small(
        "poet", variant="full", block=0.5, hold="recovered", terms=4, merge_at=0.02
    ),
}


def of_group(group):
    """Names of the recipes of a group of the table."""
    return {recipe.__name__ for recipe in METHODS[group]}


LOW_RANK = of_group("Low rank")
# Those whose trajectories tests/recipes/test_rotated.py follows.
ROTATED = of_group("Rotated frames and preconditioners") | {"mousse", "dion"}

_KERNELS = {
    "newton_schulz": om.linalg.newton_schulz,
    "gram_newton_schulz": om.linalg.gram_newton_schulz,
    "polar_svd": om.linalg.polar_svd,
    "polar_eigh": om.linalg.polar_eigh,
    "polar_qr": om.linalg.polar_qr,
    "polar_products": om.linalg.polar_products,
}


def _by_average_norm(x, norm, *_):
    size = matrix_norm(x)
    norm = jnp.where(size > 0, jnp.maximum(0.9 * norm, size), norm)
    return safe_divide(x, norm), norm


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
    "limit_norm_growth": om.transforms.limit_norm_growth,
    "match_rms": om.match_rms,
    "scale_by_shape-out/in": lambda: om.scale_by_shape("out/in"),
    "scale_by_shape-max": lambda: om.scale_by_shape("max"),
    "preserve_norm": lambda: om.transforms.preserve_norm(optax.scale_by_sign()),
    "correct_variance": om.transforms.correct_variance,
    "in_float32": lambda: om.transforms.in_float32(optax.ema(0.9)),
    "rotate-aro": lambda: om.rotate(om.equilibrate(om.linalg.sinkhorn)),
    "rotate-eigen": lambda: om.rotate(
        optax.scale_by_sign(), policy="eigen", side="both", update_interval=2
    ),
    "in_eigenbasis": lambda: om.in_eigenbasis(
        om.scale_by_second_moment(bias_correction=True),
        side="short",
        momentum=om.momentum(0.9),
    ),
    "rotate-polar": lambda: om.rotate(optax.scale_by_sign(), policy="polar"),
    "rotate-rgd": lambda: om.rotate(optax.scale_by_sign(), policy="rgd"),
    "quantize_state": lambda: om.quantization.quantize_state(
        optax.scale_by_adam(), block_size=8, min_size=1, batch_axes=1
    ),
    "scale_by_second_moment": om.scale_by_second_moment,
    "scale_by_second_moment-eps": lambda: om.scale_by_second_moment(
        bias_correction=True, eps=1e-6
    ),
    "scale_by_amsgrad": om.transforms.scale_by_amsgrad,
    "precondition": om.precondition,
    "whiten": om.transforms.whiten,
    "whiten-short": lambda: om.transforms.whiten(
        side="short", update_interval=2, momentum=om.momentum(0.9)
    ),
    "precondition-blocks": lambda: om.precondition(block_size=2, side="in"),
    "in_blocks": lambda: om.transforms.in_blocks(om.scale_by_second_moment(), 2),
    "precondition-inner": lambda: om.precondition(
        om.orthogonalize(om.linalg.newton_schulz), decay=0.9, graft=True, side="short"
    ),
    "lmo-row": lambda: om.transforms.lmo("row"),
    "lmo-column": lambda: om.transforms.lmo("column", one_hot=True),
    "lmo-sign": lambda: om.transforms.lmo("sign", 2.0),
    "orthogonalize_balanced": om.transforms.orthogonalize_balanced,
    "orthogonalize_selected": om.transforms.orthogonalize_selected,
    "compress_entries": om.transforms.compress_entries,
    "smooth_sign": lambda: om.transforms.smooth_sign(1e-3),
    "with_gradient": lambda: om.transforms.with_gradient(
        optax.chain(om.momentum(0.9), om.scale_by_second_moment())
    ),
    "add": lambda: om.transforms.add(
        om.momentum(0.9),
        optax.chain(om.momentum(0.99), om.scale_by_second_moment()),
        optax.identity(),
        weights=(1.0, optax.linear_schedule(0.5, 1.0, 3), -0.1),
    ),
    "with_state": lambda: om.transforms.with_state(_by_average_norm),
    "in_eigenbasis-kl": lambda: om.in_eigenbasis(
        om.transforms.scale_by_spectrum(), "kl"
    ),
    "orthogonalize_low_rank": lambda: om.transforms.orthogonalize_low_rank(2),
    "project_both_sides": lambda: om.transforms.low_rank.project_both_sides(
        optax.trace(0.9), rank=2
    ),
    "project_low_rank": lambda: om.project_low_rank(optax.trace(0.9), rank=2),
    "project_low_rank-compensated": lambda: om.project_low_rank(
        optax.trace(0.9),
        combine=om.compensate(),
        rank=2,
        basis=om.transforms.subspace_basis(0.9, leading=1),
        update_interval=2,
        transport="carry",
        momentum=om.momentum(0.9),
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


def _by_the_partner(a, b):
    """Updates of which each depends on that of the other matrix."""
    shrunk = lambda x, y: x.update / (1 + matrix_norm(y.update))
    return shrunk(a, b), shrunk(b, a)


# Blocks that see matrices in pairs, which `on_matrices(pairs=)` has to know.
PAIRED = {
    "on_pairs": lambda: optax.chain(
        om.momentum(0.9), om.transforms.on_pairs(_by_the_partner, om.momentum(0.5))
    ),
}


def on_block(name, pairs=None, **options):
    """A block or one of pairs on matrices; of the shapes below two are a pair."""
    if name in PAIRED:
        options["pairs"] = (pairs or {"tall/kernel": "wide/kernel"}).get
    return om.on_matrices({**BLOCKS, **PAIRED}[name](), **options)


# Blocks whose updates are finished steps, which need the weights.
FINISHING = {
    "hyperball": lambda: om.transforms.finish_step("hyperball", 0.1),
    "hyperball-spectral": lambda: om.transforms.finish_step(
        "hyperball", 0.1, norm="spectral"
    ),
    "hyperball-spectral-current": lambda: om.transforms.finish_step(
        "hyperball", 0.1, norm="spectral", radius="current"
    ),
    "relative_update": lambda: om.transforms.finish_step("relative_update", 0.1),
    "radial_brake": lambda: om.transforms.finish_step("radial_brake"),
    "row_floor": lambda: om.transforms.finish_step("row_floor", 0.1),
    "on_directions": lambda: om.transforms.on_directions(
        om.momentum(0.9), om.scale_by_second_moment(0.9), 0.1
    ),
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
        return np.asarray(scale * rng.standard_normal(shape), dtype)

    return draw(SHAPES if shapes is None else shapes)
