"""Keras on JAX: every recipe as a `keras.optimizers.Optimizer`.

    model.compile(Matrix("muoneq", 3e-3), loss="mse")

Schedules, callbacks that set `learning_rate`, clipping, accumulation, averages of
weights, `model.save` and `keras.saving.load_model` work as with Keras's own optimizers.
"""

import dataclasses
from typing import Any

import jax
import keras

import optax_matrix as om

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
        **kwargs: Any,
    ):
        """Looks the recipe up.

        Args:
            method: Name of a recipe, for example `"muoneq"`.
            learning_rate: A float, or a schedule of Keras.
            options: Arguments of the recipe: its own weight decay, for example.
            **kwargs: Those of every Keras optimizer.
        """
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.method, self.options = method, options or {}
        arguments = {"dimension_numbers": RULE, **self.options}
        recipe = getattr(om, method)
        self._tx = om.inject_hyperparams(recipe)(learning_rate=0.0, **arguments)

    def build(self, variables: list[Any]) -> None:
        """Makes one variable for each array of the optimizer's state."""
        if self.built:
            return
        super().build(variables)
        params = {v.path: v.value for v in variables}
        if len(params) < len(variables):
            raise ValueError("`variables` must have different paths; name the layers.")
        leaves, self._structure = jax.tree.flatten(self._tx.init(params))
        self._state = [
            self.add_variable(
                x.shape,
                initializer=lambda *_, value=x, **__: value,
                dtype=x.dtype.name,
                name=f"state_{i}",
            )
            for i, x in enumerate(leaves)
        ]

    def _backend_update_step(
        self, grads: Any, trainable_variables: Any, learning_rate: Any
    ) -> None:
        """Keras's hook for updates of all variables together."""
        pairs = list(zip(grads, trainable_variables, strict=True))
        grads = {v.path: g for g, v in pairs}
        params = {v.path: v.value for _, v in pairs}
        state = jax.tree.unflatten(self._structure, [v.value for v in self._state])
        rate = keras.ops.convert_to_tensor(learning_rate, "float32")
        state.hyperparams["learning_rate"] = rate
        updates, state = self._tx.update(grads, state, params)
        for variable in trainable_variables:
            self.assign_add(variable, updates[variable.path])
        for variable, x in zip(self._state, jax.tree.leaves(state), strict=True):
            self.assign(variable, x)

    def get_config(self) -> dict[str, Any]:
        """What makes the same optimizer again."""
        config = {"method": self.method, "options": self.options}
        return {**super().get_config(), **config}
