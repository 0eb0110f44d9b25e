"""What bounds POET's Q: nothing, half the learning rate, a bound, merges, an exact map.

    python -m examples.study poet-merges --out runs/poet_merges.jsonl
    python -m examples.study poet-merges --out runs/poet_merges.jsonl --table

The tiny LLaMA on bytes of the two books, at the paper's settings: learning rate of Q
1e-3 times 256 / b, 5e-3 for the other leaves, cosine to 0.01 without warm-up, clip 0.1
with its ramps after merges, weight decay 0.01, rows of norm one, merges every 400
updates. One JSON line per run; finished runs are skipped, so that it can be stopped and
started again.
"""

import argparse
import json
import math
import pathlib
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

import optax_matrix as om
from examples.pretrain.config import SIZES
from examples.pretrain.data import Windows, open_data
from examples.pretrain.step import evaluate, initial_weights, loss_and_gradient
from examples.study.bench.markdown import lines
from optax_matrix.linalg import cayley, cayley_neumann
from optax_matrix.transforms.stochastic_primitives.primitives import Primitives
from optax_matrix.tree.state import OnMatricesState

CONFIG = SIZES["tiny"]
INTERVAL, SAMPLE = 400, 20
FREE = {"max_norm": None, "merge_at": None}
VARIANTS = {
    "paper": FREE,
    "half the rate": FREE | {"factor": 0.5},
    "bound": {"max_norm": 0.5, "merge_at": None},
    "merge when needed": {"max_norm": 0.5, "merge_at": 0.5},
    "cayley": FREE | {"orthogonal": cayley},
    "cayley, half the rate": FREE | {"orthogonal": cayley, "factor": 0.5},
    "merge, moments kept": {"max_norm": 0.5, "merge_at": 0.5, "reset": "none"},
    # Figure 8, with "half the rate" as its series of four terms.
    **{
        f"half the rate, {k} terms": FREE
        | {"factor": 0.5, "orthogonal": partial(cayley_neumann, terms=k)}
        for k in (1, 2, 3, 5)
    },
}

SEEDS = [0, 1, 2, 3, 4]
PATH = pathlib.Path(__file__).parents[1] / "results" / "poet_merges.jsonl"
HEADINGS = (
    *("map and bound", "loss", "singular values", "e_orth", "Tr R / m"),
    *("merges", "cosine"),
)
LABELS = {
    "paper": "the paper's series as printed: `terms=4, max_norm=None`",
    "half the rate": "the same at half the rate, as in the authors' code",
    "bound": "the bound: `terms=4`, so `max_norm=0.5`",
    "merge when needed": "merge when needed: `terms=4, merge_at=0.5`",
    "cayley": "exact: `linalg.cayley`, the default",
    "cayley, half the rate": "exact, at half the rate",
    "half the rate, 1 terms": "the series at half the rate, `terms=1`",
    **{f"half the rate, {k} terms": f"`terms={k}`" for k in (2, 3, 5)},
}


def optimizer(block: int, steps: int, orthogonal, factor=1.0, **options):
    """POET with the paper's schedule and clip."""
    shape = optax.cosine_decay_schedule(1.0, steps, 0.01)
    rate, other = factor * 0.256 / block, 5e-3
    clip = om.weights.clip_after_merge(0.1, INTERVAL)
    poet = om.poet(
        lambda count: rate * shape(count),
        block=block,
        merge_interval=INTERVAL,
        orthogonal=orthogonal,
        other_learning_rate=lambda count: other * shape(count),
        **options,
    )
    by_clip = om.inject_hyperparams(optax.clip_by_global_norm)(max_norm=clip)
    return optax.chain(by_clip, poet)


def matrix_state(state):
    """The state of POET's matrices within that of the whole optimizer."""
    is_ours = lambda x: isinstance(x, OnMatricesState)
    nodes = jax.tree.leaves(state, is_leaf=is_ours)
    return next(filter(is_ours, nodes)).inner_state


def measured(spo, primitives):
    """Largest e_orth, mean of Tr R / m, and number of merges per matrix."""
    errors, traces = [], []
    for name, q in spo.q.items():
        blocks = primitives.blocks(q, spo.frame[name])
        for side, g in blocks.items():
            errors.append(om.diagnostics.orthogonality_error(g).max())
            n = spo.frame[name].shape[-1 if side == "in" else -2]
            over = g.shape[-3] * g.shape[-1] - n  # The end of the last block.
            trace = jnp.trace(g, axis1=-2, axis2=-1).sum(-1) - over
            traces.append((trace / n).reshape(-1))
    merges = jnp.concatenate([x.reshape(-1) for x in spo.merges.values()])
    return jnp.max(jnp.stack(errors)), jnp.concatenate(traces).mean(), merges.mean()


@partial(jax.jit, static_argnums=(0, 1))
def trained(variant: str, settings: tuple, params, batches):
    """The weights after training, and what was measured every twenty updates."""
    block, steps = settings
    options = {"orthogonal": cayley_neumann} | VARIANTS[variant]
    sides = {"out": block, "in": block}
    primitives = Primitives(sides, "block", options["orthogonal"], 0)
    tx = optimizer(block, steps, **options)

    def step(carry, batch):
        params, state = carry
        _, grads = loss_and_gradient(CONFIG, params, batch)
        updates, state = tx.update(grads, state, params)
        return (optax.apply_updates(params, updates), state), None

    def chunk(carry, batches):
        # Measured one update before the end, so never at a merge of all matrices.
        carry, _ = jax.lax.scan(step, carry, batches[:-1])
        found = measured(matrix_state(carry[1]), primitives)
        return step(carry, batches[-1])[0], found

    batches = batches.reshape(-1, SAMPLE, *batches.shape[1:])
    (params, _), found = jax.lax.scan(chunk, (params, tx.init(params)), batches)
    return params, found


def matrices(params) -> list[np.ndarray]:
    """The matrices of the layers, in float64."""
    leaves = jax.tree.leaves_with_path(params)
    inside = [x for keys, x in leaves if "layers" in jax.tree_util.keystr(keys)]
    return [np.asarray(x, np.float64) for x in inside if x.ndim == 2]


def run(variant: str, seed: int, args) -> dict:
    """One training run."""
    windows = Windows(CONFIG.context, args.batch, seed=seed)
    data = open_data("books", windows)
    stream = iter(data.train)
    batches = np.stack([next(stream)[0] for _ in range(args.steps)])
    params = initial_weights(CONFIG, seed)
    key = jax.random.fold_in(jax.random.key(6), seed)
    params = om.initialize_matrices(params, key, "normalized")
    start = time.perf_counter()
    new, (error, trace, merges) = trained(
        variant, (args.block, args.steps), params, jnp.asarray(batches)
    )
    jax.block_until_ready(new)
    seconds = time.perf_counter() - start
    change, cosine = [], []
    for old, w in zip(matrices(params), matrices(new), strict=True):
        if not np.isfinite(w).all():
            change, cosine = [math.inf], [math.nan]
            break
        values = [np.linalg.svd(x, compute_uv=False) for x in (old, w)]
        change.append(np.abs(values[1] / values[0] - 1).max())
        sizes = np.linalg.norm(old) * np.linalg.norm(w)
        cosine.append(float((old * w).sum() / sizes))
    return {
        "variant": variant,
        "seed": seed,
        "steps": args.steps,
        "block": args.block,
        "batch": args.batch,
        "loss": evaluate(CONFIG, new, data.validation),
        "change": float(np.max(change)),
        "e_orth": float(np.max(error)),
        "trace": float(np.min(trace)),
        "merges": float(merges[-1]),
        "cosine": float(np.mean(cosine)),
        "seconds": round(seconds, 1),
    }


def read(path: pathlib.Path) -> list[dict]:
    """The finished runs of a file."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def table(rows: list[dict]) -> str:
    """Means over seeds, and the spread of the loss; variants with all seeds only."""
    found = []
    for variant, label in LABELS.items():
        own = [row for row in rows if row["variant"] == variant]
        if len(own) < len(SEEDS):
            continue
        column = lambda key, own=own: np.array([row[key] for row in own])
        loss = column("loss")
        found.append(
            [
                label,
                f"{loss.mean():.4f} ± {loss.std(ddof=1):.4f}",
                _short(column("change").max()),
                _short(column("e_orth").max()),
                f"{column('trace').mean():.2f}",
                f"{column('merges').mean():.3g}",
                f"{column('cosine').mean():.2f}",
            ]
        )
    return lines(HEADINGS, found)


def _short(x):
    """Two digits; powers of ten where they are shorter."""
    return f"{x:#.2g}" if 0.01 <= x < 1000 else f"{x:.1e}"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m examples.study poet-merges",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS))
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--block", type=int, default=32)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--table", action="store_true", help="only print the table")
    args = parser.parse_args(arguments)
    rows = read(args.out)
    settings = args.steps, args.block, args.batch
    rows = [r for r in rows if (r["steps"], r["block"], r["batch"]) == settings]
    if args.table:
        print(table([r for r in rows if r["seed"] in args.seeds]))
        return
    done = {(row["variant"], row["seed"]) for row in rows}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    for seed in args.seeds:
        for variant in args.variants:
            if (variant, seed) not in done:
                row = run(variant, seed, args)
                with args.out.open("a") as file:
                    print(json.dumps(row), file=file, flush=True)
                print(json.dumps(row), flush=True)
