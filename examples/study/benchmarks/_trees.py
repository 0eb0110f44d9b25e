"""Parameters of large models as shapes on meshes, without values or devices."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

Leaf = tuple[tuple[int, ...], str]
"""A shape and the mesh axis of each of its axes: f is ``fsdp``, t the second one of the
mesh, e its axis of experts, a dot none."""

MESHES = {  # By number of devices: fsdp x tp of dense models, fsdp x expert of others.
    64: ((16, 4), (4, 16)),
    256: ((64, 4), (4, 64)),
    1024: ((256, 4), (16, 64)),
    4096: ((512, 8), (64, 64)),
}


class Model(NamedTuple):
    """A model.

    Attributes:
        width: Its width.
        vocabulary: Number of its tokens.
        stages: For each stack of layers their number, and the leaves of one by path.
        has_experts: Whether the mesh has an axis of experts.
    """

    width: int
    vocabulary: int
    stages: Mapping[str, tuple[int, dict[str, Leaf]]]
    has_experts: bool = False

    def params(self, devices: int) -> dict[str, jax.ShapeDtypeStruct]:
        """The leaves of the unrolled model by path, on its mesh of so many devices."""
        second = "expert" if self.has_experts else "tp"
        mesh = AbstractMesh(MESHES[devices][self.has_experts], ("fsdp", second))
        axes = {"f": "fsdp", "t": second, "e": "expert", ".": None}

        def leaf(shape: tuple[int, ...], letters: str) -> jax.ShapeDtypeStruct:
            spec = PartitionSpec(*[axes[x] for x in letters])
            sharding = NamedSharding(mesh, spec)
            return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)

        return {path: leaf(*found) for path, found in self._leaves()}

    def _leaves(self) -> Iterator[tuple[str, Leaf]]:
        yield "embed/embedding", ((self.vocabulary, self.width), "tf")
        for stage, (count, layer) in self.stages.items():
            for i in range(count):
                for path, found in layer.items():
                    yield f"{stage}_{i}/{path}", found
        yield "head/kernel", ((self.width, self.vocabulary), "ft")


def _mlp(width: int, hidden: int, names: tuple[str, ...]) -> dict[str, Leaf]:
    into = {f"mlp/{name}/kernel": ((width, hidden), "ft") for name in names}
    return into | {"mlp/down/kernel": ((hidden, width), "tf")}


def _attention(width: int, queries: int, keys: int) -> dict[str, Leaf]:
    return {
        "attn/q/kernel": ((width, queries), "ft"),
        "attn/k/kernel": ((width, keys), "ft"),
        "attn/v/kernel": ((width, keys), "ft"),
        "attn/o/kernel": ((queries, width), "tf"),
    }


def _experts(width: int, count: int, hidden: int) -> dict[str, Leaf]:
    into = ((count, width, hidden), "ef.")
    return {
        "moe/router/kernel": ((width, count), "f."),
        "moe/experts/gate/kernel": into,
        "moe/experts/up/kernel": into,
        "moe/experts/down/kernel": ((count, hidden, width), "e.f"),
    }


_GATED = "gate", "up"
_LATENT = {  # DeepSeek's latent attention.
    "attn/q_a/kernel": ((7168, 1536), "ft"),
    "attn/q_b/kernel": ((1536, 24576), "ft"),
    "attn/kv_a/kernel": ((7168, 576), "f."),
    "attn/kv_b/kernel": ((512, 32768), "ft"),
    "attn/o/kernel": ((16384, 7168), "tf"),
}
_SHARED = {
    "moe/shared/gate/kernel": ((7168, 2048), "ft"),
    "moe/shared/up/kernel": ((7168, 2048), "ft"),
    "moe/shared/down/kernel": ((2048, 7168), "tf"),
}
MODELS = {
    "Llama 8B": Model(
        4096,
        128256,
        {"layers": (32, _attention(4096, 4096, 1024) | _mlp(4096, 14336, _GATED))},
    ),
    "Llama 70B": Model(
        8192,
        128256,
        {"layers": (80, _attention(8192, 8192, 1024) | _mlp(8192, 28672, _GATED))},
    ),
    "ViT-22B": Model(
        6144,
        1000,
        {"layers": (48, _attention(6144, 6144, 6144) | _mlp(6144, 24576, ("up",)))},
    ),
    "Qwen3 30B-A3B": Model(
        2048,
        151936,
        {"layers": (48, _attention(2048, 4096, 512) | _experts(2048, 128, 768))},
        has_experts=True,
    ),
    "DeepSeek-V3": Model(
        7168,
        129280,
        {
            "dense_layers": (3, _LATENT | _mlp(7168, 18432, _GATED)),
            "moe_layers": (58, _LATENT | _experts(7168, 256, 2048) | _SHARED),
        },
        has_experts=True,
    ),
}
