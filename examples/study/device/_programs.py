"""Compiled programs, which a machine without the accelerator can make in advance.

Compiling for a GPU takes minutes for some methods, most of them without the GPU. A
program that was compiled for a chip of the same kind is kept as a file and loaded.
"""

import functools
import hashlib
import json
import os
import pathlib
import pickle
import traceback
import zlib
from typing import Any

import jax
import numpy as np
from jax.experimental import serialize_executable
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import optax_matrix as om
from examples.study.benchmarks import _chips

HERE = "here"  # In place of a chip: the device of this machine.
CHIPS = tuple(name for name, chip in _chips.CHIPS.items() if chip.is_gpu)
# What a program depends on, beside the package.
_KEYS = ("module", "name", "model", "tiny")


def compiled(job: dict[str, Any], label: str, function: Any, *args: Any) -> Any:
    """A jitted function, compiled for the shapes of its arguments, or loaded.

    Args:
        job: With ``programs``, the folder of the files; with ``ahead``, a chip to
            compile for, or `HERE`: the program is kept, and does not run here.
        label: Of this program among those of the job.
        function: The result of `jax.jit`.
        *args: Shapes.
    """
    path = _path(job, label)
    if path is not None and path.exists() and not job.get("ahead"):
        function.lower(*args)  # Registers the libraries that the program calls.
        kept = pickle.loads(zlib.decompress(path.read_bytes()))
        try:
            return serialize_executable.deserialize_and_load(*kept)
        except jax.errors.JaxRuntimeError:  # XLA does not read all that it wrote.
            traceback.print_exc()
    if chip := job.get("ahead"):
        there = {"sharding": sharding(chip)}
        shape = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, **there)
        args = jax.tree.map(shape, args)
    program = function.lower(*args).compile()
    if job.get("ahead"):
        packed = zlib.compress(pickle.dumps(serialize_executable.serialize(program)))
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}")
        part.write_bytes(packed)
        part.rename(path)  # Another job may have the same program.
    return program


def _path(job: dict[str, Any], label: str) -> pathlib.Path | None:
    if not job.get("programs"):
        return None
    key = json.dumps([_sources(), label, *(job.get(k) for k in _KEYS)])
    name = hashlib.sha256(key.encode()).hexdigest()[:16]
    return pathlib.Path(job["programs"]) / f"{name}.program"


@functools.cache
def _sources() -> str:
    """A digest of the package, so that no program of other code is loaded."""
    files = sorted(pathlib.Path(om.__file__).parent.rglob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


@functools.cache
def sharding(chip: str) -> NamedSharding:
    """All of an array on the chip."""
    devices = jax.devices()[:1] if chip == HERE else _chips.devices(chip, 1)
    mesh = Mesh(np.array(devices), ("one",), axis_types=(AxisType.Auto,))
    return NamedSharding(mesh, PartitionSpec())
