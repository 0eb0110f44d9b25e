"""Eight CPU devices for every test; this file must not import optax_matrix."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# LAPACK's threads spin: beside other load a decomposition takes 100 times longer.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jax
import pytest

jax.config.update("jax_num_cpu_devices", 8)
# Nearly all of the suite's time is compilation; the results are the same to rounding.
jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture(scope="session")
def cpus():
    devices = jax.devices("cpu")
    assert len(devices) == 8, "the sharded tests need eight CPU devices"
    return devices


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


# Recipes that `make test-fast` tries the contract on; the others are `broad`, and those
# that differ from another one by an argument are `slow`.
QUICK = {"muon", "muoneq-row", "normuon", "racs", "swan", "aro-sinkhorn", "eigen_adam"}
VARIANTS = {
    "muon-moonlight",
    "muoneq-col",
    "racs-corrected",
    "aro-adam",
    "aro-sign",
    "aro-row_norm",
    "eigen_sinkhorn",
    "eigen_sign",
    "eigen_rownorm",
    "shampoo-averages",
}


def pytest_collection_modifyitems(items):
    for item in items:
        name = getattr(item, "callspec", None) and item.callspec.params.get("name")
        if item.path.name == "test_contract.py" and isinstance(name, str):
            if name in VARIANTS:
                item.add_marker(pytest.mark.slow)
            elif name not in QUICK:
                item.add_marker(pytest.mark.broad)
