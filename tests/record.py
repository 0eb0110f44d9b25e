"""Records what every recipe and block does, to show that a refactoring changed nothing.

python tests/record.py save before.npz       # on the old commit
python tests/record.py compare before.npz    # on the new one: equal bit for bit?

Updates and states of three steps on fixed trees, in float32 and bfloat16, with
schedules and under `inject_hyperparams`. With `--programs`, only the text of the
program that JAX hands to the compiler is recorded: equal text is equal bits, without
the time to compile. Schedules are recorded as programs in both.
"""

import argparse
import functools
import hashlib
import os
import sys
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

import _registry
import jax
import jax.numpy as jnp
import numpy as np
import optax

import optax_matrix as om

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
    "adamuon": [{"nesterov": False}, {"variant": "unsigned", "b2": 0.5, "eps": 1e-3}],
    "normuon": [{"scaling": "out/in", "nesterov": False}],
    "swan": [{"eps": 0.5, "weight_decay": 0.1}],
    "sinkgd": [{"scheme": "simultaneous", "rounds": 2}, {"target": 0.5}],
    "racs": [{"rounds": 2, "max_shrink": None, "scale": 0.2, "weight_decay": 0.1}],
    "mars_adamw": [{"max_norm": None, "gamma": 0.1, "b1": 0.5}],
    "aro": [
        {"full_model": True},
        {"full_model": True, "base": "adam", "other_learning_rate": 0.3},
        {"policy": "polar", "orientation": "out", "update_interval": 2},
        {"policy": "eigen_exact", "orientation": "in", "target": 0.5},
        {"base": optax.scale_by_sign(), "b1": 0.5},
        {
            "sharing": "global",
            "dimension_numbers": om.layout.by_path(
                numbers={"kernel": om.MatrixDimensionNumbers(-2, -1, residual="in")}
            ),
        },
    ],
    "eigen_sinkhorn": [{"policy": "eigen_exact", "orientation": "short"}],
    "eigen_sign": [{"target": 0.3}],
    "eigen_rownorm": [{"update_interval": 2}],
    "eigen_adam": [{"policy": "eigen_exact"}, {"update_interval": 2}],
    "soap": [
        {"side": "out", "bias_correction": False, "update_interval": 1},
        {"policy": "eigen_exact", "max_dim": 4},
    ],
    "kl_shampoo": [{"policy": "identity"}, {"side": "out", "update_interval": 1}],
    "kl_soap": [{"max_dim": 4}],
    "splus": [{"policy": "identity", "weight_decay": 0.2}, {"side": "short"}],
    "shampoo": [{"update_interval": 2, "root": 2, "method": "eigh", "side": "out"}],
    "mousse": [{"update_interval": 2, "scaling": "out/in", "side": "in"}],
    "dion": [{"b1": 0.5, "scaling": "max"}],
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
    "poet": [
        {"block": 2, "sides": "in", "terms": 2, "max_norm": None, "reset": "none"},
        {"block": 4, "weight_decay": 0.1, "merge_interval": None, "seed": 3},
    ],
    "oft": [{"block": 2, "max_norm": 0.1}],
    "adamw_8bit": [{}],
}


def cases():
    """The transformations, by name: whole trees in, whole trees out."""
    made = dict(_registry.RECIPES)
    for name, variants in VARIANTS.items():
        for i, options in enumerate(variants):
            made[f"{name}+{i}"] = functools.partial(getattr(om, name), **options)
    for name, factory in made.items():
        yield name, functools.partial(factory, 1e-2)
        yield f"{name}@schedule", functools.partial(factory, _schedule)
        yield f"{name}@injected", functools.partial(_injected, factory)
    for name in made:
        scale_by = getattr(om, f"scale_by_{name}", None)
        if scale_by is not None:
            rank = {"rank": 2} if name in _registry.LOW_RANK - {"apollo_mini"} else {}
            yield f"scale_by_{name}", functools.partial(scale_by, **rank)
    for name, block in _registry.BLOCKS.items():
        yield f"block:{name}", lambda block=block: om.on_matrices(block())


def _schedule(count):
    return 1e-2 / (1 + count)


def _injected(factory):
    options = {}
    if isinstance(factory, functools.partial):
        options, factory = factory.keywords, factory.func
    return om.inject_hyperparams(factory)(learning_rate=_schedule, **options)


def run(tx, dtype, programs):
    """Updates of every step and the last state, by path; or the program of both."""
    params = _registry.tree(0, dtype)
    grads = [_registry.tree(seed, dtype) for seed in range(1, STEPS + 1)]

    @jax.jit
    def steps(params, grads):
        state = tx.init(params)
        all_updates = []
        for g in grads:
            updates, state = tx.update(g, state, params)
            params = optax.apply_updates(params, updates)
            all_updates.append(updates)
        return all_updates, state

    if programs:
        shapes = jax.tree_util.tree_flatten_with_path(
            jax.eval_shape(steps, params, grads)
        )
        paths = [jax.tree_util.keystr(path) for path, _ in shapes[0]]
        text = steps.lower(params, grads).as_text()
        return {
            "program": np.array(_digest(text)),
            "paths": np.array(_digest(str(paths))),
        }
    leaves, _ = jax.tree_util.tree_flatten_with_path(steps(params, grads))
    return {jax.tree_util.keystr(path): _bits(x) for path, x in leaves}


def _digest(text):
    return hashlib.sha256(text.encode()).hexdigest()


def _bits(x):
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    x = np.asarray(x)
    return x.view(np.uint16) if x.dtype == jnp.bfloat16 else x


def record(only, programs):
    """Every array of every case."""
    found = {}
    for name, make in cases():
        if only not in name:
            continue
        dtypes = ("float32",) if "@" in name else ("float32", "bfloat16")
        for dtype in dtypes:
            try:
                arrays = run(make(), dtype, programs or "@schedule" in name)
            except Exception as error:
                arrays = {"error": np.array(f"{type(error).__name__}: {error}"[:300])}
                print("raises:", name, dtype, arrays["error"], flush=True)
            found |= {f"{name}|{dtype}|{path}": x for path, x in arrays.items()}
    return found


def main():
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=("save", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="", help="part of a case's name")
    parser.add_argument("--programs", action="store_true", help="texts, not numbers")
    args = parser.parse_args()
    found = record(args.only, args.programs)
    if args.command == "save":
        np.savez_compressed(args.file, **found)
        print(f"{len(found)} arrays saved.")
        return 0
    with np.load(args.file) as file:
        before = {k: file[k] for k in file.files if args.only in k.split("|")[0]}
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
