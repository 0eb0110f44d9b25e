"""Eight CPU devices for every test, tiers and shared fixtures, as a plugin.

It must not import optax_matrix at the top.
"""

import ctypes
import doctest
import gc
import importlib.metadata
import inspect
import os
import pathlib
import sys

# The processes that tests start inherit these.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# LAPACK's threads spin: beside other load a decomposition takes 100 times longer.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Nearly all of the suite's time is compilation; the results are the same to rounding.
# `make test-optimized` sets this to 0 and compiles as users do.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
if cache := os.environ.get("JAX_COMPILATION_CACHE_DIR"):
    # Of `make test-fast`; JAX's files are not safe for several writers.
    worker = os.environ.get("PYTEST_XDIST_WORKER", "alone")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = os.path.join(cache, worker)
from _tiers import (
    DAILY,
    KINDS,
    LONG_BLOCKS,
    OPTIMIZED,
    QUICK,
    is_optimized,
    spread,
    tier_of_file,
)

jaxlib = [int(n) for n in importlib.metadata.version("jaxlib").split(".")[:2]]
if jaxlib < [0, 11] and not OPTIMIZED:
    # Half the time of the newer code generator; later jaxlibs do not know the flag.
    os.environ.setdefault(
        "XLA_FLAGS",
        "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1",
    )

import _walks
import jax
import pytest
from _programs import MARK, Programs

jax.config.update("jax_num_cpu_devices", 8)


# Packages whose doctests are quick, and what a change breaks first.
FIRST = {"matrices", "stacks", "tree", "checkpoint"}
# MiB that a process may hold before it drops what it compiled, and MiB more before it
# does so again: what it keeps may be as much.
FULL, MORE = 1500, 300


def memory():
    """MiB that this process holds now."""
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) >> 10


class BoundedMemory:
    """A plugin, because a hook of this file would not run after the doctests."""

    def __init__(self):
        self.full = FULL

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self):
        """Keeps the process small: JAX caches every program that it compiles."""
        yield
        if sys.platform == "linux" and memory() > self.full:
            jax.clear_caches()
            gc.collect()
            ctypes.CDLL(None).malloc_trim(0)  # glibc keeps what is freed otherwise.
            self.full = max(FULL, memory() + MORE)


def of_module(finder, module, found):
    """Whether doctest looks at something: a decorated function is its module's."""
    if inspect.isfunction(found):
        return found.__module__ == module.__name__
    return from_module(finder, module, found)


from_module = doctest.DocTestFinder._from_module
doctest.DocTestFinder._from_module = of_module


@pytest.fixture(scope="session")
def cpus():
    devices = jax.devices("cpu")
    assert len(devices) == 8, "the sharded tests need eight CPU devices"
    return devices


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


@pytest.fixture
def unprobed():
    """`on_matrices` without its probe, which compiles the chain of each test.

    For tests of states alone. With `monkeypatch` they would forget all traces.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("optax_matrix.tree._wrapper.refuse_coupling", lambda *_: None)
        yield


@pytest.fixture(autouse=True)
def traces(request):
    """A test that patches the library gets no trace from before, and leaves none."""
    patches = "monkeypatch" in request.fixturenames
    if patches:
        forget_traces()
    yield
    if patches:
        forget_traces()


def forget_traces():
    """Forgets what `linalg` has traced; JAX would not see that it was patched."""
    inside = [m for n, m in sys.modules.items() if n.startswith("optax_matrix.linalg")]
    found = [x for module in inside for x in vars(module).values()]
    if precision := sys.modules.get("optax_matrix.linalg.precision"):
        found += [
            x for name in ("default", "fast") for x in precision.products_of(name)
        ]
    for x in found:
        if hasattr(x, "clear_cache"):
            x.clear_cache()


def pytest_configure(config):
    config.pluginmanager.register(BoundedMemory())
    options = {x: config.getoption(x, False) for x in ("programs", "write_programs")}
    plugin = Programs(alone=options["programs"], write=options["write_programs"])
    config.pluginmanager.register(plugin)
    for mark in MARK, _walks.MARK:
        config.addinivalue_line("markers", mark)
    what = "run by `make test-optimized` once more, as XLA compiles for users"
    config.addinivalue_line("markers", f"optimized: {what}")


def pytest_ignore_collect(collection_path, config):
    """Files that `-m` leaves out as a whole are not imported: frameworks take long."""
    if f"not {tier_of_file(collection_path)}" in config.option.markexpr:
        return True
    return None


def pytest_collection_modifyitems(config, items):
    from _registry import RECIPES  # Not at the top: it imports optax_matrix.

    assert RECIPES.keys() >= KINDS
    spread(items, whole=not any("::" in name for name in config.args))
    for item in items:
        if isinstance(item, pytest.DoctestItem):
            if not FIRST.intersection(item.path.parts):
                item.add_marker(pytest.mark.broad)
            continue
        if tier := tier_of_file(item.path):
            item.add_marker(tier)
        if is_optimized(item.path):
            item.add_marker(pytest.mark.optimized)
        name = getattr(item, "callspec", None) and item.callspec.params.get("name")
        if item.path.name != "test_contract.py" or not isinstance(name, str):
            continue
        broad = item.get_closest_marker("broad") or "-" in name  # A variant.
        rare = RECIPES.keys() - (DAILY if broad else KINDS)
        if name in rare or name.startswith(LONG_BLOCKS):
            item.add_marker(pytest.mark.slow)
        elif name in RECIPES.keys() - QUICK:
            item.add_marker(pytest.mark.broad)
