"""State says where it lies in the terms of the framework that its parameters use."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import optax_matrix as om

AXES = ("fsdp", "tp")
X = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
RULES = (("embed", "fsdp"), ("mlp", "tp"))


@pytest.fixture
def auto(cpus):
    kinds = (AxisType.Auto,) * 2
    return jax.make_mesh((4, 2), AXES, axis_types=kinds, devices=cpus)


class Net(nnx.Module):
    """Two kernels (in, out), one a transposed copy of the other in shape and names."""

    def __init__(self, rngs, names=AXES, **metadata):
        init = nnx.initializers.lecun_normal()
        named = lambda *axes: nnx.with_partitioning(init, axes, **metadata)
        embed, mlp = names
        self.up = nnx.Linear(8, 16, kernel_init=named(embed, mlp), rngs=rngs)
        self.down = nnx.Linear(16, 8, kernel_init=named(mlp, embed), rngs=rngs)

    def __call__(self, x):
        return self.down(jax.nn.gelu(self.up(x)))


@nnx.jit
def _step(model, optimizer):
    loss = lambda m: jnp.mean((m(X) - X) ** 2)
    value, grads = nnx.value_and_grad(loss)(model)
    optimizer.update(model, grads)
    return value


def _variables(state):
    """The arrays of a state, beside the specs that the framework reads for them."""
    is_one = lambda x: isinstance(x, nnx.Variable)
    held = jax.tree.leaves(state, is_leaf=is_one)
    read = jax.tree.leaves(nnx.get_partition_spec(state), is_leaf=is_one)
    pairs = zip(map(jax.tree.leaves, held), read, strict=True)
    return [(x[0], spec.get_value()) for x, spec in pairs if x]


def _specs_of(optimizer):
    """The specs that the framework reads, by shape, apart from replicated state."""
    pairs = _variables(nnx.state(optimizer))
    return {(x.shape, tuple(spec)) for x, spec in pairs if any(spec)}


# soap's state: two moments and two Gram matrices and bases for each kernel.
UP, DOWN = ((1, 16, 8), (None, "tp", "fsdp")), ((1, 8, 16), (None, "fsdp", "tp"))
SQUARE = {
    # A square side keeps its own axis; the name of the other side goes where it fits.
    ((1, 16, 16), (None, "tp", "fsdp")),
    ((1, 8, 8), (None, "fsdp", "tp")),
}


@pytest.mark.broad
def test_nnx_state_inherits_the_metadata_of_its_leaves(auto):
    with jax.set_mesh(auto):
        model = Net(nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, om.soap(1e-2), wrt=nnx.Param)
        want = {UP, DOWN} | SQUARE
        assert _specs_of(optimizer) == want
        for _ in range(2):
            _step(model, optimizer)
            assert _specs_of(optimizer) == want
        for x, spec in _variables(nnx.state(optimizer)):
            if any(spec):
                assert x.sharding.is_equivalent_to(NamedSharding(auto, spec), x.ndim)


@pytest.mark.broad
def test_nnx_state_of_owners_says_who_owns_it(auto):
    with jax.set_mesh(auto):
        model = Net(nnx.Rngs(0))
        specs = nnx.get_partition_spec(nnx.state(model, nnx.Param))
        tx = om.muon(1e-2, placement=om.owners(AXES, param_specs=specs))
        optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
        stacks = {((8, *shape), (AXES, None, None)) for shape in ((16, 8), (8, 16))}
        for step in range(3):
            found = _specs_of(optimizer)
            assert {pair for pair in found if len(pair[0]) == 3} == stacks
            assert ((8, 4), (AXES, None)) in found  # The manifests.
            if step < 2:
                _step(model, optimizer)


@pytest.mark.parametrize("axes", ["fsdp", AXES])
def test_nnx_state_of_owners_keeps_its_mesh_axes_under_logical_rules(auto, axes):
    """MaxText maps names by rules that drop those they do not have."""
    model = Net(nnx.Rngs(0), ("embed", "mlp"), eager_sharding=False)
    specs = {
        "up": {"kernel": NamedSharding(auto, P(*AXES))},
        "down": {"kernel": NamedSharding(auto, P(*AXES[::-1]))},
    }
    tx = om.muon(1e-2, placement=om.owners(axes, param_specs=specs))
    make = lambda: nnx.Optimizer(model, tx, wrt=nnx.Param)
    state = nnx.to_flat_state(nnx.state(nnx.eval_shape(make)))
    found = set()
    for _, variable in state:
        said = variable.get_metadata()
        if getattr(variable.get_value(), "ndim", 0) == 3:
            rules = (*said.get("sharding_rules", ()), *RULES)
            mapped = nn.logical_to_mesh_axes(said["out_sharding"], rules=rules)
            found.add(next(iter(mapped)))
    assert found == {axes}


def test_nnx_state_keeps_logical_names_that_rules_map():
    names = {"sharding_rules": RULES, "eager_sharding": False}
    model = Net(nnx.Rngs(0), ("embed", "mlp"), **names)
    make = lambda: nnx.Optimizer(model, om.muon(1e-2), wrt=nnx.Param)
    assert _specs_of(make()) == {UP, DOWN}  # By the rules in the metadata.
    optimizer = nnx.eval_shape(make)
    assert _specs_of(optimizer) == {UP, DOWN}
    model = Net(nnx.Rngs(0), ("embed", "mlp"), eager_sharding=False)
    said = {
        (shape, tuple({"fsdp": "embed", "tp": "mlp"}.get(x) for x in spec))
        for shape, spec in (UP, DOWN)
    }
    optimizer = make()
    assert _specs_of(optimizer) == said
    with (
        nnx.logical_axis_rules(RULES)
        if hasattr(nnx, "logical_axis_rules")
        else (nn.logical_axis_rules(RULES))
    ):
        assert _specs_of(optimizer) == {UP, DOWN}


def test_variables_without_metadata_stay_bare():
    model = nnx.Linear(8, 16, rngs=nnx.Rngs(0))
    state = om.muon(1e-2).init(nnx.state(model, nnx.Param))
    stacks = [x for x in jax.tree.leaves(state) if x.ndim == 3]
    plain = om.muon(1e-2).init(nnx.to_pure_dict(nnx.state(model, nnx.Param)))
    inner = lambda s: s.inner_state
    assert len(stacks) == 1
    assert jax.tree.structure(inner(state)) == jax.tree.structure(inner(plain))


def _pure(tree):
    return jax.tree.map(
        lambda v: v.get_value(), tree, is_leaf=lambda v: isinstance(v, nnx.Variable)
    )


@pytest.mark.broad
def test_boxed_state_is_updated_like_bare_state_and_keeps_its_boxes(auto):
    tx = om.soap(1e-2)
    with jax.set_mesh(auto):
        params = nnx.state(Net(nnx.Rngs(0)), nnx.Param)
        state, plain = tx.init(params), tx.init(_pure(params))
        assert jax.tree.structure(state) != jax.tree.structure(plain)
        updates, new = jax.jit(tx.update)(params, state, params)
        want, bare = jax.jit(tx.update)(_pure(params), plain, _pure(params))
    assert jax.tree.structure(new) == jax.tree.structure(state)
    for a, b in ((updates, want), (new, bare)):
        for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


@pytest.mark.broad
def test_what_reads_state_reads_boxed_state(auto):
    tx = om.galore(1e-2, rank=2)
    with jax.set_mesh(auto):
        params = nnx.state(Net(nnx.Rngs(0)), nnx.Param)
        state = tx.init(params)
        _, state = jax.jit(tx.update)(params, state, params)
        om.check_restored(state)
        portable = om.to_portable(state, params)
        plain = om.to_portable(tx.init(_pure(params)), params)
        assert set(portable) == set(plain)
        filled = om.from_portable(portable, tx.init(params), params)
        assert jax.tree.structure(filled) == jax.tree.structure(state)
        for x, y in zip(jax.tree.leaves(filled), jax.tree.leaves(state), strict=True):
            np.testing.assert_array_equal(x, y)
        specs = om.state_specs(tx, params)
        assert jax.tree.structure(specs) == jax.tree.structure(state)
        found = om.diagnostics.bases(state, params)
        bare = om.diagnostics.bases(_bare(tx.init(_pure(params)), state), params)
        for path in ("up/kernel", "down/kernel"):
            np.testing.assert_array_equal(found[path], bare[path])
        sizes = [om.diagnostics.state_bytes(tx, p) for p in (params, _pure(params))]
        assert sizes[0].by_field() == sizes[1].by_field()


def _bare(like, state):
    return jax.tree.unflatten(jax.tree.structure(like), jax.tree.leaves(state))


@pytest.mark.broad
def test_multi_steps_over_boxed_state(auto):
    tx = optax.MultiSteps(om.muon(1e-2), 2)
    with jax.set_mesh(auto):
        params = nnx.state(Net(nnx.Rngs(0)), nnx.Param)
        state = tx.init(params)
        for _ in range(2):
            updates, state = jax.jit(tx.update)(params, state, params)
    assert int(state.gradient_step) == 1
    assert any(np.any(x) for x in jax.tree.leaves(updates))


class LinenNet(nn.Module):
    logical: bool = False

    @nn.compact
    def __call__(self, x):
        init = nn.initializers.lecun_normal()
        box = nn.with_logical_partitioning if self.logical else nn.with_partitioning
        embed, mlp = ("embed", "mlp") if self.logical else AXES
        x = nn.gelu(nn.Dense(16, kernel_init=box(init, (embed, mlp)))(x))
        return nn.Dense(8, kernel_init=box(init, (mlp, embed)))(x)


def _linen_specs(state):
    is_box = lambda x: isinstance(x, nn.Partitioned)
    held = jax.tree.leaves(state, is_leaf=is_box)
    read = [nn.get_partition_spec(x) for x in held]
    pairs = zip(map(jax.tree.leaves, held), read, strict=True)
    return {(x[0].shape, tuple(s)) for x, s in pairs if x and any(s)}


@pytest.mark.parametrize("logical", [False, True])
def test_linen_state_is_boxed_like_its_leaves(auto, logical):
    model = LinenNet(logical)
    abstract = jax.eval_shape(lambda: model.init(jax.random.key(0), X))
    with jax.set_mesh(auto):
        state = jax.eval_shape(om.soap(1e-2).init, abstract)
    found = _linen_specs(state)
    if logical:
        found = {
            (shape, tuple(nn.logical_to_mesh(P(*spec), RULES))) for shape, spec in found
        }
        sides = {
            (shape, tuple(x if i == 1 else None for i, x in enumerate(spec)))
            for shape, spec in SQUARE
        }
        assert found == {UP, DOWN} | sides  # Names alone say only what divides.
    else:
        assert found == {UP, DOWN} | SQUARE


@pytest.mark.parametrize("logical", [False, True])
def test_linen_state_of_owners_is_boxed_with_mesh_axes(auto, logical):
    model = LinenNet(logical)
    abstract = jax.eval_shape(lambda: model.init(jax.random.key(0), X))
    specs = nn.get_partition_spec(abstract)
    specs = nn.logical_to_mesh(specs, RULES) if logical else specs
    tx = om.muon(1e-2, placement=om.owners(AXES, param_specs=specs))
    with jax.set_mesh(auto):
        found = _linen_specs(jax.eval_shape(tx.init, abstract))
    stacks = {((8, *shape), (AXES, None, None)) for shape in ((16, 8), (8, 16))}
    assert {pair for pair in found if len(pair[0]) == 3} == stacks


@pytest.mark.broad
def test_a_linen_train_state_is_created_and_trained_by_its_boxes(auto):
    """As nanodo and MaxText's Linen path do: eval_shape, specs, jit, unbox."""
    from flax.training.train_state import TrainState

    model, tx = LinenNet(), om.muon(1e-2)

    def make():
        variables = model.init(jax.random.key(0), X)
        return TrainState.create(apply_fn=model.apply, params=variables, tx=tx)

    with jax.set_mesh(auto):
        shardings = nn.get_sharding(jax.eval_shape(make), auto)
        state = nn.unbox(jax.jit(make, out_shardings=shardings)())

    @jax.jit
    def step(state):
        loss = lambda v: jnp.mean((model.apply(v, X) - X) ** 2)
        value, grads = jax.value_and_grad(loss)(state.params)
        return state.apply_gradients(grads=grads), value

    losses = []
    for _ in range(3):
        state, value = step(state)
        losses.append(float(value))
    assert losses[2] < losses[0]
    stacks = [x for x in jax.tree.leaves(state.opt_state) if x.ndim == 3]
    assert len(stacks) == 2
    assert all(len(x.sharding.device_set) == 8 for x in stacks)
    assert all(x.addressable_shards[0].data.size * 8 == x.size for x in stacks)


@pytest.mark.broad
def test_the_shardings_that_nnx_makes_fit_the_state(auto):
    """Tunix restores into them: a matrix leaves no empty variable among the others."""
    with jax.set_mesh(auto):
        model = Net(nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, om.muoneq(0.02), wrt=nnx.Param)
        for _ in range(2):
            state = nnx.state(optimizer, nnx.optimizer.OptState)
            shardings = nnx.get_named_sharding(state, auto)
            assert jax.tree.structure(state) == jax.tree.structure(shardings)
            _step(model, optimizer)
