"""Random combinations of wrappers around random recipes, each from a seed.

Every wrapper is neutral by its settings, so the updates have to be those of the recipe
alone.
"""

import dataclasses
import functools
import io
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import optax
from _registry import RECIPES
from flax import serialization
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import optax_matrix as om

RATE = 0.01
SHAPES = {
    "up": {"kernel": (8, 6), "bias": (6,)},
    "down": {"kernel": (6, 8)},
    "layers": {"kernel": (2, 6, 8)},
    "odd": {"kernel": (8, 6)},
    "scale": (),
}
MEASURES = ("update_rms", "update_to_weight", "gradient_cosine", "update_cosine")
monitor = om.diagnostics.monitor
everywhere = functools.partial(jax.tree.map, lambda _: True)

# A function of a transformation to one of the same updates.
WRAPPERS = {
    "monitor": lambda tx: monitor(tx, MEASURES),
    "monitor-stacks": lambda tx: monitor(tx, ("orthogonality_error",)),
    "monitor-captures": lambda tx: monitor(tx, (), captures={"direction": (1,)}),
    "clip": lambda tx: optax.chain(optax.clip_by_global_norm(1e9), tx),
    "multi_steps": lambda tx: optax.MultiSteps(tx, 1).gradient_transformation(),
    "apply_if_finite": lambda tx: optax.apply_if_finite(tx, 3),
    "masked": lambda tx: optax.masked(tx, everywhere),
    "partition": lambda tx: optax.partition({"all": tx}, "all"),
    "named_chain": lambda tx: optax.named_chain(("step", tx)),
    "conditionally": lambda tx: optax.conditionally_transform(
        tx, lambda step: step >= 0
    ),
    "scale_by_path": lambda tx: optax.chain(tx, om.scale_by_path({"kernel": 1.0})),
    "decay_by_path": lambda tx: optax.chain(tx, om.decay_by_path({"kernel": 0.0})),
    "cautious_decay": lambda tx: optax.chain(tx, om.add_cautious_decay(0.0)),
    "scheduled_decay": lambda tx: optax.chain(
        om.add_cautious_decay(optax.constant_schedule(0.0)), tx
    ),
    "keep_dtype": om.transforms.wrappers.keep_dtype,
    "in_float32": om.transforms.in_float32,
    "with_gradient": om.transforms.with_gradient,
    "outer": lambda tx: om.outer(tx, every=2, rate=1.0, momentum=0.0),
    "inject": lambda tx: om.inject_hyperparams(_scaled)(tx, scale=1.0),
}


def _scaled(inner: optax.GradientTransformationExtraArgs, scale: float):
    return optax.chain(inner, optax.scale(scale))


PLACES = (None, "quantized", "small-quantized", "owners", "teams", "owners-quantized")
SAVES = ("msgpack", "pickle", "portable", "numpy")
RUNS = ("loop", "loop", "vmap", "lookahead")
BRANCHING = {"multi_steps", "apply_if_finite", "conditionally", "outer"}
FINISHED = ("poet", "oft")  # Their steps are no matrices of the tree.


@dataclasses.dataclass(frozen=True)
class Case:
    """A recipe, what is around it, and how it is run and saved."""

    name: str
    dtype: str
    place: str | None = None
    kind: str = "auto"
    injected: bool = False
    skip: bool = False
    wrappers: tuple[str, ...] = ()
    save: str = "pickle"
    run: str = "loop"


def draw(seed):
    """The case of a seed."""
    rng = np.random.default_rng(seed)
    pick = lambda options: options[int(rng.integers(len(options)))]
    name = pick(sorted(RECIPES))
    known = [
        w
        for w in WRAPPERS
        if not (
            name.startswith(FINISHED) and w in ("monitor-stacks", "monitor-captures")
        )
    ]
    count = int(rng.integers(2, 4))
    case = Case(
        name=name,
        dtype=pick(("float32", "bfloat16")),
        place=pick(PLACES) if rng.random() < 0.6 else None,
        kind=pick(("auto", "explicit")),
        injected=bool(rng.random() < 0.3),
        skip=bool(rng.random() < 0.3),
        wrappers=tuple(str(w) for w in rng.choice(known, count, replace=False)),
        save=pick(SAVES),
        run=pick(RUNS),
    )
    # JAX does not batch a branch over arrays with Explicit axes; optax takes one there.
    if case.run == "vmap" and BRANCHING.intersection(case.wrappers):
        return dataclasses.replace(case, kind="auto")
    return case


def mesh_of(case):
    """The mesh of a case, or None."""
    if case.place is None or not case.place.startswith(("owners", "teams")):
        return None
    types = {"auto": AxisType.Auto, "explicit": AxisType.Explicit}
    devices = jax.devices("cpu")[:2]
    return jax.make_mesh((2,), ("d",), (types[case.kind],), devices=devices)


def shardings(mesh):
    """Matrices are split along their first axis; other leaves are on all devices."""
    of = lambda shape: NamedSharding(mesh, P("d") if len(shape) > 1 else P())
    return jax.tree.map(of, SHAPES, is_leaf=lambda x: isinstance(x, tuple))


def tree(seed, case):
    """A tree of normal numbers, where the case has it."""
    rng = np.random.default_rng(seed)
    normal = lambda shape: jnp.asarray(rng.standard_normal(shape), case.dtype)
    made = jax.tree.map(normal, SHAPES, is_leaf=lambda x: isinstance(x, tuple))
    mesh = mesh_of(case)
    return made if mesh is None else jax.device_put(made, shardings(mesh))


def placement(case):
    """The placement of a case."""
    mesh = mesh_of(case)
    base = None
    if mesh is not None:
        teams = 2 if case.place == "teams" else 1
        base = om.owners("d", param_specs=shardings(mesh), teams=teams)
    if case.place is not None and case.place.endswith("quantized"):
        size = 4096 if case.place == "small-quantized" else 1
        return om.quantized(base, block_size=8, min_size=size)
    return base


def plain(case):
    """The case without anything around it, but in as many bits."""
    place = "quantized" if case.place in ("quantized", "owners-quantized") else None
    return Case(case.name, case.dtype, place)


def optimizer(case, rate=RATE):
    """The recipe of a case with everything that is around it."""
    recipe = RECIPES[case.name]
    factory, options = getattr(recipe, "func", recipe), getattr(recipe, "keywords", {})
    options = {**options, "placement": placement(case)}
    if case.skip:
        options["nonfinite"] = "skip"
    if case.injected:
        factory = om.inject_hyperparams(factory)
    tx = factory(rate, **options)
    for name in case.wrappers:
        tx = WRAPPERS[name](tx)
    return tx


def saved(how, state, fresh, params):
    """A state through a file, filled into a fresh one."""
    host = jax.tree.map(np.asarray, state)
    if how == "portable":
        return om.from_portable(om.to_portable(state, params), fresh, params)
    if how == "numpy":
        buffer = io.BytesIO()
        np.savez(buffer, **om.to_portable(state, params))
        buffer.seek(0)
        return om.from_portable(dict(np.load(buffer)), fresh, params)
    if how == "pickle" or "OrderedDict" in str(jax.tree.structure(state)):
        new = pickle.loads(pickle.dumps(host))
    else:
        new = serialization.from_bytes(fresh, serialization.to_bytes(host))
    new = jax.tree.map(jnp.asarray, new)
    put = lambda old, x: jax.device_put(x, old.sharding) if old.committed else x
    return jax.tree.map(put, fresh, new)
