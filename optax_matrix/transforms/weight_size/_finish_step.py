"""Steps that end by the size of the weights: on a sphere, relative, braked, floored."""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from optax_matrix._arguments import Positive, Rate, Share, checked
from optax_matrix.linalg.scale import matrix_norm, resized, safe_divide, widened

Rule = Literal["hyperball", "relative_update", "radial_brake", "row_floor"]


class FinishStepState(NamedTuple):
    """State of `finish_step`.

    Attributes:
        radius: Per leaf the norms of the weights at `init`, ``(...)``, at least
            float32; None for other rules than ``"hyperball"`` and the current radius.
        rate: The state of the learning rate: a count, if it is a schedule.
    """

    radius: Any
    rate: Any


@checked
def finish_step(
    rule: Rule,
    learning_rate: Rate = 1.0,
    *,
    radius: Literal["initial", "current"] = "initial",
    outward: Share = 0.5,
    floor: Positive = 0.3825,
) -> optax.GradientTransformationExtraArgs:
    r"""Makes the last step of a chain, of a size that the size of the weights decides.

    With :math:`N(X) = X / \|X\|_F` and rows :math:`w_i, d_i` of :math:`W, \Delta`:

    * ``"hyperball"`` steps along the sphere of the initial norm
      :math:`R = \|W_0\|_F`: :math:`W' = R \, N(W + \eta R \, N(\Delta))`
    * ``"relative_update"`` has the length of the weights and does not project:
      :math:`W' = W + \eta \|W\|_F N(\Delta)`
    * ``"radial_brake"`` keeps a share s of what the norm of
      :math:`V = W + \eta \Delta` has grown by:
      :math:`W' = (\|W\| + s (\|V\| - \|W\|)) \, N(V)`, and :math:`W' = V` where it
      has not grown
    * ``"row_floor"`` lengthens short rows: :math:`w_i' = w_i + \eta d_i
      \max(1, \phi \|w_i\| / \|d_i\|)`

    :math:`\Delta` is that of a descent, as the updates of an optimizer are. For the
    first two rules only its direction counts. The brake takes finished steps, so its
    learning rate is 1; the floor is relative to updates of learning rate 1. An update
    of zeros moves nothing (but weights that were changed from outside come back to the
    norm R), and with the first two rules weights of zeros stay zero.

    Args:
        rule: One of these names.
        learning_rate: The rate :math:`\eta`, a number or a schedule.
        radius: Which norm ``"hyperball"`` keeps: the ``"initial"`` one, or the
            ``"current"`` one, which stores nothing but follows what rounding does.
        outward: The share s, in [0, 1], of ``"radial_brake"``.
        floor: The least ratio :math:`\phi` of ``"row_floor"``.

    Returns:
        A transformation of trees whose leaves are ``(..., m, n)``. It needs parameters
        (``on_matrices(..., needs_params=True)``), and it must be the last of a chain:
        its updates are finished steps, which nothing may rescale.

    Raises:
        ValueError: If an argument is out of range; at `update`, without parameters.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax, optax_matrix as om
        >>> tx, w = om.transforms.finish_step("hyperball", 0.75), jnp.array([[2.0, 0]])
        >>> steps, _ = tx.update(jnp.array([[0.0, 9.0]]), tx.init(w), w)
        >>> (w + steps).round(3).tolist()
        [[1.6..., 1.2...]]

        Around an optimizer of the whole tree:

        >>> brake = om.transforms.finish_step("radial_brake")
        >>> tx = optax.chain(om.muon(0.02), om.on_matrices(brake, needs_params=True))

    References:
        Wen et al., `Hyperball <https://arxiv.org/abs/2606.16899>`_, 2026, in the form
        of the authors' `report
        <https://whenwen.github.io/blog/2025/weight-decay-hyperball-part-1/>`_ of 2025.
        The brake and the relative update are the hooks of `Emerging-Optimizers
        <https://github.com/NVIDIA-NeMo/Emerging-Optimizers>`_. The brake of
        modded-nanogpt's track 3 (record 29) scales the radial part of the update and
        gives the new weights the norm that this part alone leads to; its floor is that
        of record 46 (record 9 has one of 0.35 for whole matrices).
    """
    rate = optax.scale_by_learning_rate(learning_rate, flip_sign=False)
    is_fixed = rule == "hyperball" and radius == "initial"

    def before(d, w, norm):
        """The update to which the learning rate applies."""
        d, w = widened(d), widened(jnp.asarray(w))
        if rule in ("hyperball", "relative_update"):
            return resized(d, norm[..., None, None])
        if rule == "row_floor":
            least: Any = floor * _row_norms(w)
            return d * jnp.maximum(1, safe_divide(least, _row_norms(d)))
        return d

    def after(step, w, norm):
        """The step, from what the learning rate leaves."""
        new, norm = widened(w) + step, norm[..., None, None]
        if rule == "hyperball":
            step = resized(new, norm) - widened(w)
        if rule == "radial_brake":
            change = matrix_norm(new) - norm
            braked = resized(new, norm + outward * change) - widened(w)
            step = jnp.where(change > 0, braked, step)
        return step.astype(w.dtype)

    def init_fn(params):
        return FinishStepState(_norms(params) if is_fixed else None, rate.init(params))

    def update_fn(updates, state, params=None, **extra_args):
        del extra_args
        if params is None:
            raise ValueError(
                "`params` must be passed to `update`: the size of the weights decides "
                "the step; call tx.update(updates, state, params)."
            )
        norms = state.radius if is_fixed else _norms(params)
        directions = jax.tree.map(before, updates, params, norms)
        steps, new_rate = rate.update(directions, state.rate)
        steps = jax.tree.map(after, steps, params, norms)
        return steps, FinishStepState(state.radius, new_rate)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def _norms(tree: Any) -> Any:
    return jax.tree.map(lambda w: matrix_norm(jnp.asarray(w))[..., 0, 0], tree)


def _row_norms(x: jax.Array) -> jax.Array:
    return matrix_norm(x[..., None, :])[..., 0]
