"""Tests the installed package, and checks the contents of the wheel and the sdist."""

import importlib
import sys
import tarfile
import zipfile
from importlib import metadata, resources
from pathlib import Path

import jax.numpy as jnp

import optax_matrix as om

ADAPTERS = "optax_matrix.adapters"


def main(dist: Path) -> None:
    """Raises an error if the package or one of its archives is not complete."""
    assert "site-packages" in om.__file__, om.__file__
    assert om.__version__ == metadata.version("optax_matrix")
    assert (resources.files(om) / "py.typed").is_file()
    tx, params = om.muoneq(1e-3), {"kernel": jnp.ones((4, 8)), "bias": jnp.ones(8)}
    updates, _ = tx.update(params, tx.init(params), params)
    assert all(bool(jnp.isfinite(x).all()) for x in updates.values())

    assert not [name for name in sys.modules if name.startswith(ADAPTERS)]
    assert importlib.import_module(f"{ADAPTERS}.nanodo").base_optimizer

    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert tops == {"optax_matrix", f"optax_matrix-{om.__version__}.dist-info"}, tops
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    for name in ("LICENSE", "README.md", "pyproject.toml"):
        assert name in inside, name
    left = [name for name in inside if "__pycache__" in name or ".venv" in name]
    assert not left, left
    print(f"optax_matrix {om.__version__}: wheel and sdist are complete")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
