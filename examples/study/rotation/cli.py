"""Which rotation? The study of ARO's Figures 2, 20 and 21 on MNIST.

Trains an MLP under four rotation policies, on all images at once and on mini-batches.
Reports the loss and the alignment score, the cosine between an update and the gradient
on all images. Then compares ARO's objective under its rotations with that under the
eigenvectors, on random momenta, on those of this MLP and on those of a tiny LLaMA.

Run it from the root of the repository: `python -m examples.study rotation`. 4000 images
ship with the examples; the paper's run is
`--data train-images-idx3-ubyte.gz --images 20000 --steps 3000 --base sign`.
"""

import argparse
import json
import pathlib
import sys

from examples.pretrain.errors import UserError
from examples.study.rotation import mnist, objective, report, training

POLICIES = ("polar", "eigen", "aro", "identity")
BASES = ("sinkhorn", "sign", "row_norm", "adam")
FIGURE_2 = ("sinkhorn", "sign")


def train_all(args: argparse.Namespace, digits: mnist.Digits) -> report.Runs:
    """The curve of every policy, with full-batch and with mini-batch gradients."""
    modes = {"full batch": None, f"batch {args.batch}": args.batch}
    runs: report.Runs = {}
    for gradient, batch in modes.items():
        runs[gradient] = curves = {}
        for policy in POLICIES:
            settings = (args.steps, batch, args.seed)
            curve = training.train(policy, args.base, digits, *settings)
            curves[policy] = curve
            print(f"{gradient}, {policy}: loss {curve.losses[-1]:.2e}", flush=True)
    return runs


def compare_objectives(args: argparse.Namespace, digits: mnist.Digits):
    """Results of `objective.compare`, by momenta and base."""
    momenta = {
        "gaussian": objective.gaussian(seed=args.seed),
        "mlp": objective.of_mlp(digits, args.momenta, args.batch, args.seed),
        "llama": objective.of_llama(args.momenta, args.seed),
    }
    return {
        (name, base): objective.compare(base, of)
        for name, of in momenta.items()
        for base in FIGURE_2
    }


def study(args: argparse.Namespace) -> None:
    """Runs everything; prints the tables, writes `curves.png` and `results.json`."""
    if args.batch > args.images:
        raise UserError(f"--batch {args.batch} is more than --images {args.images}.")
    digits = mnist.load(args.data, args.images)
    args.out.mkdir(parents=True, exist_ok=True)
    runs = train_all(args, digits)
    print(f"\n{report.table_of_runs(runs)}\n", flush=True)
    title = f"base {args.base}, {args.images} images"
    report.draw(runs, title, args.out / "curves.png")
    objectives = compare_objectives(args, digits)
    print(
        f"J under ARO and J under the eigenvectors; mean gains over the eigenvectors\n"
        f"{report.table_of_objectives(objectives)}\n"
    )
    record = {
        "settings": {k: str(v) for k, v in vars(args).items()},
        "runs": {
            gradient: {
                policy: {
                    **report.summary(curve),
                    "losses": curve.losses.tolist(),
                    "alignment": curve.alignment.tolist(),
                }
                for policy, curve in curves.items()
            }
            for gradient, curves in runs.items()
        },
        "objectives": {", ".join(key): row for key, row in objectives.items()},
    }
    (args.out / "results.json").write_text(json.dumps(record) + "\n")
    print(f"curves in {args.out / 'curves.png'}, numbers in results.json beside it")


def _positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is less than 1")
    return value


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m examples.study rotation",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--base", choices=BASES, default="sinkhorn", help="base of the trained policies"
    )
    add("--steps", type=_positive, default=400, help="updates of each run")
    add(
        "--images",
        type=_positive,
        default=2000,
        help="number of images, from the start of the file",
    )
    add("--batch", type=_positive, default=512, help="images per mini-batch")
    add(
        "--momenta", type=_positive, default=30, help="steps whose momenta are compared"
    )
    add(
        "--seed",
        type=int,
        default=0,
        help="seed of weights, batches and random momenta",
    )
    add("--data", type=pathlib.Path, default=mnist.SHIPPED, help="MNIST images (idx)")
    add("--out", type=pathlib.Path, default=pathlib.Path("runs/rotation"))
    try:
        study(parser.parse_args(arguments))
    except UserError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0
