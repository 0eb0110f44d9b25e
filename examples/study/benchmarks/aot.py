r"""What one optimizer step costs on TPUs or GPUs, by the compiler, without either.

    python -m examples.study aot --topology v5e:4x4 --mesh fsdp=4,tp=4
    python -m examples.study aot --topology v5p:4x4x8 --mesh fsdp=32,tp=4 \
        --model 70B --teams 2 --recipes muon
    python -m examples.study aot --mesh fsdp=4,expert=4 --experts 64
    python -m examples.study aot --mesh fsdp=4,tp=4 --scan fsdp
    python -m examples.study aot --mesh slice=2,fsdp=16 --owners fsdp
    python -m examples.study aot --platform h200 --devices 1

Compiles `update` and `apply_updates` of a LLaMA's matrices for a TPU topology; prints,
for each optimizer and per device: work of the program against an even split of what one
device would do alone, the same for the busiest device by `om.sharding.plan`, bytes that
collectives return, mesh axes along which they send, collectives in flight beside
products, temporary and argument memory, size of the program, and the compiler's
processor seconds. Work is FLOPs of matrix products; for RACS, which has none, the
elements that reductions read. The program has padding, which no device computes, and
the shares of all teams; the plan counts what a device does. Recipes run with matrices
owned by the mesh axes `--owners` and once more as they lie (`placement=None`);
`--recipes all` takes every recipe. Needs `pip install '.[aot]'`; these are
the compiler's numbers, not a clock's.

Experts are split over an axis `expert`. An axis `slice` is of slices of the topology,
between which parameters are replicated: with owners on the other axes, every slice
does all of the work, and nothing is sent between slices.

With `--platform` the step is compiled for one or eight chips, as a mesh `fsdp`, and
what its program does is counted, for each device: kernels; bytes that they read and
write, as passes over the parameters; temporary memory; predicates that a GPU sends to
the host; what collectives return, and their number; the compiler's processor seconds;
and milliseconds, the sum over the kernels of the time of their products or of their
bytes, whichever is longer, at the chip's rates. `/ floor` compares this with the time
of the products and of the bytes that the method must move: seven passes, as AdamW, or
more where the state is larger than Adam's. Decompositions count by their bytes alone.
Where a step has conditionals, the first number is of their cheapest branches (a step
without a renewal), the second of their dearest ones. Recipes with a rank have a quarter
of the shorter side. GPUs need `pip install '.[aot-cuda]'`.
"""

import argparse
import ast
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

RECIPES = ("muon", "muoneq", "racs", "optax.contrib.muon", "optax.adamw")
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",  # Do not query a cloud's metadata server.
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    # The rest keeps the compiler quiet.
    "TPU_ACCELERATOR_TYPE": "v5litepod-16",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "TPU_LOG_DIR": "disabled",
    "TPU_MIN_LOG_LEVEL": "3",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}
MODELS = ("268M", "113M", "8B", "70B")
HOPPER = ("h100", "h200")
GPUS = (*HOPPER, "t4")
PLATFORMS = (*GPUS, "v5e", "v5p", "v6e")
COLUMNS = (
    "work/ideal",
    "busiest",
    "collect. MiB",
    "along",
    "overlapped",
    "temp MiB",
    "args MiB",
    "code MiB",
    "compile s",
)


def parse_mesh(text: str) -> dict[str, int]:
    """Mesh axes from `fsdp=4,tp=4`."""
    try:
        axes = {n: int(s) for n, s in (part.split("=") for part in text.split(","))}
    except ValueError:
        axes = {}
    if "fsdp" not in axes or min(axes.values()) < 1:
        raise argparse.ArgumentTypeError(
            f"must name `fsdp` and its size, as in fsdp=4,tp=4, got {text!r}"
        )
    return axes


def keyword(text: str) -> tuple[str, Any]:
    """A keyword from `name=value`; a value that is no Python literal is a word."""
    name, _, value = text.partition("=")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.study aot",
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--topology", default="v5e:4x4", help="v5e:4x4, v5e:16x16, v5p:2x2x1, ...")
    add("--mesh", type=parse_mesh, default="fsdp=4,tp=4", help="axes and their sizes")
    add("--platform", choices=PLATFORMS, help="count what a step does on this chip")
    add("--devices", type=int, choices=(1, 8), default=1, help="of the platform")
    add(
        "--set",
        nargs="+",
        default=[],
        metavar="NAME=VALUE",
        type=keyword,
        help="keywords of the recipes that have them, with --platform",
    )
    add(
        "--auto-layouts",
        action="store_true",
        help="the compiler orders the state's axes in memory, with --platform",
    )
    add("--model", choices=MODELS, help="sizes by name (default: 268M; 113M on 1 chip)")
    for name in ("layers", "embed", "mlp"):
        add(f"--{name}", type=int, help="instead of the model's")
    add("--kv", type=int, help="width of keys and values, instead of the model's")
    add("--experts", type=int, help="MLPs of a layer (default: one, without an axis)")
    add(
        "--scan",
        nargs="?",
        const="",
        metavar="AXIS",
        help="layers in one leaf, split over this mesh axis if one is given",
    )
    add("--recipes", nargs="+", metavar="NAME", help="by default some, or all: `all`")
    add("--owners", help="mesh axes that own matrices, by commas (default: all)")
    add("--only-owners", action="store_true", help="leave out placement=None")
    add("--teams", type=int, choices=(1, 2, 4, 8), default=1, help="as in om.owners")
    add("--wire", choices=("bfloat16", "float32"), default="bfloat16")
    add(
        "--async",
        action="store_true",
        dest="asynchronous",
        help="with the compiler's asynchronous all-to-alls",
    )
    add("--axis-types", choices=("auto", "explicit"), default="auto")
    args = parser.parse_args(argv)
    small = args.platform and args.devices == 1
    args.model = args.model or ("113M" if small else MODELS[0])
    args.recipes = args.recipes or (["all"] if args.platform else list(RECIPES))
    args.set = dict(args.set)
    args.owners = tuple(args.owners.split(",") if args.owners else args.mesh)
    unknown = [axis for axis in args.owners if axis not in args.mesh]
    if unknown:
        parser.error(f"--owners must be axes of --mesh, got {unknown[0]!r}")
    if args.scan and args.scan not in args.mesh:
        parser.error(f"--scan must be an axis of --mesh, got {args.scan!r}")
    return args


def compiler_is_missing(platform: str | None = None) -> bool:
    """Whether there is no compiler of the platform, or of TPUs, for jax to find."""
    if platform in GPUS:
        plugins = ("jax_cuda13_plugin", "jax_cuda12_plugin")
        return not any(map(importlib.util.find_spec, plugins))
    return (
        importlib.util.find_spec("libtpu") is None
        and "TPU_LIBRARY_PATH" not in os.environ
    )


def why_too_old(platform: str | None) -> str | None:
    """Why the installed jax does not know a chip, or None."""
    version = importlib.metadata.version("jax")
    parts = tuple(int(part) for part in version.split(".")[:2])
    if platform not in HOPPER or parts >= (0, 11):
        return None
    return (
        f"`--platform {platform}` needs jax 0.11 or later (Python 3.12 or later), to "
        f"read the chip's description, got jax {version}; make an environment with a "
        "later one, or pass --platform t4."
    )


def measure(args: argparse.Namespace) -> None:
    """Prints the table."""
    if args.platform:
        from examples.study.benchmarks import account

        args.shapes = chosen_model(args)
        account.measure(args)
        return
    import jax
    import jax.numpy as jnp

    import optax_matrix as om
    from examples.study.benchmarks import _compile

    model = chosen_model(args)
    mesh = _compile.make_mesh(args.topology, args.mesh, args.axis_types)
    params = model.params(mesh)
    specs = jax.tree.map(lambda leaf: leaf.sharding.spec, params)
    options = {"wire_dtype": jnp.dtype(args.wire), "teams": args.teams}
    owners = om.owners(args.owners, param_specs=specs, **options)
    rows = [
        (label, name, _compile.make_optimizer(name, placement))
        for label, name, placement in _rows(args, owners)
    ]
    shape = ", ".join(f"{name} {size}" for name, size in args.mesh.items())
    print(
        f"{model.elements / 1e6:.0f}M parameters in {model.matrices} matrices, "
        f"{args.topology} as {shape} ({args.axis_types}), owners "
        f"{', '.join(args.owners)} (teams: {args.teams}) by {args.wire}, "
        f"jax {jax.__version__}"
    )
    print(f"{'':26}" + "".join(f"{c:>14}" for c in COLUMNS) + "   count (MiB) by kind")
    looped = False
    for label, name, tx in rows:
        try:
            options = _compile.ASYNCHRONOUS if args.asynchronous else None
            report = _compile.compile_step(tx, params, options)
        except Exception as error:  # A step that does not compile is a finding.
            reason = " ".join(str(error).split()) or type(error).__name__
            print(f"{label:26}  does not compile: {reason[:200]}", flush=True)
            continue
        ideal = _compile.ideal_work(args.topology, name, model) / mesh.size
        looped |= report.is_partial
        busiest = (
            om.sharding.plan(tx, params, specs).work if "owners" in label else None
        )
        label += "*" * report.is_partial
        print(_line(label, report, ideal, busiest), flush=True)
    if looped:
        print("* has loops whose bodies count once.")


def chosen_model(args: argparse.Namespace):
    from examples.study.benchmarks import _models

    names = ("layers", "embed", "mlp", "kv", "experts")
    given = {n: getattr(args, n) for n in names if getattr(args, n) is not None}
    sizes = _models.SIZES[args.model] | given
    return _models.Model(**sizes, scanned=args.scan is not None, cut=args.scan or None)


def _rows(args: argparse.Namespace, owners):
    from examples.study.benchmarks import _compile

    names = args.recipes
    if names == ["all"]:
        names = _compile.recipe_names()
    for name in names:
        if name.startswith("optax."):
            yield name, name, None
            continue
        yield f"{name} (owners)", name, owners
        if not args.only_owners:
            yield f"{name} (placement=None)", name, None


def _line(label: str, report, ideal: float, busiest: float | None) -> str:
    mib = 2**20
    numbers = (
        f"{report.work / ideal:.2f}x",
        "-" if busiest is None else f"{busiest:.2f}x",
        f"{report.traffic_bytes / mib:.1f}",
        ",".join(report.along) or "-",
        "{} of {}".format(*report.overlapped),
        f"{report.temporary_bytes / mib:.0f}",
        f"{report.argument_bytes / mib:.0f}",
        f"{report.code_bytes / mib:.1f}",
        f"{report.seconds:.1f}",
    )
    kinds = (
        f"{traffic.count} {kind} ({traffic.bytes / mib:.1f})"
        for kind, traffic in sorted(report.traffic.items())
    )
    return (
        f"{label:26}" + "".join(f"{n:>14}" for n in numbers) + "   " + ", ".join(kinds)
    )


def with_compiler(measure: Callable[[argparse.Namespace], None], args) -> int:
    """Measures where the compiler is; returns the exit code."""
    platform = getattr(args, "platform", None)
    if compiler_is_missing(platform):
        kind, extra = ("CUDA", "aot-cuda") if platform in GPUS else ("TPU", "aot")
        print(
            f"error: the {kind} compiler is missing; pip install '.[{extra}]'",
            file=sys.stderr,
        )
        return 2
    if message := why_too_old(platform):
        print(f"error: {message}", file=sys.stderr)
        return 2
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        measure(args)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns the exit code."""
    return with_compiler(measure, parse(argv))
