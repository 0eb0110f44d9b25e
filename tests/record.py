"""Records what every recipe and block does, to show that a refactoring changed nothing.

python tests/record.py save before.npz       # on the old commit
python tests/record.py compare before.npz    # on the new one: equal bit for bit?

Updates of three steps on fixed trees, and the last state by parameter path, in float32
and bfloat16; with schedules; under `om.inject_hyperparams`; on four devices with
`owners`, and in teams. Every third step starts from a state that went through
`to_portable` and `from_portable`. The form of the state is not recorded: what belongs
to a parameter is compared by its path and bits, wherever it is in the state.
"""

import argparse
import collections
import functools
import hashlib
import os
import sys
import warnings
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

import _registry
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import optax_matrix as om

RULES = getattr(om, "matrices", None) or om.layout  # Of both commits.
STEPS = 3
LOW_RANK = {"rank": 2, "update_interval": 2}
# Words and flags that the registry leaves at their defaults.
VARIANTS = {
    "muon": [
        {"nesterov": False, "scaling": "none"},
        {"scaling": "unclipped", "weight_decay": 0.3, "mu_dtype": jnp.bfloat16},
        {"polar": om.linalg.polar_svd, "other_learning_rate": 0.5},
    ],
    "muoneq": [{"mode": None, "nesterov": False, "eps": 0.1}],
    "muon_plus": [{"mode": "col"}, {"nesterov": False}],
    "muon2": [{"scaling": "out/in"}],
    "aurora": [{"nesterov": False, "scaling": "max"}],
    "adamuon": [{"nesterov": False}, {"variant": "unsigned", "b2": 0.5, "eps": 1e-3}],
    "normuon": [{"scaling": "out/in", "nesterov": False}],
    "swan": [{"eps": 0.5, "weight_decay": 0.1}],
    "sinkgd": [
        {"scheme": "simultaneous", "rounds": 2},
        {"scaling": om.target_rms(0.5)},
    ],
    "racs": [{"rounds": 2, "max_shrink": None, "scale": 0.2, "weight_decay": 0.1}],
    "mars_adamw": [{"max_norm": None, "gamma": 0.1, "b1": 0.5}],
    "aro": [
        {"full_model": True},
        {"full_model": True, "base": "adam", "other_learning_rate": 0.3},
        {"policy": "polar", "orientation": "out", "update_interval": 2},
        {"policy": "eigen_exact", "orientation": "in", "scaling": om.target_rms(0.5)},
        {"base": optax.scale_by_sign(), "b1": 0.5},
        {
            "sharing": "global",
            "dimension_numbers": RULES.by_path(
                numbers={"kernel": om.MatrixDimensionNumbers(-2, -1, residual="in")}
            ),
        },
    ],
    "eigen_sinkhorn": [{"policy": "eigen_exact", "orientation": "short"}],
    "eigen_sign": [{"scaling": om.target_rms(0.3)}],
    "eigen_rownorm": [{"update_interval": 2}],
    "eigen_adam": [{"policy": "eigen_exact"}, {"update_interval": 2}],
    "soap": [
        {"side": "out", "bias_correction": False, "update_interval": 1},
        {"policy": "eigen_exact", "max_dim": 4},
    ],
    "kl_shampoo": [{"policy": "identity"}, {"side": "out", "update_interval": 1}],
    "kl_soap": [{"max_dim": 4}],
    "kron": [{"statistics": "momentum", "max_dim": 4, "max_skew": None}],
    "soap_muon": [{"policy": "eigen_exact", "side": "out", "scaling": "max"}],
    "splus": [{"policy": "identity", "weight_decay": 0.2}, {"side": "short"}],
    "shampoo": [{"update_interval": 2, "root": 2, "method": "eigh", "side": "out"}],
    "mousse": [{"update_interval": 2, "scaling": "out/in", "side": "in"}],
    "dion": [{"b1": 0.5, "scaling": "max"}],
    "dion2": [{"scaling": "out/in"}],
    "galore": [
        {**LOW_RANK, "transport": "carry", "basis": "svd"},
        {"rank": 0.5, "side": "long", "last_layer": "method"},
    ],
    "alice": [
        {**LOW_RANK, "leading": 1, "compensation": "fira", "switch": "none"},
        {**LOW_RANK, "leading": 1, "compensation": None, "sampling": "subspace"},
        {"rank": 0.5, "leading": 0.5, "start": "exact", "last_layer": "method"},
    ],
    "alice_0": [{**LOW_RANK, "leading": 1, "compensation": "fira_plus"}],
    "sumo": [
        {**LOW_RANK, "scaling": "rms", "limiter": None},
        {"rank": 2, "polar": om.linalg.newton_schulz, "scaling": "none"},
    ],
    "fira": [{**LOW_RANK, "side": "out"}],
    "fira_plus": [{**LOW_RANK, "residual_scale": 0.1}],
    "apollo": [{**LOW_RANK, "scale": 2.0, "limiter": None}],
    "apollo_mini": [{"update_interval": 2, "scale": 3.0}],
    "apollo_svd": [{**LOW_RANK, "basis": "svd"}],
    "ldadam": [{"rank": 0.5, "error_feedback": False, "start": "exact"}],
    "scion": [{"norm": "row", "first_norm": "column", "last_radius": 2.0}],
    "muonh": [{"nesterov": False, "polar": om.linalg.polar_svd, "weight_decay": 0.1}],
    "poet": [
        {"block": 2, "sides": "in", "terms": 2, "max_norm": None, "reset": "none"},
        {"block": 4, "weight_decay": 0.1, "merge_interval": None, "seed": 3},
    ],
    "oft": [{"block": 2, "max_norm": 0.1}],
    "adamw_8bit": [{}],
}


def cases():
    """The transformations by name, and what they run on."""
    made = dict(_registry.RECIPES)
    for name, variants in VARIANTS.items():
        for i, options in enumerate(variants):
            made[f"{name}+{i}"] = functools.partial(getattr(om, name), **options)
    for name, factory in made.items():
        for dtype in ("float32", "bfloat16"):
            yield f"{name}|{dtype}", functools.partial(factory, 1e-2), dtype
    for name, factory in _registry.RECIPES.items():
        yield f"{name}@schedule", functools.partial(factory, _schedule), "float32"
        yield f"{name}@injected", functools.partial(_injected, factory), "float32"
        scale_by = getattr(om, f"scale_by_{name}", None)
        if scale_by is not None:
            rank = {"rank": 2} if name in _registry.LOW_RANK - {"apollo_mini"} else {}
            make = functools.partial(scale_by, **rank)
            yield f"scale_by_{name}", make, "float32"
    for name, block in _registry.BLOCKS.items():
        make = lambda block=block: om.on_matrices(block())
        for dtype in ("float32", "bfloat16"):
            yield f"block:{name}|{dtype}", make, dtype
    yield from _on_mesh()


def _on_mesh():
    for name, factory in _registry.RECIPES.items():
        make = functools.partial(factory, 1e-2, placement=om.owners("fsdp"))
        yield f"{name}@owners", make, "mesh"
    for name in ("muon", "muoneq", "muoneq-rowcol", "normuon", "adamuon", "mousse"):
        teams = om.owners("fsdp", teams=4)
        make = functools.partial(_registry.RECIPES[name], 1e-2, placement=teams)
        yield f"{name}@teams", make, "mesh"


def _schedule(count):
    return 1e-2 / (1 + count)


def _injected(factory):
    options = {}
    if isinstance(factory, functools.partial):
        options, factory = factory.keywords, factory.func
    return om.inject_hyperparams(factory)(learning_rate=_schedule, **options)


SHARDED = {
    "tall": {"kernel": (16, 8)},
    "wide": {"kernel": (8, 16)},
    "square": {"kernel": (8, 8), "bias": (8,)},
    "layers": {"kernel": (5, 8, 16)},
    "embed": {"embedding": (12, 4)},
    "temperature": (),
}


def _tree(seed, kind):
    if kind != "mesh":
        return _registry.tree(seed, kind)
    tree = _registry.tree(seed, np.float32, shapes=SHARDED)
    mesh = jax.make_mesh((4,), ("fsdp",), (AxisType.Explicit,))

    def put(x):
        spec = (P(None, "fsdp") if x.ndim == 3 else P("fsdp")) if x.ndim else P()
        return jax.device_put(x, NamedSharding(mesh, spec))

    return jax.tree.map(put, tree)


def run(tx, kind):
    """Updates of every step, and what the last state holds, by path."""
    params = _tree(0, kind)
    update, state, found = jax.jit(tx.update), jax.jit(tx.init)(params), {}
    for step in range(STEPS):
        if step == STEPS - 1:
            fresh = jax.jit(tx.init)(params)
            state = om.from_portable(om.to_portable(state, params), fresh, params)
        updates, state = update(_tree(1 + step, kind), state, params)
        params = optax.apply_updates(params, updates)
        for keys, x in jax.tree.leaves_with_path(updates):
            found[f"{step}{jax.tree_util.keystr(keys)}"] = _bits(x)
    held = collections.defaultdict(list)
    paths = [_path(keys) for keys, _ in jax.tree.leaves_with_path(params)]
    for key, x in om.to_portable(state, params).items():
        ends = [p for p in paths if f"/{key}".partition("#")[0].endswith(f"/{p}")]
        held[max(ends, key=len, default="-")].append(_digest(x))
    for path, digests in held.items():
        # Every chain may count its own steps.
        unique = sorted(set(digests) if path == "-" else digests)
        found[f"state {path}"] = np.array(unique)
    return found


def _path(keys):
    return "/".join(str(key.key) for key in keys)


def _digest(x):
    x = _bits(x)
    text = f"{x.dtype} {x.shape}".encode()
    return hashlib.sha256(text + x.tobytes()).hexdigest()


def _bits(x):
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    x = np.asarray(x)
    return x.view(np.uint16) if x.dtype == jnp.bfloat16 else x


def record(only, part, parts):
    """Every array of every case."""
    found = {}
    chosen = [case for case in cases() if only in case[0]]
    for name, make, kind in chosen[part::parts]:
        try:
            arrays = run(make(), kind)
        except Exception as error:
            arrays = {"error": np.array(f"{type(error).__name__}: {error}"[:300])}
            print("raises:", name, arrays["error"], flush=True)
        found |= {f"{name}|{path}": x for path, x in arrays.items()}
        jax.clear_caches()
    return found


def main():
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=("save", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="", help="part of a case's name")
    parser.add_argument("--part", default="0/1", help="which of how many processes")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    found = record(args.only, *map(int, args.part.split("/")))
    if args.command == "save":
        np.savez_compressed(args.file, **found)
        print(f"{len(found)} arrays saved.")
        return 0
    with np.load(args.file) as file:
        before = {k: file[k] for k in file.files if args.only in k}
    different = [
        k for k in before.keys() & found.keys() if not _same(before[k], found[k])
    ]
    for what, keys in (
        ("missing", before.keys() - found.keys()),
        ("new", found.keys() - before.keys()),
        ("different", different),
    ):
        print(f"{what}: {len(keys)}", *sorted(keys)[:20], sep="\n  ")
    print(f"{len(before)} arrays recorded, {len(found)} found.")
    return int(before.keys() != found.keys() or bool(different))


def _same(a, b):
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return a.tobytes() == b.tobytes()


if __name__ == "__main__":
    sys.exit(main())
