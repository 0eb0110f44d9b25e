"""What every recipe does with its arguments, read from its signature."""

import inspect

import pytest
from _registry import TABLE

from optax_matrix._arguments import is_number
from optax_matrix.recipes._recipe import TREE_ONLY


@pytest.mark.parametrize("name", TABLE)
def test_every_number_is_handed_to_the_chain(name):
    """Inside sharded owners a traced number must be an argument, not a closure."""
    public = TABLE[name].public
    arguments = {
        key: None if p.default is inspect.Parameter.empty else p.default
        for key, p in public.signature.parameters.items()
    }
    method = public.factory(**{**public.fixed, **arguments, "learning_rate": 1e-3})
    numbers = {
        key
        for key, p in public.signature.parameters.items()
        if is_number(p.annotation) and key not in TREE_ONLY
    }
    assert numbers <= set(inspect.signature(method.chain).parameters)
