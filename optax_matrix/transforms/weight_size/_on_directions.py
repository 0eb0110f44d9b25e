"""Weights as lengths times directions of rows, each with an optimizer of its own."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from optax_matrix._arguments import Rate, checked
from optax_matrix.linalg.scale import safe_divide, widened
from optax_matrix.transforms.arguments import Transformation
from optax_matrix.transforms.weight_size._row_norms import row_norms


class OnDirectionsState(NamedTuple):
    """State of `on_directions`.

    Attributes:
        gains: Per leaf the factors g of the directions, ``(..., m, 1)``, at least
            float32.
        lengths: Per leaf the norms of the rows of V, of the same shape.
        direction: State of the transformation of V.
        gain: State of the transformation of the gains.
        rate: The state of the learning rate: a count, if it is a schedule.
    """

    gains: Any
    lengths: Any
    direction: Any
    gain: Any
    rate: Any


@checked
def on_directions(
    direction: Transformation,
    gain: Transformation | None = None,
    learning_rate: Rate = 1.0,
) -> optax.GradientTransformationExtraArgs:
    r"""Trains directions of rows by one transformation, their lengths by another.

    Weights are :math:`w_i = g_i v_i / \|v_i\|`, as in weight normalization, with
    :math:`V = W` and :math:`g_i = \|w_i\|` at the start. With
    :math:`u_i = v_i / \|v_i\|` and the gradients :math:`p_i` of the rows of W, those
    of the gains and of V are

    .. math::
        q_i = \langle p_i, u_i \rangle, \qquad
        r_i = \frac{g_i}{\|v_i\|} (p_i - q_i u_i)

    and the step is :math:`g \leftarrow g - \eta \, \mathrm{gain}(q)`,
    :math:`V \leftarrow V - \eta \, \mathrm{direction}(R)`. Steps of V are longer than
    what they turn it by, and its rows grow, so that the same steps turn them less and
    less. Rows of zeros stay zero. The model has no parameters but W; weights that were
    changed from outside turn V, and their rows come back to the lengths g.

    Args:
        direction: Transformation of the gradients of V, ``(..., m, n)``. Its parameters
            are V.
        gain: Transformation of the gradients of the gains, ``(..., m, 1)``; None for
            ``optax.scale_by_adam(0.9, 0.95)``, whose squares overflow above 1.8e19. Its
            parameters are the gains, which decay by `optax.add_decayed_weights` behind
            it.
        learning_rate: The rate :math:`\eta` of both, a number or a schedule.

    Returns:
        A transformation of trees whose leaves are ``(..., m, n)``. It needs parameters
        (``on_matrices(..., needs_params=True)``), and it must be the only one that
        changes weights: its updates are finished steps, which nothing may rescale.

    Raises:
        ValueError: If an argument is out of range; at `update`, without parameters.

    Examples:
        Muown, for the matrices of a tree:

        >>> import jax.numpy as jnp, optax
        >>> import optax_matrix as om
        >>> polar = om.orthogonalize(om.linalg.newton_schulz)
        >>> muon = optax.chain(om.momentum(0.95), polar, om.scale_by_shape("max"))
        >>> muown = om.transforms.on_directions(muon, learning_rate=0.01)
        >>> tx = om.on_matrices(
        ...     muown, other=optax.adamw(3e-3), needs_params=True, moves_zeros=False
        ... )
        >>> params = {"kernel": jnp.eye(4, 8), "bias": jnp.zeros(8)}
        >>> updates, state = tx.update(params, tx.init(params), params)

    References:
        Lion et al., `Muown <https://arxiv.org/abs/2605.10797>`_, 2026, as
        `Emerging-Optimizers <https://github.com/NVIDIA-NeMo/Emerging-Optimizers>`_ has
        it (``muown.py``), for any two transformations. Its decay is that of the gains.
        The entry of modded-nanogpt's `track 3
        <https://github.com/KellerJordan/modded-nanogpt/pull/288>`_ leads the lengths of
        V to targets by a schedule besides.
    """
    rate = optax.scale_by_learning_rate(learning_rate)
    turn = optax.with_extra_args_support(direction)
    stretch = optax.with_extra_args_support(gain or optax.scale_by_adam(0.9, 0.95))

    def init_fn(params):
        params = jax.tree.map(lambda w: widened(jnp.asarray(w)), params)
        gains = jax.tree.map(row_norms, params)
        lengths = jax.tree.map(jnp.copy, gains)  # Both may be donated.
        states = turn.init(params), stretch.init(gains)
        return OnDirectionsState(gains, lengths, *states, rate.init(params))

    def update_fn(updates, state, params=None, **extra_args):
        if params is None:
            raise ValueError(
                "`params` must be passed to `update`: the weights are directions and "
                "lengths; call tx.update(updates, state, params)."
            )
        units = jax.tree.map(_units, params, state.gains)
        v = jax.tree.map(jnp.multiply, units, state.lengths)
        wide = lambda x: widened(jnp.asarray(x))
        along = lambda p, u: jnp.sum(wide(p) * u, axis=-1, keepdims=True)

        def across(p, u, q, g, length):
            return safe_divide(g, length) * (wide(p) - u * q)

        def split(tree):
            """The gradients of the gains and of V, from one of W."""
            of_gains = jax.tree.map(along, tree, units)
            sizes = state.gains, state.lengths
            return of_gains, jax.tree.map(across, tree, units, of_gains, *sizes)

        of_gains, of_v = split(updates)
        if extra_args.get("gradient") is not None:
            _, extra_args["gradient"] = split(extra_args["gradient"])
        turns, of_direction = turn.update(of_v, state.direction, v, **extra_args)
        pulls, of_gain = stretch.update(of_gains, state.gain, state.gains)
        both: Any = turns, pulls
        both, of_rate = rate.update(both, state.rate)
        v, gains = jax.tree.map(jnp.add, (v, state.gains), both)
        lengths = jax.tree.map(row_norms, v)

        def step(w, v, length, g):
            w = jnp.asarray(w)
            return (g * safe_divide(v, length) - widened(w)).astype(w.dtype)

        steps = jax.tree.map(step, params, v, lengths, gains)
        return steps, OnDirectionsState(gains, lengths, of_direction, of_gain, of_rate)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def _units(w: Any, gains: jax.Array) -> jax.Array:
    """The directions of rows, and 0 where a gain is 0; gains may become negative."""
    return jnp.sign(gains) * safe_divide(widened(jnp.asarray(w)), jnp.abs(gains))
