"""Compares methods of the catalogue with the programs of their authors.

    python -m examples.catalogue.programs FOLDER [method ...]
    python -m examples.catalogue.programs FOLDER --clone

The folder has a checkout of each program. The second command prints the lines of a
shell that make them. PyTorch has to be installed.

The first command prints the largest difference of an entry of the weights, relative to
the largest entry of the step, in six steps of matrices of three shapes. Both start from
the same weights and get the same gradients. Both compute polar factors by singular
value decomposition.
"""

import argparse
import importlib
import os
import pathlib
import sys
from typing import Any

import jax
import numpy as np

import optax_matrix as om
from examples.catalogue import METHODS
from examples.catalogue.authors import PROGRAMS, Program
from examples.catalogue.method import RATE, Method

STEPS = 6


class Absent(Exception):
    """A program that cannot be imported; the message says what to do."""


def loaded(program: Program, folder: pathlib.Path) -> tuple[Any, Any]:
    """The module of a program in its checkout, and PyTorch.

    Raises:
        Absent: If one of them cannot be imported.
    """
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # Nothing is worth compiling.
    root = folder / program.checkout / program.below
    if not root.is_dir():
        raise Absent(f"{root} is not there: run the line of --clone")
    top = program.module.partition(".")[0]
    for name in [n for n in sys.modules if n.partition(".")[0] == top]:
        del sys.modules[name]  # Of another checkout of the same repository.
    sys.path.insert(0, str(root))
    try:
        torch = importlib.import_module("torch")
        module = importlib.import_module(program.module)
    except ImportError as error:
        raise Absent(f"{program.method} cannot be imported: {error}") from error
    finally:
        sys.path.remove(str(root))
    return module, torch


def difference(program: Program, module: Any, torch: Any, dtype: Any) -> float:
    """The largest difference of the weights, relative to the largest entry moved."""
    program.prepare(module, torch)
    if program.function is not None:
        return program.function(module, torch, dtype)
    method, rng, worst = METHODS[program.method], np.random.default_rng(0), 0.0
    shapes = {name: shape[1:] for name, shape in method.shapes.items()}
    draw = lambda: {n: rng.normal(size=shape) for n, shape in shapes.items()}
    start = {n: program.start(w) for n, w in draw().items()}
    gradients = [{n: x + 0.3 for n, x in draw().items()} for _ in range(STEPS)]
    ours = _of_ours(method, start, gradients, dtype)
    for name, first in start.items():
        theirs = _of_theirs(program, module, torch, dtype, first, name, gradients)
        old = first
        for mine, other in zip(ours[name], theirs, strict=True):
            moved = np.abs(mine - old).max()
            error = np.abs(mine - program.seen(first, other)).max()
            worst, old = max(worst, float(error / moved)), mine
    return worst


def _of_ours(method: Method, start: Any, gradients: Any, dtype: Any) -> Any:
    tx = om.on_matrices(method.make(), needs_params=method.needs_params)
    kernels = lambda tree: {n: np.asarray(x.T, dtype) for n, x in tree.items()}
    weights, found = kernels(start), {n: [] for n in start}
    state, update = jax.jit(tx.init)(weights), jax.jit(tx.update)
    for gradient in gradients:
        new, state = update(kernels(gradient), state, weights)
        for n, w in weights.items():
            step = np.asarray(new[n]) * dtype(1 if method.finished else -RATE)
            weights[n] = w + step
            found[n].append(np.asarray(weights[n], np.float64).T)
    return found


def _of_theirs(
    program: Program,
    module: Any,
    torch: Any,
    dtype: Any,
    first: Any,
    name: str,
    gradients: Any,
) -> Any:
    kind = torch.float64 if dtype is np.float64 else torch.float32
    weights = torch.nn.Parameter(torch.tensor(first, dtype=kind))
    optimizer = program.optimizer(module, weights)
    for gradient in gradients:
        weights.grad = torch.tensor(gradient[name], dtype=kind)
        optimizer.step()
        yield np.array(weights.detach().numpy(), np.float64)


def main(arguments: Any = None) -> dict[str, float]:
    """Prints the table, and returns the differences in float64."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("names", nargs="*", choices=[[], *PROGRAMS], default=[])
    parser.add_argument("--clone", action="store_true", help="print how to fill it")
    args = parser.parse_args(arguments)
    if args.clone:
        lines = {program.clone(args.folder) for program in PROGRAMS.values()}
        print("\n".join(sorted(lines)))
        return {}
    found = {}
    print(f"{'method':<20}{'float64':>10}{'float32':>10}  program")
    for name in args.names or PROGRAMS:
        program = PROGRAMS[name]
        try:
            module, torch = loaded(program, args.folder)
        except Absent as reason:
            print(f"{name:<20}{'-':>10}{'-':>10}  {reason}")
            continue
        with jax.enable_x64(True):
            pair = [
                difference(program, module, torch, d) for d in (np.float64, np.float32)
            ]
        found[name] = pair[0]
        wide, narrow = (f"{x:>10.1e}" for x in pair)
        print(f"{name:<20}{wide}{narrow}  {program.checkout}", flush=True)
    return found


if __name__ == "__main__":
    main()
