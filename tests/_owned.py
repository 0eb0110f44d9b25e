"""Running a transformation on a mesh and on one device, to compare the two."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P


def cubic(layout=None):
    """Momentum, then a polynomial in which every element meets every other."""
    del layout

    def bend(x, _):
        return x / 4 - x @ x.mT @ x / (1 + jnp.sum(x * x, (-2, -1), keepdims=True))

    return optax.chain(optax.trace(0.9), optax.stateless_with_tree_map(bend))


def normal(shapes, seed, dtype=np.float32):
    """A flat tree of normal numbers."""
    rng = np.random.default_rng(seed)
    return {
        path: rng.standard_normal(shape).astype(dtype) for path, shape in shapes.items()
    }


def on_mesh(tree, specs, mesh):
    """The tree as sharded by specs."""
    return {
        path: jax.device_put(x, NamedSharding(mesh, specs[path]))
        for path, x in tree.items()
    }


def given(mesh, specs):
    """What `param_specs` has to be on this mesh."""
    if AxisType.Explicit in mesh.axis_types:
        return None
    return {path: NamedSharding(mesh, spec) for path, spec in specs.items()}


def rollout(tx, params, noise, steps=2, state=None, **extra_args):
    """Parameters after each step, the state, and the jitted step."""

    def step(params, noise, state):
        grads = jax.tree.map(lambda w, n: (0.1 * w + n).astype(n.dtype), params, noise)
        updates, state = tx.update(grads, state, params, **extra_args)
        return optax.apply_updates(params, updates), state

    step, path = jax.jit(step), []
    state = tx.init(params) if state is None else state
    for _ in range(steps):
        params, state = step(params, noise, state)
        path.append(params)
    return path, state, step


def assert_same_path(got, want, rtol=1e-5, atol=1e-5):
    """Rounding of f32 apart, as the two programs are fused differently."""
    for a, b in zip(got, want, strict=True):
        assert set(a) == set(b)
        for path, x in b.items():
            assert a[path].dtype == x.dtype, path
            x, y = (np.asarray(v, np.float32) for v in (x, a[path]))
            np.testing.assert_allclose(y, x, rtol, atol, err_msg=path)


def assert_specs(tree, specs, mesh):
    """Checks that every leaf lies as its spec says."""
    for path, x in tree.items():
        sharding = NamedSharding(mesh, specs.get(path, P()))
        assert x.sharding.is_equivalent_to(sharding, x.ndim), path
