"""Eight CPU devices for every test; this file must not import optax_matrix."""

import importlib.metadata
import os

# The processes that tests start inherit these.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# LAPACK's threads spin: beside other load a decomposition takes 100 times longer.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Nearly all of the suite's time is compilation; the results are the same to rounding.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
if [int(n) for n in importlib.metadata.version("jaxlib").split(".")[:2]] < [0, 11]:
    # Half the time of the newer code generator; later jaxlibs do not know the flag.
    os.environ.setdefault(
        "XLA_FLAGS",
        "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1",
    )

import jax
import pytest
from _tiers import KINDS, LONG_BLOCKS, QUICK

jax.config.update("jax_num_cpu_devices", 8)


@pytest.fixture(scope="session")
def cpus():
    devices = jax.devices("cpu")
    assert len(devices) == 8, "the sharded tests need eight CPU devices"
    return devices


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


def pytest_collection_modifyitems(items):
    from _registry import RECIPES  # Not at the top: it imports optax_matrix.

    assert RECIPES.keys() >= KINDS
    for item in items:
        if isinstance(item, pytest.DoctestItem):
            if item.path.parent.name in ("recipes", "weights"):  # Whole optimizers.
                item.add_marker(pytest.mark.broad)
            continue
        name = getattr(item, "callspec", None) and item.callspec.params.get("name")
        if item.path.name != "test_contract.py" or not isinstance(name, str):
            continue
        broad = item.get_closest_marker("broad")
        if (broad and name in RECIPES.keys() - KINDS) or name.startswith(LONG_BLOCKS):
            item.add_marker(pytest.mark.slow)
        elif name in RECIPES.keys() - QUICK:
            item.add_marker(pytest.mark.broad)
