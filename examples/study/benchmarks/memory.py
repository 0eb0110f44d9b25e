"""Memory of one optimizer step on one device, in numbers per weight.

    python -m examples.study memory
    python -m examples.study memory --recipes muon galore --set max_batch=1
    python -m examples.study memory --in-order

Compiles `update` and `apply_updates` on the CPU, parameters and state donated; prints
arguments, results that share no memory with them, and temporaries, over the bytes of
the weights. Gradients are among the arguments, so that AdamW takes four. Recipes with a
rank have a quarter of the shorter side. `--set` gives keywords to the recipes that have
them.

By default XLA orders a program for a CPU so that many threads have work, which keeps
the temporaries of all stacks alive at the same time. With `--in-order` one stack comes
after the other, as where memory is scarce.
"""

import argparse
import os
from collections.abc import Sequence
from typing import Any

from examples.study.benchmarks import aot

FIRST = ("optax.adamw", "optax.contrib.muon")
IN_ORDER = "--xla_cpu_enable_concurrency_optimized_scheduler=false"


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.study memory",
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--model", choices=aot.MODELS, default="113M", help="sizes by name")
    for name in ("layers", "embed", "mlp", "kv"):
        add(f"--{name}", type=int, help="instead of the model's")
    add("--recipes", nargs="+", default=["all"], metavar="NAME")
    add("--set", nargs="+", default=[], metavar="NAME=VALUE", type=aot.keyword)
    add("--in-order", action="store_true", help="the schedule that saves memory")
    args = parser.parse_args(argv)
    args.set = dict(args.set)
    args.experts = args.scan = None
    return args


def numbers_per_weight(tx: Any, params: Any) -> dict[str, float]:
    """Arguments, results, temporaries and their sum, over the bytes of the weights."""
    from examples.study.benchmarks import _compile, account

    compiled = _compile.traced(tx, params).lower().compile()
    return of_compiled(compiled, account.local_bytes(params))


def of_compiled(compiled: Any, weights: int) -> dict[str, float]:
    """The same of a compiled step, for weights of so many bytes."""
    memory = compiled.memory_analysis()
    results = memory.output_size_in_bytes - memory.alias_size_in_bytes
    parts = {
        "arguments": memory.argument_size_in_bytes,
        "results": results,
        "temporaries": memory.temp_size_in_bytes,
    }
    return {k: n / weights for k, n in {**parts, "total": sum(parts.values())}.items()}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns the exit code."""
    import jax
    from jax.sharding import AxisType

    from examples.study.benchmarks import _compile, account

    args = parse(argv)
    if args.in_order:  # XLA reads it when it is first used.
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {IN_ORDER}"
    names = args.recipes
    if names == ["all"]:
        names = [*FIRST, *_compile.all_recipe_names()]
    device = jax.devices("cpu")[:1]
    mesh = jax.make_mesh((1,), ("fsdp",), (AxisType.Auto,), devices=device)
    model = aot.chosen_model(args)
    params = model.params(mesh)
    print(
        f"{model.elements / 1e6:.0f}M parameters in {model.matrices} matrices, "
        f"float32, jax {jax.__version__}"
    )
    columns = ("arguments", "results", "temporaries", "total")
    print(f"{'':20}" + "".join(f"{c:>13}" for c in columns))
    for name in names:
        tx = _compile.make_optimizer(name, options=account.RANK | args.set)
        found = numbers_per_weight(tx, params)
        print(f"{name:20}" + "".join(f"{found[c]:13.2f}" for c in columns), flush=True)
    return 0
