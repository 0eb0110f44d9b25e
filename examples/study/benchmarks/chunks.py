"""Chunks of a group of matrices, exchanged one by one or in a loop, by the compiler.

    python -m examples.study chunks --topology v5e:4x4

A group that is too large for one stack is cut into chunks. Here each has a matrix for
every device of the topology, and is a leaf of its own or a layer of one scanned leaf.
Rows of the table:

* owners: the step of `om.muon` with ``max_batch=1``: an all-to-all there and back for
  each chunk, and none waits for another;
* loop: one loop over the chunks, with one all-to-all there and back in its body;
* pipelined: that loop with the exchange of the next chunk and of the last one beside
  the products of this one;
* scanned: one exchange of the whole scanned leaf;
* scanned loop: a loop over its layers.

All but the first are written out here: a gradient goes to its owner, which has a
momentum and computes the polar factor, and the update returns.

Each row is compiled with the compiler's defaults and with asynchronous all-to-alls, and
has the temporary memory and the program's size on a device, the all-to-alls in the text
and how many of them are in flight beside products, and the compiler's estimate of all
cycles, which leaves out waits. Needs `pip install '.[aot]'`.
"""

import argparse
from collections.abc import Callable, Sequence

from examples.study.benchmarks.aot import with_compiler

AXIS = "fsdp"
WRITTEN = ("loop", "pipelined", "scanned", "scanned loop")
ROWS = ("owners", *WRITTEN)
COLUMNS = ("temporary MiB", "program MiB", "all-to-alls", "beside products")
COLUMNS += ("cycles / 10^6", "compile s")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.study chunks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--topology", default="v5e:4x4")
    parser.add_argument("--devices", type=int, default=16, help="of the topology")
    for name, size in {"chunks": 8, "outputs": 1024, "inputs": 4096}.items():
        parser.add_argument(f"--{name}", type=int, default=size)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=ROWS)
    return parser.parse_args(argv)


def step_of(row: str, places: int) -> Callable:
    """The step on one device: parameters and momenta from these and gradients.

    Parameters and gradients are lists, or arrays ``(chunks, places, rows, cols)`` if
    they are scanned. Momenta are ``(chunks, rows, cols)``.
    """
    import jax
    import jax.numpy as jnp

    from examples.study.benchmarks._compile import BF16

    swap = lambda x: jax.lax.all_to_all(x.astype(jnp.bfloat16), AXIS, 0, 0, tiled=True)
    to_owner = lambda g: swap(g).reshape(-1, g.shape[-1]).astype(jnp.float32)
    back = lambda u: swap(u.reshape(places, -1, u.shape[-1])).astype(jnp.float32)

    def whole(momentum, g):
        momentum = 0.95 * momentum + g
        return momentum, BF16(0.95 * momentum + g)

    def scanned(grads, momenta):
        momenta, updates = whole(momenta, jax.vmap(to_owner)(grads))
        return jax.vmap(back)(updates), momenta

    def looped(grads, momenta):
        def body(i, carry):
            updates, momenta = carry
            momentum, update = whole(momenta[i], to_owner(grads[i]))
            return updates.at[i].set(back(update)), momenta.at[i].set(momentum)

        carry = jnp.zeros_like(grads), momenta
        return jax.lax.fori_loop(0, len(grads), body, carry)

    def pipelined(grads, momenta):
        last = len(grads) - 1

        def body(i, carry):
            updates, momenta, here, done = carry
            after = to_owner(grads[jnp.minimum(i + 1, last)])
            updates = updates.at[jnp.maximum(i - 1, 0)].set(back(done))
            momentum, update = whole(momenta[i], here)
            return updates, momenta.at[i].set(momentum), after, update

        first = to_owner(grads[0])
        carry = jnp.zeros_like(grads), momenta, first, jnp.zeros_like(first)
        updates, momenta, _, update = jax.lax.fori_loop(0, last + 1, body, carry)
        return updates.at[last].set(back(update)), momenta

    steps = dict(zip(WRITTEN, (looped, pipelined, scanned, looped), strict=True))

    def run(leaves, grads, momenta):
        grads = jnp.stack(grads) if row in ("loop", "pipelined") else grads
        updates, momenta = steps[row](grads, momenta)
        if isinstance(leaves, list):
            return [x - u for x, u in zip(leaves, updates, strict=True)], momenta
        return leaves - updates, momenta

    return run


def lowered(row: str, args: argparse.Namespace, mesh):
    """The step of a row, not compiled; parameters and momenta are donated."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec as P

    places, sides = mesh.size, (args.outputs, args.inputs)

    def shaped(shape, *spec):
        sharding = NamedSharding(mesh, P(*spec))
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)

    if row.startswith("scanned"):
        leaves = shaped((args.chunks, places, *sides), None, None, AXIS)
    else:
        leaves = [shaped((places, *sides), None, AXIS) for _ in range(args.chunks)]
    if row == "owners":
        return _of_owners(leaves)
    momenta = shaped((args.chunks, places * sides[0], sides[1]), None, AXIS)
    given = leaves, leaves, momenta
    specs = jax.tree.map(lambda x: x.sharding.spec, given)
    made = jax.tree.map(lambda x: x.sharding, (leaves, momenta))
    step = jax.shard_map(
        step_of(row, places),
        mesh=mesh,
        in_specs=specs,
        out_specs=(specs[0], specs[2]),
        check_vma=False,
    )
    return jax.jit(step, donate_argnums=(0, 2), out_shardings=made).lower(*given)


def _of_owners(leaves):
    """The step of the library."""
    import jax.numpy as jnp

    import optax_matrix as om
    from examples.study.benchmarks import _compile

    params = {f"{i}/kernel": leaf for i, leaf in enumerate(leaves)}
    shardings = {path: leaf.sharding for path, leaf in params.items()}
    wire = {"param_specs": shardings, "wire_dtype": jnp.bfloat16}
    tx = om.muon(
        1e-3,
        polar=_compile.BF16,
        placement=om.owners(AXIS, **wire),
        max_batch=1,
        dimension_numbers=om.MatrixDimensionNumbers(2, 1),
    )
    return _compile.traced(tx, params).lower()


def measure(args: argparse.Namespace) -> None:
    """Prints the table."""
    import time

    from examples.study.benchmarks import _compile, _cycles, _overlap

    mesh = _compile.make_mesh(args.topology, {AXIS: args.devices}, "auto")
    sides = f"{args.outputs} x {args.inputs}"
    print(f"{args.chunks} chunks of {mesh.size} matrices of {sides}, {args.topology}")
    print(f"{'':26}" + "".join(f"{c:>16}" for c in COLUMNS))
    for row in args.rows:
        for options in (None, _compile.ASYNCHRONOUS):
            start = time.process_time()
            compiled = lowered(row, args, mesh).compile(compiler_options=options)
            memory, text = compiled.memory_analysis(), compiled.as_text()
            beside, total = _overlap.overlapped(text, "all-to-all")
            numbers = (
                f"{memory.temp_size_in_bytes / 2**20:.0f}",
                f"{memory.generated_code_size_in_bytes / 2**20:.1f}",
                f"{total}",
                f"{beside}",
                f"{_cycles.cycles(text) / 1e6:.1f}",
                f"{time.process_time() - start:.0f}",
            )
            label = row + ", async" * bool(options)
            print(f"{label:26}" + "".join(f"{n:>16}" for n in numbers), flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns the exit code."""
    return with_compiler(measure, parse(argv))
