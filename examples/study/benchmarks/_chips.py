"""Chips for which steps are compiled without having them, and what they can do.

The facts of a GPU are those of the target configurations in openxla/xla.
"""

import dataclasses
import string
from collections.abc import Mapping

from jax.experimental import topologies

TERA, GIGA = 1e12, 1e9


@dataclasses.dataclass(frozen=True)
class Chip:
    """Rates of products in FLOP/s by precision, and of memory in bytes/s.

    Attributes:
        rates: By name of the precision; see `_count`.
        bandwidth: Of the chip's memory.
        default: Name of the precision of float32 products of which none is asked for;
            of those at `Precision.HIGH`; at `Precision.HIGHEST`.
        is_gpu: Whether the host decides which branch of a conditional runs.
        clock: Of a TPU's cores, in cycles/s.
    """

    rates: Mapping[str, float]
    bandwidth: float
    default: tuple[str, str, str]
    is_gpu: bool = True
    clock: float = 0.0


def _hopper(bandwidth: float) -> Chip:
    rates = {"bf16": 989, "tf32": 494, "tf32x3": 165, "f32": 67}
    rates |= {"bf16x3": 330, "bf16x6": 165}
    return Chip(_tera(rates), bandwidth * GIGA, ("tf32", "tf32", "f32"))


def _tpu(bf16: float, bandwidth: float, clock: float) -> Chip:
    rates = {"bf16": bf16, "bf16x3": bf16 / 3, "bf16x6": bf16 / 6}
    default = ("bf16", "bf16x3", "bf16x6")
    return Chip(_tera(rates), bandwidth * GIGA, default, False, clock * GIGA)


def _tera(rates: Mapping[str, float]) -> dict[str, float]:
    return {name: rate * TERA for name, rate in rates.items()}


CHIPS = {
    "h100": _hopper(3352),
    "h200": _hopper(4800),
    # Neither TF32 nor bfloat16: products of bfloat16 are those of float32.
    "t4": Chip(_tera({"bf16": 8.1, "f32": 8.1}), 320 * GIGA, ("f32", "f32", "f32")),
    "v5e": _tpu(197, 819, 1.5),
    "v5p": _tpu(459, 2765, 1.75),
    "v6e": _tpu(918, 1640, 1.75),
}
_TOPOLOGIES = {
    "v5e": {1: "v5e:2x2", 8: "v5e:2x4"},
    "v5p": {1: "v5p:2x2x1", 8: "v5p:2x2x2"},
    "v6e": {1: "v6e:2x2", 8: "v6e:2x4"},
}


def devices(chip: str, count: int) -> list:
    """Devices to compile for, without having them."""
    if chip not in _TOPOLOGIES:
        config, shape = target_config(chip), f"1x1x{count}"
        found = topologies.get_topology_desc(
            platform="cuda", target_config=config, topology=shape
        )
    else:
        name = _TOPOLOGIES[chip][count]
        found = topologies.get_topology_desc(platform="tpu", topology_name=name)
    return list(found.devices[:count])


def target_config(chip: str) -> str:
    """The text by which XLA knows a GPU."""
    if chip == "t4":
        return _T4
    units = {"scalar": _rates(_SCALAR), "matrix": _rates(_MATRIX)}
    return _HOPPER.substitute(_HOPPERS[chip], versions=_VERSIONS, **units)


def _rates(rows: str) -> str:
    """The rates of units; a row has element types, clock, units and operations."""
    entry = "rate_infos {{ key: {} value {{ clock_rate_ghz: {} units_per_core: {} "
    entry += "ops_per_clock: {} }} }}"
    found = []
    for row in rows.split(";"):
        keys, *numbers = row.split()
        found += [entry.format(key, *numbers) for key in keys.split(",")]
    return " ".join(found)


_SCALAR = "4,8,12 1.98 64 1; 10,16 1.98 128 2; 11 1.98 128 1"
_MATRIX = "2,6,19,20,23,24,25,28,29,33,35,36 1.8295201 4 1024; 10,16 1.8295201 4 512; "
_MATRIX += "11 1.8295201 4 256; 12 1.98 4 32"
_HOPPERS = {
    "h200": {
        "name": "NVIDIA H200 141GB HBM3e",
        "bandwidth": 4_800_000_000_000,
        "memory": 151_397_597_184,
        "clock": 3_750_000,
    },
    "h100": {
        "name": "NVIDIA H100 80GB HBM3",
        "bandwidth": 3_352_320_000_000,
        "memory": 84_942_979_072,
        "clock": 2_619_000,
    },
}
_VERSIONS = """\
driver_version: "13.0.0" runtime_version: "12.8.0"
  compile_time_toolkit_version: "12.8.0" dnn_version: "9.10.0" cub_version: "3.1.2"
"""
_HOPPER = string.Template("""\
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32
  shared_memory_per_block: 49152 shared_memory_per_core: 233472
  shared_memory_per_block_optin: 232448
  threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: $bandwidth l2_cache_size: 52428800 clock_rate_ghz: 1.98
  device_memory_size: $memory
  cuda_compute_capability { major: 9 feature_extension: ACCELERATED_FEATURES }
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  scalar_unit_description { $scalar }
  matrix_unit_description { $matrix }
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
  device_vendor: "NVIDIA Corporation" platform_version: "Compute Capability 9.0a"
  model_str: "sm_9.0a with ${memory}B RAM, 132 cores, 1980000KHz clock, ${clock}KHz \
mem clock, 52428800B L2$$"
  device_address_bits: 64 pcie_bandwidth: 34359738368 ecc_enabled: true
  name: "$name" $versions device_interconnect_info { active_links: 18 }
  collective_memory_granularity: 2097152
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 patch: 0 }
device_description_str: "$name"
""")
_T4 = f"""\
gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32
  shared_memory_per_block: 49152 shared_memory_per_core: 65536
  shared_memory_per_block_optin: 65536
  threads_per_core_limit: 1024 core_count: 40 fpus_per_core: 64
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 320064000000 l2_cache_size: 4194304 clock_rate_ghz: 1.59
  device_memory_size: 15634661376
  cuda_compute_capability {{ major: 7 minor: 5 }}
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
  device_vendor: "NVIDIA Corporation" platform_version: "Compute Capability 7.5"
  model_str: "sm_7.5 with 15634661376B RAM, 40 cores, 1590000KHz clock, 5001000KHz \
mem clock, 4194304B L2$"
  device_address_bits: 64 pcie_bandwidth: 17179869184 ecc_enabled: true
  name: "Tesla T4" {_VERSIONS}
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
device_description_str: "Tesla T4"
"""
