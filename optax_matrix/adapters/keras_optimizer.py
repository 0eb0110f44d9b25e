"""Keras on JAX: every recipe as a `keras.optimizers.Optimizer`.

    table = by_use(model).table()
    model.compile(Matrix("muoneq", 3e-3, table=table), loss="mse")

`by_use` reads from the model which axes of its weights are inputs and outputs; `print`
its rule to look at them. The table is part of the configuration of the optimizer, so a
saved model has it. Without it, names and shapes decide.

Schedules, callbacks that set `learning_rate`, clipping, accumulation, averages of
weights, `model.save`, `keras.saving.load_model` and `BackupAndRestore` work as with
Keras's own optimizers.

Under `keras.distribution.ModelParallel` the state is sharded as the weights are:
variables get their layouts from the weights that they belong to, as those of Keras's
own optimizers do, and never from a pattern. With ``owners="model"`` each device along
that axis of the mesh has whole matrices instead.

A saved state is by weight and not by stack. So it may be loaded on another mesh, and,
as Keras has it, into a model whose layers have other names but the same order.
"""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import jax
import keras
import numpy as np

import optax_matrix as om


def by_use(model: keras.Model, *inputs: Any, **options: Any) -> om.matrices.UseRule:
    """Reads how a model uses its trainable weights, by its `stateless_call`.

    Args:
        model: A built model.
        *inputs: What it is called with, as arrays or `jax.ShapeDtypeStruct`. They may
            be left out if the model knows their shapes; a batch then has two rows.
        **options: Those of `matrices.by_use`, such as `numbers`.

    Returns:
        The rule, by the paths of the weights.
    """
    inputs = inputs or (_inputs(model),)
    trained = {v.path: v.value for v in model.trainable_variables}
    _refuse_equal_paths(trained, model.trainable_variables)
    others = [v.value for v in model.non_trainable_variables]

    def call(params: dict[str, Any], *inputs: Any) -> Any:
        values = [params[path] for path in trained]  # JAX sorts what it passes.
        return model.stateless_call(values, others, *inputs)[0]

    return om.matrices.by_use(call, trained, *inputs, **options)


def _inputs(model: keras.Model) -> Any:
    """Shapes of what a model is called with, of two rows."""
    known = getattr(model, "inputs", None)
    if not known or any(None in x.shape[1:] for x in known):
        raise ValueError(
            "`inputs` must be given, since the model does not know their shapes; pass "
            "by_use(model, x), where x may be a jax.ShapeDtypeStruct."
        )
    of = lambda x: jax.ShapeDtypeStruct((x.shape[0] or 2, *x.shape[1:]), x.dtype)
    found = list(map(of, known))
    return found if len(found) > 1 else found[0]


def _refuse_equal_paths(found: dict[str, Any], variables: list[Any]) -> None:
    if len(found) < len(variables):
        raise ValueError("`variables` must have different paths; name the layers.")


# The output kernel of `MultiHeadAttention` is (heads, head_dim, out). Without patterns,
# models that have none are not warned of.
_ATTENTION = {"attention_output/kernel": om.MatrixDimensionNumbers((0, 1), 2)}
RULE = dataclasses.replace(om.matrices.by_path(numbers=_ATTENTION), patterns=())


@keras.saving.register_keras_serializable("optax_matrix")
class Matrix(keras.optimizers.Optimizer):
    """A recipe of `optax_matrix`, applied to all variables of a model at once."""

    def __init__(
        self,
        method: str,
        learning_rate: Any = 1e-3,
        options: dict[str, Any] | None = None,
        owners: str | tuple[str, ...] | None = None,
        table: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ):
        """Looks the recipe up.

        Args:
            method: Name of a recipe, for example `"muoneq"`.
            learning_rate: A float, or a schedule of Keras.
            options: Arguments of the recipe: its own weight decay, for example.
            owners: Axes of the device mesh whose devices own whole matrices; None
                shards state as the weights are.
            table: What ``by_use(model).table()`` says of the weights; None lets names
                and shapes decide.
            **kwargs: Those of every Keras optimizer.
        """
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.method, self.options = method, options or {}
        # JSON has lists.
        self.owners = tuple(owners) if isinstance(owners, list) else owners
        self.table = table
        self._tx = self._recipe()

    def _recipe(self, **placement: Any) -> Any:
        rule = RULE if self.table is None else om.matrices.by_path(table=self.table)
        options = {"dimension_numbers": rule, **placement, **self.options}
        recipe = om.inject_hyperparams(getattr(om, self.method))
        return recipe(learning_rate=0.0, **options)

    def build(self, variables: list[Any]) -> None:
        """Makes one variable for each array of the optimizer's state."""
        if self.built:
            return
        super().build(variables)
        params = {v.path: v.value for v in variables}
        _refuse_equal_paths(params, variables)
        if self.owners:
            at = {path: x.sharding for path, x in params.items()}
            placement = om.owners(self.owners, param_specs=at)
            self._tx = self._recipe(placement=placement)
        init, layouts = self._tx.init, None
        if distribution := keras.distribution.distribution():
            mesh = distribution.device_mesh.backend_mesh
            specs = om.state_specs(self._tx, params)
            layouts = jax.tree.map(lambda s: jax.sharding.NamedSharding(mesh, s), specs)
            init = jax.jit(init, out_shardings=layouts)
        state = init(params)
        self._structure = jax.tree.structure(state)
        leaves = jax.tree.leaves_with_path(state)
        layouts = jax.tree.leaves(layouts) or [None] * len(leaves)
        # What the state says of itself: names of layers decide it, and it stays.
        self._fixed = [np.asarray(x) if _is_label(keys) else None for keys, x in leaves]
        self._state = [
            self._variable(keys, x, layout)
            for (keys, x), layout in zip(leaves, layouts, strict=True)
            if not _is_label(keys)
        ]

    def _variable(self, keys: tuple, x: jax.Array, layout: Any) -> Any:
        """A variable for an array of the state, named as the recipe names it."""
        name = jax.tree_util.keystr(keys, simple=True, separator="_")
        initial: Any = lambda *_, **__: x
        return self.add_variable(
            x.shape,
            initializer=initial,
            dtype=x.dtype.name,
            layout=layout,
            name=name.replace("/", "_"),
        )

    def _params(self) -> dict[str, Any]:
        """The weights by path, in Keras's order."""
        return {v.path: v.value for v in self._trainable_variables}

    def _tree(self) -> Any:
        """The state as the recipe has it."""
        values = iter([v.value for v in self._state])
        leaves = [next(values) if x is None else x for x in self._fixed]
        return jax.tree.unflatten(self._structure, leaves)

    def _arrays(self, state: Any) -> list[Any]:
        """The arrays of a state that variables hold."""
        leaves = zip(jax.tree.leaves(state), self._fixed, strict=True)
        return [x for x, fixed in leaves if fixed is None]

    def _backend_update_step(
        self, grads: Any, trainable_variables: Any, learning_rate: Any
    ) -> None:
        """Keras's hook for updates of all variables together."""
        params = self._params()
        found = {v.path: g for g, v in zip(grads, trainable_variables, strict=True)}
        # Keras leaves out, with a warning, what the loss does not depend on.
        grads = {p: found.get(p, jax.numpy.zeros_like(x)) for p, x in params.items()}
        state = self._tree()
        rate = keras.ops.convert_to_tensor(learning_rate, "float32")
        state.hyperparams["learning_rate"] = rate
        updates, state = self._tx.update(grads, state, params)
        for variable in trainable_variables:
            self.assign_add(variable, updates[variable.path])
        for variable, x in zip(self._state, self._arrays(state), strict=True):
            self.assign(variable, x)

    def save_own_variables(self, store: Any) -> None:
        """Keras's own variables by number, the recipe's state by weight."""
        if not self.built:
            super().save_own_variables(store)
            return
        for i, variable in enumerate(self._others()):
            store[str(i)] = variable.numpy()
        params = self._params()
        portable = om.to_portable(self._tree(), params)
        for i, x in enumerate(portable.values()):
            store[f"state_{i}"] = np.asarray(x)
        names = json.dumps([list(params), list(portable)])
        store["names"] = np.frombuffer(names.encode(), np.uint8)

    def load_own_variables(self, store: Any) -> None:
        """Reads what `save_own_variables` wrote; warns where others wrote, as Keras."""
        if not self.built or "names" not in store.keys():  # noqa: SIM118
            super().load_own_variables(store)
            return
        for i, variable in enumerate(self._others()):
            variable.assign(store[str(i)])
        old, keys = json.loads(bytes(store["names"]))
        portable = {key: store[f"state_{i}"] for i, key in enumerate(keys)}
        # Keras restores by the order of the weights; their names may have changed.
        params = self._params()
        rename = {a: b for a, b in zip(old, params, strict=True) if a != b}
        state = om.from_portable(portable, self._tree(), params, rename=rename)
        for variable, x in zip(self._state, self._arrays(state), strict=True):
            variable.assign(x)

    def _others(self) -> list[Any]:
        """Keras's own variables: the iteration, the learning rate, averages."""
        own = {id(v) for v in self._state}
        return [v for v in self.variables if id(v) not in own]

    def get_config(self) -> dict[str, Any]:
        """What makes the same optimizer again."""
        names = "method", "options", "owners", "table"
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}


def _is_label(keys: tuple) -> bool:
    """Whether an array says whose state this is."""
    labels = ("method", "manifest", "sides")
    return any(getattr(key, "name", None) in labels for key in keys)
