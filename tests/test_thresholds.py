"""All thresholds of sizes are in one place, from where tests lower them."""

import ast
import re
from pathlib import Path

import jax
import numpy as np
import pytest
from _lowered import NAMES, lowered
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import optax_matrix as om
from optax_matrix._thresholds import Thresholds
from optax_matrix.checkpoint.gathering import gathered
from optax_matrix.linalg.products import full_dot

# Numbers in comparisons that are no sizes of matrices, or of one kind of hardware.
NO_SIZES = {
    "linalg/_block_jacobi.py": {"_MAX_SWEEPS"},
    "linalg/_cholesky_passes.py": {"_MAX_TRIES"},
    "linalg/products.py": {"128"},  # Lanes of a TPU.
    "linalg/quintic_steps.py": {"32"},  # Bits of a dtype.
    "linalg/scale.py": {"32", "100"},
    "linalg/spectral_norms.py": {"100"},  # Of a dtype's precision.
    "sharding/_bundles.py": {"MOST_STACKS"},  # Of equal matrices.
    "sharding/_checks.py": {"128"},  # Exponents of a dtype.
    "tuning/_runs.py": {"LOOKS"},  # At losses, in a run.
}
ELSEWHERE = {"_arguments", "matrices", "pallas"}  # See `_thresholds`.


def numbers(path, least=16):
    """Ints, from `least` on, in comparisons, in divisions, in ``min`` or ``max``."""
    module = ast.parse(path.read_text())
    literal = re.compile(r"\d[\d_]*(\*\*\d[\d_]*)?")
    plain = ast.Constant, ast.BinOp, ast.Name
    value = lambda node: ast.unparse(node).replace(" ", "")
    is_large = lambda text: literal.fullmatch(text) and eval(text) >= least
    names = {
        target.id
        for node in module.body
        if isinstance(node, ast.Assign)
        and isinstance(node.value, plain)
        and is_large(value(node.value))
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(module):
        sides = []
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv):
            sides = [node.left, node.right]
        elif getattr(getattr(node, "func", None), "id", "") in ("min", "max"):
            sides = node.args
        inside = (x for side in sides for x in ast.walk(side) if isinstance(x, plain))
        inside = map(value, inside)
        yield from (text for text in inside if text in names or is_large(text))


@pytest.mark.broad
def test_no_other_threshold_is_in_the_package():
    root, found = Path(om.__file__).parent, {}
    for path in root.rglob("*.py"):
        if not ELSEWHERE.intersection(path.parts) and (seen := {*numbers(path)}):
            found[path.relative_to(root).as_posix()] = seen
    assert found == NO_SIZES


def test_lowering_ends():
    before = {name: getattr(Thresholds, name) for name in NAMES}
    with lowered():
        assert max(getattr(Thresholds, name) for name in NAMES) <= 2**12
    assert {name: getattr(Thresholds, name) for name in NAMES} == before


def test_what_is_traced_knows_the_setting():
    """A function of one shape is traced once for each."""
    run = jax.jit(lambda x: full_dot(x, x))

    def is_in_tiles():
        traced = run.trace(np.ones((4, 4), np.float32))
        return "while" in traced.lower(lowering_platforms=("tpu",)).as_text()

    assert not is_in_tiles()
    with lowered():
        assert is_in_tiles()
    assert not is_in_tiles()


def test_an_array_is_gathered_in_pieces(cpus):
    mesh = jax.make_mesh((8,), ("a",), (AxisType.Auto,), devices=cpus)
    x = np.arange(16.0 * 129).reshape(16, 129)
    seen = set()
    with lowered(seen=seen):
        got = gathered(jax.device_put(x, NamedSharding(mesh, P("a"))))
    np.testing.assert_array_equal(got, x)
    assert ("gathered_bytes", True) in seen
