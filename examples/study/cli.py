"""The command line of the study: each command is a module with a `main`."""

import argparse
import importlib

PROGRAM = "python -m examples.study"
COMMANDS = {
    "bench": ("bench.cli", "all methods, or your own, under one protocol"),
    "equal": ("equal.cli", "eleven methods with equal budgets, beside a tuned AdamW"),
    "unseen": ("unseen.cli", "rules for the learning rate on six other tasks"),
    "posttrain": ("posttrain.cli", "tuning trained models to other data"),
    "reinforce": ("reinforce.cli", "training by reward, with GRPO and with PPO"),
    "transfer": ("transfer.cli", "five methods on a GPU, with 10M parameters"),
    "compare": ("compare.cli", "some methods at once, with a page of their curves"),
    "report": ("report.cli", "a page of runs, comparisons or studies"),
    "rotation": ("rotation.cli", "ARO's study of rotations on MNIST"),
    "paper-tables": ("paper_tables.cli", "what the five papers state, checked"),
    "memory-table": ("memory_table", "memory of weights and states of LLaMA models"),
    "portable-table": ("portable_table", "bytes that save and move a state"),
    "step": ("benchmarks.step", "compile and step time against optax.contrib.muon"),
    "device": ("device.cli", "what the methods cost on an accelerator, by the clock"),
    "host-memory": ("device.memory", "steps whose state lies in the host's memory"),
    "device-table": ("device.page", "tables of what was measured on a GPU"),
    "aot": ("benchmarks.aot", "an optimizer step compiled for TPUs or GPUs"),
    "tpu-kernels": ("benchmarks.tpu_kernels", "Newton-Schulz on TPUs, compiled"),
    "memory": ("benchmarks.memory", "memory of an optimizer step on one device"),
    "training": ("benchmarks.training", "a sharded training step, compiled for a pod"),
    "unrolled": ("benchmarks.unrolled", "memory of a step whose layers are unrolled"),
    "chunks": ("benchmarks.chunks", "chunks of a group apart or in a loop, compiled"),
    "plans": ("benchmarks.plans", "bytes that owners send for large models"),
    "orthogonal": ("benchmarks.orthogonal", "speed of POET's orthogonal maps"),
    "poet-merges": ("benchmarks.poet_merges", "what keeps POET's Q orthogonal"),
    "poet-spectrum": ("benchmarks.poet_spectrum", "POET's change of singular values"),
    "poet-memory": ("benchmarks.poet_memory", "memory of a training step with POET"),
}


def main(arguments: list[str] | None = None) -> int:
    """Runs a command.

    Args:
        arguments: Arguments after the program's name; None for those of `sys.argv`.

    Returns:
        The exit code: 0 for success.
    """
    width = max(map(len, COMMANDS)) + 2
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        usage=f"{PROGRAM} COMMAND ...",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Measurements of optax_matrix. `COMMAND --help` says more of each.",
        epilog="\n".join(f"  {n:{width}}{text}" for n, (_, text) in COMMANDS.items()),
    )
    parser.add_argument("command", choices=COMMANDS, help=argparse.SUPPRESS)
    parser.add_argument("rest", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    module = importlib.import_module(f"examples.study.{COMMANDS[given.command][0]}")
    return module.main(given.rest) or 0
