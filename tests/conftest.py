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


# The contract of recipes. What is quick of it `make test-fast` tries on QUICK and `make
# test` on every recipe; what is broad of it `make test` tries on QUICK and DAILY, one
# of each kind. `make test-slow` does the rest.
QUICK = {"muon", "racs", "swan", "aro-sinkhorn"}
DAILY = {"normuon", "mars_adamw", "eigen_adam", "shampoo", "dion"}
# Blocks that compile for long; recipes or tests of their own have them every day.
LONG_BLOCKS = ("rotate-", "precondition", "orthogonalize_low", "orthogonalize-polar_q")


def pytest_collection_modifyitems(items):
    from _registry import RECIPES  # Not at the top: it imports optax_matrix.

    for item in items:
        name = getattr(item, "callspec", None) and item.callspec.params.get("name")
        if item.path.name != "test_contract.py" or not isinstance(name, str):
            continue
        broad = item.get_closest_marker("broad")
        if name in QUICK:
            continue
        if (broad and name in RECIPES.keys() - DAILY) or name.startswith(LONG_BLOCKS):
            item.add_marker(pytest.mark.slow)
        elif name in RECIPES:
            item.add_marker(pytest.mark.broad)
