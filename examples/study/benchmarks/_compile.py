"""One optimizer step of a LLaMA's matrices, compiled for a mesh of absent devices."""

import dataclasses
import functools
import inspect
import math
import time
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.experimental import mesh_utils, topologies
from jax.experimental.layout import Format, Layout
from jax.sharding import AxisType, Mesh, NamedSharding

import optax_matrix as om
from examples.study.benchmarks import _flops, _hlo, _overlap
from examples.study.benchmarks._models import Model

ASYNCHRONOUS = {"xla_tpu_enable_async_all_to_all": "true"}
AXIS_TYPES = {"auto": AxisType.Auto, "explicit": AxisType.Explicit}
BF16 = functools.partial(om.linalg.newton_schulz, compute_dtype=jnp.bfloat16)


@dataclasses.dataclass(frozen=True)
class Report:
    """The compiler's numbers for one step, on each device.

    `work` is the FLOPs of matrix products. Where the partitioner decides, they are the
    compiler's, which counts the body of a loop once. Where there are reductions but no
    products (RACS), work is the number of elements that reductions read. FLOPs would
    mostly count element-wise operations and casts, which the compiler repeats in every
    fusion that needs them: the same arithmetic has 66 FLOPs per element on one mesh and
    122 on another. `along` counts the collectives that send along each mesh axis.
    `seconds` are processor seconds of tracing and compiling.
    """

    work: float
    is_partial: bool
    traffic: Mapping[str, _hlo.Traffic]
    along: Mapping[str, int]
    overlapped: tuple[int, int]
    temporary_bytes: int
    argument_bytes: int
    code_bytes: int
    seconds: float

    @property
    def traffic_bytes(self) -> int:
        """Bytes that all collectives return."""
        return sum(t.bytes for t in self.traffic.values())


def make_mesh(topology: str, axes: Mapping[str, int], axis_types: str) -> Mesh:
    """A mesh of the devices of a TPU topology such as `v5e:4x4`; needs no TPU.

    The size of an axis `slice` is the number of slices, each of this topology.
    """
    slices = axes.get("slice", 1)
    devices = _devices(topology, slices)
    if math.prod(axes.values()) != len(devices):
        raise ValueError(
            f"`mesh` must have the {len(devices)} devices of {topology}, got "
            f"{dict(axes)!r}."
        )
    inner = [1 if name == "slice" else size for name, size in axes.items()]
    outer = [size if name == "slice" else 1 for name, size in axes.items()]
    if slices > 1:
        make = functools.partial(mesh_utils.create_hybrid_device_mesh, inner, outer)
    else:
        make = functools.partial(mesh_utils.create_device_mesh, inner)
    grid = make(devices, allow_split_physical_axes=True)
    return Mesh(grid, tuple(axes), axis_types=(AXIS_TYPES[axis_types],) * len(axes))


def recipe_names() -> list[str]:
    """The recipes whose matrices `owners` places."""
    names = om.recipes.__all__
    return [name for name in names if f"scale_by_{name}" in names]


def all_recipe_names() -> list[str]:
    """The recipes that `make_optimizer` knows."""
    groups = om.recipes.METHODS.values()
    return sorted(recipe.__name__ for group in groups for recipe in group)


def make_optimizer(
    name: str, placement: Any = None, options: Mapping[str, Any] | None = None
) -> optax.GradientTransformation:
    """An optimizer by name: `muon` is a recipe, `optax.contrib.muon` is optax's.

    Recipes get those of the options that they have. Without any, recipes with a polar
    factor form its products in bfloat16.
    """
    options = {"polar": BF16} if options is None else options
    if name.startswith("optax."):
        parts = name.split(".")[1:]
        factory = functools.reduce(lambda o, part: getattr(o, part, None), parts, optax)
    else:
        factory = getattr(om, name) if name in all_recipe_names() else None
    if factory is None:
        raise ValueError(
            f"`name` must be a recipe or an optax optimizer, got {name!r}; write it as "
            "in muoneq or optax.contrib.muon."
        )
    keywords: dict[str, Any] = {}
    if not name.startswith("optax."):
        keywords["placement"] = placement
    known = inspect.signature(factory).parameters
    keywords |= {name: value for name, value in options.items() if name in known}
    return factory(1e-3, **keywords)


def compile_step(
    tx: optax.GradientTransformation, params: Any, options: Any = None
) -> Report:
    """Compiles `update` and `apply_updates`, parameters and state donated."""
    start = time.process_time()
    program = traced(tx, params)
    compiled = program.lower().compile(compiler_options=options)
    seconds = time.process_time() - start
    text, memory = compiled.as_text(), compiled.memory_analysis()
    mesh = jax.tree.leaves(params)[0].sharding.mesh
    work, is_partial = _work(program.jaxpr, compiled, text, mesh)
    return Report(
        work=work,
        is_partial=is_partial,
        traffic=_hlo.collectives(text),
        along=_along(text, mesh),
        overlapped=_overlap.overlapped(text),
        temporary_bytes=memory.temp_size_in_bytes,
        argument_bytes=memory.argument_size_in_bytes,
        code_bytes=memory.generated_code_size_in_bytes,
        seconds=seconds,
    )


def traced(
    tx: optax.GradientTransformation, params: Any, auto_layouts: bool = False
) -> Any:
    """`update` and `apply_updates`, traced; parameters and state are donated.

    With `auto_layouts` the compiler chooses the order of each state's axes in memory.
    """
    state = shapes_of_state(tx, params)
    weights, states = (jax.tree.map(lambda x: x.sharding, t) for t in (params, state))
    if auto_layouts:
        states = jax.tree.map(lambda sharding: Format(Layout.AUTO, sharding), states)

    def step(params, state, grads):
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    jitted = jax.jit(
        step,
        in_shardings=(weights, states, weights),
        out_shardings=(weights, states),
        donate_argnums=(0, 1),
    )
    return jitted.trace(params, state, params)


def shapes_of_state(tx: optax.GradientTransformation, params: Any) -> Any:
    """The state as shapes with shardings."""
    mesh = jax.tree.leaves(params)[0].sharding.mesh
    specs = om.state_specs(tx, params, jax.tree.map(lambda x: x.sharding.spec, params))
    shape = lambda x, spec: jax.ShapeDtypeStruct(
        x.shape, x.dtype, sharding=NamedSharding(mesh, spec)
    )
    return jax.tree.map(shape, jax.eval_shape(tx.init, params), specs)


@functools.cache
def ideal_work(topology: str, name: str, model: Model) -> float:
    """Work of a step on one device of the topology, without placement.

    One layer is counted `model.layers` times, so that any model fits. This is exact, as
    the matrices do not influence one another.
    """
    device = _devices(topology)[0]
    mesh = jax.make_mesh((1,), ("fsdp",), (AxisType.Auto,), devices=[device])
    layer = dataclasses.replace(model, layers=1)
    tx, params = make_optimizer(name), layer.params(mesh)
    work, _ = _flops.product_flops(traced(tx, params).jaxpr)
    return model.layers * (work or compile_step(tx, params).work)


def _work(jaxpr: Any, compiled: Any, text: str, mesh: Mesh) -> tuple[float, bool]:
    """The work of a device, and whether loops of unknown length count once."""
    if not _hlo.has_products(text):
        return _hlo.reduced_elements(text), False
    if mesh.size == 1 or _flops.contains(jaxpr, "shard_map"):
        return _flops.product_flops(jaxpr)
    return compiled.cost_analysis()["flops"], bool(_hlo.loops(text))


def _along(text: str, mesh: Mesh) -> dict[str, int]:
    """Counts the collectives along each mesh axis; what other slices send is apart."""
    is_slice = {getattr(d, "slice_index", 0) for d in mesh.devices.flat} != {0}
    sizes = {x: n for x, n in mesh.shape.items() if not (is_slice and x == "slice")}
    found = _hlo.along(text, sizes)
    received = _hlo.collectives(text).get("recv")
    return found if received is None else {"slice": received.count, **found}


def _devices(topology: str, slices: int = 1) -> list:
    more = {"num_slices": slices} if slices > 1 else {}
    try:
        found = topologies.get_topology_desc(
            platform="tpu", topology_name=topology, **more
        )
    except RuntimeError as error:
        raise ValueError(
            f"`topology` must be one that the TPU compiler knows, such as v5e:4x4 or "
            f"v5p:2x2x1, got {topology!r}: {error}"
        ) from error
    return found.devices
