"""What `training` and `unrolled` share: the command line, and the shape of a batch."""

import argparse

from examples.study.benchmarks.aot import parse_mesh


def parser(
    command: str, description: str, mesh: str, optimizer: str, **sizes: int
) -> argparse.ArgumentParser:
    """The command line of a benchmark that compiles a training step.

    `sizes` are the defaults of the sizes of the model and of the batch.
    """
    made = argparse.ArgumentParser(
        prog=f"python -m examples.study {command}",
        description=description,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = made.add_argument
    add("--topology", default="v5e:4x4")
    add("--mesh", type=parse_mesh, default=mesh, help="axes and their sizes")
    add("--optimizer", default=optimizer)
    for name, size in sizes.items():
        add(f"--{name}", type=int, default=size)
    return made


def windows_of(args: argparse.Namespace, mesh):
    """The shape of a batch of token windows, with its sharding."""
    import jax
    import jax.numpy as jnp

    from examples import train_sharded

    rows = train_sharded.rows_of(mesh)
    shape = (args.batch, args.context + 1)
    return jax.ShapeDtypeStruct(shape, jnp.int32, sharding=rows)
