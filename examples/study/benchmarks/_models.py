"""Kernels of the models whose optimizer steps are compiled, and how meshes cut them."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

SIZES = {
    "268M": {"layers": 16, "embed": 1024, "mlp": 4096},
    "113M": {"layers": 12, "embed": 768, "mlp": 3072},
    "8B": {"layers": 32, "embed": 4096, "mlp": 14336, "kv": 1024},
    "70B": {"layers": 80, "embed": 8192, "mlp": 28672, "kv": 1024},
}
"""By name: the first two are those of the tables, the others are Llama 3's."""


@dataclasses.dataclass(frozen=True)
class Model:
    """The kernels that are optimized: seven float32 `(in, out)` per layer.

    Attributes:
        layers: Number of layers.
        embed: Width of the residual stream, and of all queries.
        mlp: Width of an MLP.
        kv: Width of all keys and of all values, less than `embed` where heads share
            them; None for `embed`.
        experts: Number of MLPs of a layer, on an axis in front; None for one MLP
            without that axis.
        scanned: Whether the layers are one leaf, on an axis in front of all others.
        cut: Mesh axis that splits the axis of scanned layers; None for none.
    """

    layers: int
    embed: int
    mlp: int
    kv: int | None = None
    experts: int | None = None
    scanned: bool = False
    cut: str | None = None

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of one layer's kernels by block and name."""
        kv = self.kv or self.embed
        shapes = {f"attn/{name}": (self.embed, self.embed) for name in "qo"}
        shapes |= {f"attn/{name}": (self.embed, kv) for name in "kv"}
        experts = (self.experts,) if self.experts else ()
        shapes |= {f"mlp/{x}": (*experts, self.embed, self.mlp) for x in ("gate", "up")}
        return shapes | {"mlp/down": (*experts, self.mlp, self.embed)}

    @property
    def matrices(self) -> int:
        """Number of matrices."""
        return self.layers * sum(math.prod(s[:-2]) for s in self.shapes.values())

    @property
    def elements(self) -> int:
        """Number of parameters."""
        return self.layers * sum(math.prod(s) for s in self.shapes.values())

    def params(self, mesh: Mesh) -> dict:
        """Shapes of the parameters, sharded over the axes that the mesh has.

        The side on the residual stream is sharded over `fsdp`, the other over `tp`, the
        experts over `expert`. The former is the input, except for `o` and `down`, where
        it is the output. An axis that cuts the layers cuts nothing else.
        """
        layer: dict[str, dict] = {"attn": {}, "mlp": {}}
        for path, shape in self.shapes.items():
            block, name = path.split("/")
            sides = ("tp", "fsdp") if name in ("o", "down") else ("fsdp", "tp")
            axes = (*("expert",) * (len(shape) - 2), *sides)
            axes = [x if x in mesh.axis_names and x != self.cut else None for x in axes]
            if self.scanned:
                shape, axes = (self.layers, *shape), [self.cut, *axes]
            leaf = jax.ShapeDtypeStruct(
                shape, jnp.float32, sharding=NamedSharding(mesh, P(*axes))
            )
            layer[block][name] = {"kernel": leaf}
        count = 1 if self.scanned else self.layers
        layers: dict[str, Any] = {str(i): layer for i in range(count)}
        return {"layers": layer if self.scanned else layers}
