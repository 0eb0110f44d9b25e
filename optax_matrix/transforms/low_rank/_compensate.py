"""Compensation: an update from the residual of the projection (Alice, Fira)."""

from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from optax_matrix._arguments import AtLeastOne, Decay, NotNegative, checked
from optax_matrix.linalg.precision import project, roots
from optax_matrix.linalg.scale import column_norms, matrix_norm, resized, safe_divide
from optax_matrix.transforms.equilibration import equilibrate_with_ema
from optax_matrix.transforms.update_size import limit_norm_growth

Compensation = Literal["optimal", "fira", "fira_plus"]


class CompensateState(NamedTuple):
    """State of `compensate`.

    Attributes:
        equilibration: State of the averaged column norms; None except for
            ``"optimal"``.
        limiter: State of `limit_norm_growth`; None for ``"fira_plus"``.
    """

    equilibration: Any
    limiter: Any


@checked
def compensate(
    kind: Compensation = "optimal",
    *,
    scale: NotNegative = 1.0,
    decay: Decay = 0.9,
    limiter: AtLeastOne = 1.01,
    max_shrink: AtLeastOne | None = 2.0,
    min_share: NotNegative = 0.1,
) -> optax.GradientTransformationExtraArgs:
    r"""Adds a term from the residual of the projection to a low-rank update.

    .. math::
        \Delta = U \omega + \alpha_c C, \qquad E = G - U \sigma

    ==============  ====================================================================
    ``optimal``     :math:`C = \sqrt{m - r}\, E \,\mathrm{diag}(p)^{-1/2}`, limited,
                    with :math:`p = \beta p + (1 - \beta) \|E_{\cdot i}\|^2`: the
                    residual with equilibrated columns
    ``fira``        :math:`C_{\cdot i} = E_{\cdot i}\,
                    \|\omega_{\cdot i}\| / \|\sigma_{\cdot i}\|`, limited
    ``fira_plus``   C of ``fira``, rescaled to :math:`\|U \omega\|_F`
    ==============  ====================================================================

    No column of the first kind exceeds the norm :math:`\sqrt{(m - r) / (1 - \beta)}`,
    and Fira+ as a whole not that of :math:`U \omega`. No column of ``fira`` exceeds
    :math:`\sqrt{m / r} / s` times that of :math:`\omega`, where s is ``min_share``.

    "Limited" means by `limit_norm_growth`. Columns of the residual that are rounding
    noise relative to the columns of G are set to zero; at r = m this is all of them.
    The state is n + 1 numbers per matrix, 1 for ``"fira"``, none for ``"fira_plus"``.

    Args:
        kind: A name from the table.
        scale: Factor :math:`\alpha_c`.
        decay: Decay rate :math:`\beta` of ``"optimal"``.
        limiter: Largest factor by which the norm of C grows per step.
        max_shrink: Largest factor by which the remembered norm falls per step, as in
            `limit_norm_growth`; None for no bound, as in the papers.
        min_share: With ``"fira"``, the smallest norm of a column of :math:`\sigma`,
            relative to :math:`\sqrt{r / m} \, \|E_{\cdot i}\|`. It bounds columns of
            which the basis holds next to nothing; 0 for no bound, as in the paper.

    Returns:
        A transformation for the ``combine`` of `project_low_rank`. Its updates are the
        :math:`\omega`, and it needs ``gradient``, ``projected`` and ``basis`` as extra
        arguments.

    Raises:
        ValueError: If an argument is out of range; at `update`, if it is not used as a
            ``combine``.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax
        >>> import optax_matrix as om
        >>> combine = om.compensate("fira")
        >>> tx = om.project_low_rank(optax.identity(), combine=combine, rank=1)
        >>> w = {"w": jnp.array([[3.0, 0.0], [1.0, 2.0]])}
        >>> updates, _ = tx.update(w, tx.init(w))
        >>> bool(jnp.allclose(updates["w"], w["w"]))  # U U'G + (I - U U')G
        True

    References:
        Structured Fisher (Alice), Algorithm 3, Theorem 5.1 and Section F.7 (Fira+);
        Chen et al., `Fira <https://arxiv.org/abs/2410.01623>`_, 2024. Deviations: p is
        the average of squared norms of the residual itself, not of the difference of
        squared norms, which rounding can make negative; a zero residual does not change
        p; ``max_shrink``; ``min_share``; the residual is :math:`G - U U^\top G`, as in
        Fira's paper, while Fira's code subtracts the low-rank update with its scale.
        Fira+ rescales after limiting, so the limiter has no effect and is left out.
    """
    norms = equilibrate_with_ema(lambda x: (None, column_norms(x)), decay)
    sum_up = partial(_added, scale)
    limit = limit_norm_growth(limiter, max_shrink=max_shrink)

    def init_fn(params):
        return CompensateState(
            norms.init(params) if kind == "optimal" else None,
            None if kind == "fira_plus" else limit.init(params),
        )

    def update_fn(
        updates,
        state,
        params=None,
        *,
        gradient=None,
        projected=None,
        basis=None,
        **extra_args,
    ):
        del params, extra_args
        if basis is None:
            raise ValueError(
                "`compensate` must be the `combine` of project_low_rank, which passes "
                "gradient, projected and basis, but it got no basis."
            )
        c = jax.tree.map(residual, gradient, projected, basis)
        equilibration, limited = state
        if kind == "optimal":
            c, equilibration = norms.update(c, equilibration)
            c = jax.tree.map(_times_root, c, basis)
        else:
            c = jax.tree.map(partial(_as_scaled, min_share), c, updates, projected)
        if kind == "fira_plus":
            c = jax.tree.map(lambda c, x: resized(c, matrix_norm(x)), c, updates)
        else:
            c, limited = limit.update(c, limited)
        added = jax.tree.map(sum_up, updates, basis, c)
        return added, CompensateState(equilibration, limited)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def residual(g: jax.Array, sigma: jax.Array, u: jax.Array) -> jax.Array:
    """The part of a gradient that the basis does not span; noise is set to zero."""
    if u.shape[-1] >= u.shape[-2]:
        return jnp.zeros_like(g)
    e = g - roots(u, sigma)
    noise = 8 * jnp.finfo(e.dtype).eps * e.shape[-2] ** 0.5
    live = column_norms(e) > noise * column_norms(g)
    return jnp.where(live[..., None, :], e, 0)


def _times_root(c: jax.Array, u: jax.Array) -> jax.Array:
    return c * max(u.shape[-2] - u.shape[-1], 0) ** 0.5


def _as_scaled(
    min_share: ArrayLike, e: jax.Array, omega: jax.Array, sigma: jax.Array
) -> jax.Array:
    held = column_norms(sigma)
    share = min_share * (sigma.shape[-2] / e.shape[-2]) ** 0.5
    least = jnp.maximum(held, share * column_norms(e))
    # In this order, because the quotient of the norms alone may overflow.
    c = safe_divide(e, jnp.where(held == 0, 0, least)[..., None, :])
    return c * column_norms(omega)[..., None, :]


def _added(scale: ArrayLike, omega: jax.Array, u: jax.Array, c: jax.Array) -> jax.Array:
    return project(u, omega.astype(u.dtype)) + jnp.asarray(scale, c.dtype) * c
