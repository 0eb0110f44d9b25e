"""Versions and machine of a run: recorded beside its results, and never compared."""

import datetime as dt
import importlib.metadata
import pathlib
import platform

PACKAGES = "jax", "jaxlib", "optax", "flax"


def where() -> dict[str, str]:
    """Versions, machine and date."""
    versions = [f"{name} {importlib.metadata.version(name)}" for name in PACKAGES]
    return {
        "versions": ", ".join(versions),
        "python": platform.python_version(),
        "machine": _processor(),
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
    }


def _processor() -> str:
    info = pathlib.Path("/proc/cpuinfo")
    names = [
        line.partition(":")[2].strip()
        for line in (info.read_text().splitlines() if info.exists() else ())
        if line.startswith("model name")
    ]
    return f"{names[0]}, {len(names)} cores" if names else platform.machine()
