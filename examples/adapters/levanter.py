"""Levanter, Marin: a registered `OptimizerConfig`, and the axes of haliax's layers.

    optimizer:
      type: muoneq
      learning_rate: 3e-3

The axes of named arrays have names, and each linear layer says which of them it
reduces: `matrices.infer` reads that.
"""

import dataclasses

import optax
from levanter.optim.config import OptimizerConfig

import optax_matrix as om


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
                dimension_numbers=lambda params: om.matrices.infer(params)(params),
            )

        # Levanter logs the learning rate of this state.
        return optax.inject_hyperparams(optimizer)(self.lr_scheduler(num_train_steps))
