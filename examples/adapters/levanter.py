"""Levanter, Marin: a registered `OptimizerConfig`, and the axes of haliax's layers.

    optimizer:
      type: muoneq
      learning_rate: 3e-3

The paths of named arrays end in `/0`, their axes have names, and each linear layer says
which of them it reduces: `linear_layers` reads that.
"""

import dataclasses
from typing import Any

import jax
import optax
from haliax.nn import Linear
from levanter.optim.config import OptimizerConfig

import optax_matrix as om


def linear_layers(params: Any) -> Any:
    """Dimension numbers of all `haliax.nn.Linear` but the head; None for the rest.

    Args:
        params: A Levanter model or its trainable part, scanned (`Stacked`) or not.
    """

    def numbers(path: Any, layer: Any) -> Any:
        if not isinstance(layer, Linear):
            return None
        head = "lm_head" in jax.tree_util.keystr(path)
        names = layer.weight.axis_names  # Also where the array is masked.
        find = lambda spec: tuple(names.index(a) for a in _names(spec))
        axes = om.MatrixDimensionNumbers(find(layer.In), find(layer.Out))
        return dataclasses.replace(layer, weight=None if head else axes, bias=None)

    is_layer = lambda x: isinstance(x, Linear)
    return jax.tree_util.tree_map_with_path(numbers, params, is_leaf=is_layer)


def _names(spec: Any) -> list[str]:
    axes = spec if isinstance(spec, list | tuple) else [spec]
    return [getattr(axis, "name", axis) for axis in axes]


@OptimizerConfig.register_subclass("muoneq")
@dataclasses.dataclass(frozen=True)
class MuonEqConfig(OptimizerConfig):
    """MuonEq with Levanter's schedules and decay mask."""

    momentum: float = 0.95

    def build(self, num_train_steps: int) -> optax.GradientTransformation:
        """The optimizer of a run of so many steps."""

        def optimizer(learning_rate):
            return om.muoneq(
                learning_rate,
                b1=self.momentum,
                weight_decay=self.weight_decay,
                weight_decay_mask=self.build_weight_decay_mask(),
                dimension_numbers=linear_layers,
            )

        # Levanter logs the learning rate of this state.
        return optax.inject_hyperparams(optimizer)(self.lr_scheduler(num_train_steps))
