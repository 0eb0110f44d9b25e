"""An outer optimizer: Nesterov momentum on the steps of an inner one, added up."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from optax_matrix._arguments import Decay, Positive, PositiveInt, checked
from optax_matrix.linalg.scale import widened
from optax_matrix.transforms.arguments import Transformation
from optax_matrix.weights._average_weights import AverageWeightsState
from optax_matrix.weights._parts_of_states import ROUNDED, nodes
from optax_matrix.weights._round import require_params


class OuterState(NamedTuple):
    """State of `outer`.

    Attributes:
        count: Number of inner steps since the last outer one, int32.
        slow: The weights after the last outer step, in the dtypes of the parameters.
        momentum: The outer momentum, of their shapes, at least float32.
        inner_state: State of the inner optimizer.
    """

    count: Any
    slow: Any
    momentum: Any
    inner_state: Any


@checked
def outer(
    inner: Transformation,
    *,
    every: PositiveInt = 30,
    rate: Positive = 0.7,
    momentum: Decay = 0.5,
) -> optax.GradientTransformationExtraArgs:
    r"""An outer step of Nesterov momentum after every few steps of an optimizer.

    After H steps of the inner optimizer, from :math:`\phi` to :math:`\theta`, their
    difference is the gradient of one step of SGD with Nesterov momentum. That step
    starts from :math:`\phi`, and the inner optimizer continues from its result:

    .. math::
        \Delta = \phi - \theta, \qquad
        B \leftarrow \mu B + \Delta, \qquad
        \phi \leftarrow \phi - \rho \, (\Delta + \mu B)

    With rate 1 and momentum 0, and any H, this is the inner optimizer exactly. There
    are no further gradients: an outer step is arithmetic on the weights.

    Args:
        inner: The optimizer of the whole tree, with its learning rate. Outer steps do
            not change its state, nor its schedules. Steps that keep a norm
            (`weights.hyperball`, `muonh`) do so again one step after an outer one.
        every: The number of inner steps H. The last outer step should be the last step
            of a run, which then has a multiple of H steps.
        rate: The outer learning rate :math:`\rho`.
        momentum: The outer momentum :math:`\mu`.

    Returns:
        A transformation, the last one of a chain. It needs ``params``. Put it inside of
        `optax.MultiSteps`, so that it counts steps, and inside of `average_weights` and
        `weights.store_remainders`, so that they see the weights that it makes. The
        state has two copies of the weights, which are sharded as they are.
        `evaluation_params` returns those after the last outer step.

    Raises:
        ValueError: If an argument is out of range; at `init`, if a part of ``inner``
            keeps or rounds weights and must be around instead; at `update`, without
            ``params``.

    Examples:
        >>> import jax.numpy as jnp, optax
        >>> import optax_matrix as om
        >>> tx = om.outer(optax.sgd(1.0), every=2, rate=0.5, momentum=0.9)
        >>> params = {"w": jnp.zeros(1)}
        >>> state = tx.init(params)
        >>> for _ in range(2):  # To -1; then to -2, of which 0.5 (1 + 0.9) are gone.
        ...     updates, state = tx.update({"w": jnp.ones(1)}, state, params)
        ...     params = optax.apply_updates(params, updates)
        >>> params["w"].round(3).tolist()
        [-1.9...]

    References:
        Douillard et al., `DiLoCo <https://arxiv.org/abs/2311.08105>`_, 2023, Algorithm
        1 with one worker, whose average is then that worker's way; there :math:`H =
        500`, :math:`\rho = 0.7`, :math:`\mu = 0.9` and AdamW inside. Thérien et al.,
        `MuLoCo <https://arxiv.org/abs/2505.23725>`_, 2025, is the same with Muon
        inside. The defaults are those of modded-nanogpt's `record
        <https://github.com/KellerJordan/modded-nanogpt/pull/277>`_ of it with one
        worker. Kallusky et al., `SNOO <https://arxiv.org/abs/2510.15830>`_, 2025, has
        the same rule; its `program
        <https://github.com/KellerJordan/modded-nanogpt/pull/128>`_ makes its first
        outer step after the first inner one, and here it is after the H-th.
    """
    inner = optax.with_extra_args_support(inner)

    def init_fn(params):
        inner_state = inner.init(params)
        _refuse(inner_state)
        slow = jax.tree.map(jnp.copy, params)  # A copy, so that both may be donated.
        trace = jax.tree.map(lambda w: jnp.zeros_like(widened(w)), params)
        return OuterState(jnp.zeros((), jnp.int32), slow, trace, inner_state)

    def step(update, w, slow, trace):
        """The update, and the slow weights and momentum after an outer step."""
        if update is None:
            return update, slow, trace
        back = widened(slow) - (widened(w) + widened(update))
        made = momentum * trace + back
        # What brings the inner step to the outer one: nothing for rate 1, momentum 0.
        extra = (1 - rate) * back - rate * momentum * made
        update = (widened(update) + extra).astype(update.dtype)
        return update, (w + update).astype(w.dtype), made.astype(trace.dtype)

    def outwards(updates, params, slow, trace):
        is_none = lambda x: x is None
        leaves, tree = jax.tree.flatten(updates, is_leaf=is_none)
        others = (tree.flatten_up_to(x) for x in (params, slow, trace))
        made = [step(*each) for each in zip(leaves, *others, strict=True)]
        columns = zip(*made, strict=True) if made else ((), (), ())
        return tuple(map(tree.unflatten, columns))

    def update_fn(updates, state, params=None, **extra_args):
        require_params(params, "stepped from")
        updates, inner_state = inner.update(
            updates, state.inner_state, params, **extra_args
        )
        count = (state.count + 1) % every
        updates, slow, trace = jax.lax.cond(
            count == 0,
            outwards,
            lambda updates, _, slow, trace: (updates, slow, trace),
            *(updates, params, state.slow, state.momentum),
        )
        return updates, OuterState(count, slow, trace, inner_state)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def _refuse(state: Any) -> None:
    """Raises if a state of the inner optimizer says what the next weights are."""
    names = {
        AverageWeightsState: "om.average_weights",
        optax.contrib.ScheduleFreeState: "optax.contrib.schedule_free",
        **{kind: f"om.weights.{name}" for kind, name in ROUNDED.items()},
    }
    for node in nodes(state, *names):
        name = names[type(node)]
        instead = f"put {name} around om.outer"
        if name.startswith("optax"):
            instead = "take one of the two"
        raise ValueError(
            f"`inner` must not have {name} inside, whose state is of the weights that "
            f"its own updates make; {instead}."
        )
