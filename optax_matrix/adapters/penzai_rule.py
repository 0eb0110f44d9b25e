"""Penzai: the model's `pz.nn.Linear` layers say which axes are a matrix's.

    tx = om.muoneq(1e-2, dimension_numbers=penzai_rule.rule(model, "lm_head"))
    trainer = StatefulTrainer.build(root_rng, model, tx, loss_fn)

The trainer passes its parameters as a tuple, so that their paths are numbers. Each
parameter has the label that it has in the model, and named axes; axes that a layer
neither reduces nor produces are batch axes. ``om.matrices.by_use`` needs none of this
where a function of the tuple of parameters is at hand.
"""

import re
from collections.abc import Callable
from typing import Any

import jax
from penzai import pz

from optax_matrix import MatrixDimensionNumbers


def rule(model: Any, *others: str) -> Callable[[Any], Any]:
    """A rule for the parameters of a model.

    Args:
        model: The model, with its parameters bound.
        *others: Regular expressions of labels with the other optimizer, besides all
            that are not of a linear layer: the head, for example `"lm_head"`.
    """
    linear = pz.select(model).at_instances_of(pz.nn.Linear).get_sequence()
    # A norm's scale is a linear layer without axes of its own.
    linear = [x for x in linear if x.in_axis_names and x.out_axis_names]
    layers = {layer.weights.label: layer for layer in linear}

    def numbers(parameter: pz.ParameterValue) -> MatrixDimensionNumbers | None:
        layer = layers.get(parameter.label)
        if layer is None or any(re.search(x, parameter.label) for x in others):
            return None
        at = list(parameter.value.named_axes).index
        axes = (layer.in_axis_names, layer.out_axis_names)
        return MatrixDimensionNumbers(*(tuple(map(at, names)) for names in axes))

    is_parameter = lambda x: isinstance(x, pz.ParameterValue)
    return lambda params: jax.tree.map(numbers, params, is_leaf=is_parameter)
