"""The device's time in a call, kernel by kernel."""

import collections
import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

import jax

_MOST = 40


def of_kernels(call: Callable[[], Any]) -> list[tuple[str, int, float]]:
    """Name, launches and milliseconds of all kernels in a call, and of the slowest."""
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(call())
        (path,) = pathlib.Path(folder).rglob("*.xplane.pb")
        planes = jax.profiler.ProfileData.from_file(str(path)).planes
        launches, times = collections.Counter(), collections.Counter()
        for plane in planes:
            if not plane.name.startswith("/device:GPU"):
                continue
            for line in plane.lines:
                if not line.name.startswith("Stream"):
                    continue
                for event in line.events:
                    launches[event.name] += 1
                    times[event.name] += event.duration_ns / 1e6
    slowest = [(name, launches[name], ms) for name, ms in times.most_common(_MOST)]
    return [("all", launches.total(), sum(times.values())), *slowest]
