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
    """Name, family, model and cores: one name may stand for several processors."""
    info = pathlib.Path("/proc/cpuinfo")
    found: dict[str, list[str]] = {}
    for line in info.read_text().splitlines() if info.exists() else ():
        key, _, value = line.partition(":")
        found.setdefault(key.strip(), []).append(value.strip())
    names = found.get("model name")
    if not names:
        return platform.machine()
    kind = ", ".join(
        f"{x} {found[x][0]}" for x in ("cpu family", "model") if x in found
    )
    return f"{names[0]} ({kind}), {len(names)} cores"
