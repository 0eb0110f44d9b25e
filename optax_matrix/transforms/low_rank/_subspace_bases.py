"""Bases of subspaces: singular vectors, tracked eigenvectors, random columns."""

from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from optax_matrix._arguments import (
    Decay,
    Kernel,
    NotNegativeInt,
    PositiveInt,
    Rank,
    checked,
)
from optax_matrix.linalg import (
    cholesky_qr,
    left_vectors,
    randomized_left_vectors,
    subspace_iteration,
)
from optax_matrix.linalg.precision import statistics
from optax_matrix.linalg.random import normal
from optax_matrix.linalg.scale import is_some, peak_or_one
from optax_matrix.transforms.low_rank._basis import (
    Basis,
    Subspace,
    nothing_tracked,
    rank_of,
    tracked_as_it_was,
)
from optax_matrix.transforms.low_rank._switching import SWITCHES, Draw, Sampling, Switch
from optax_matrix.transforms.second_moments.gram import Gram, mix_gram, no_gram, scaled

Start = Literal["randomized", "exact"]
_FIRST_STEPS = 10  # Steps of subspace iteration from random columns.


@checked
def svd_basis(
    method: Start = "randomized",
    *,
    oversampling: NotNegativeInt = 8,
    iterations: PositiveInt = 3,
    qr: Kernel = cholesky_qr,
) -> Basis:
    """A basis of leading left singular vectors of the gradient (GaLore, SUMO).

    Args:
        method: ``"randomized"`` (`linalg.randomized_left_vectors`), or ``"exact"``, an
            SVD of the shorter side.
        oversampling: Number of extra columns, as in `linalg.randomized_left_vectors`.
        iterations: Number of iterations, as in `linalg.randomized_left_vectors`.
        qr: Kernel that orthonormalizes columns, `linalg.cholesky_qr` or
            `linalg.qr_householder`.

    Returns:
        A basis for `project_low_rank` that tracks nothing.

    Raises:
        ValueError: If an argument is out of range.
    """

    def refresh(s: Subspace) -> jax.Array:
        if method == "exact":
            return left_vectors(s.gradient, s.rank)
        return randomized_left_vectors(
            s.gradient,
            s.rank,
            s.key,
            oversampling=oversampling,
            iterations=iterations,
            qr=qr,
        )

    return Basis(nothing_tracked, tracked_as_it_was, refresh)


@checked
def subspace_basis(
    decay: Decay = 0.999,
    *,
    leading: Rank = 40,
    switch: Switch = "complement",
    sampling: Sampling = "columns",
    start: Start = "randomized",
    tracks: bool | None = None,
    qr: Kernel = cholesky_qr,
) -> Basis:
    r"""A basis from subspace iteration on a tracked average, with switching (Alice).

    .. math::
        \tilde Q_t = \beta_3 \tilde Q_{t-1} + (1 - \beta_3) \sigma_t \sigma_t^\top,
        \qquad Q = \beta_3 U \tilde Q U^\top + (1 - \beta_3) G G^\top, \qquad
        U \leftarrow [\, U'_{\cdot, 1 \dots l}, \; S \,]

    where :math:`U'` are the r Ritz vectors of Q after one step of subspace iteration
    from U; where there is no U yet, after ten steps from random columns. The l
    ``leading`` vectors are kept. The ``switch`` determines S:

    ================  ==================================================================
    ``complement``    drawn from the complement of all r Ritz vectors (Alice); if that
                      has fewer than r - l dimensions, more Ritz vectors are kept
    ``full_basis``    drawn from the complement of the l leading vectors
    ``gaussian_mix``  normal columns of norm one
    ``gaussian``      normal columns of norm one, which replace the l leading ones too
    ``none``          the other Ritz vectors
    ================  ==================================================================

    Args:
        decay: Decay rate :math:`\beta_3`.
        leading: Number l: an int, clipped to the rank (nothing is switched then), or a
            float for a fraction of the rank.
        switch: A name from the table.
        sampling: How to draw from a complement: ``"columns"`` for columns of a complete
            QR (the paper), which are nearly unit vectors; ``"subspace"`` for a
            uniformly random subspace. Adam's second moments depend on the choice.
        start: The first :math:`U'`: ``"randomized"``, as above, or ``"exact"``, the
            leading left singular vectors of G from an SVD.
        tracks: Whether to track :math:`\tilde Q`; None for ``decay != 0``, which is
            True for a traced decay.
        qr: Kernel that orthonormalizes columns.

    Returns:
        A basis for `project_low_rank`.

    Raises:
        ValueError: If an argument is out of range.

    References:
        Structured Fisher (Alice), Algorithms 2, 4 and 10; ablations of Figure 5(b).
    """
    if tracks is None:
        tracks = not (isinstance(decay, int | float) and decay == 0)

    def switched(ritz: jax.Array, s: Subspace) -> jax.Array:
        l = rank_of(leading, s.rank)
        draw = Draw(s.key, sampling, qr)
        return SWITCHES[switch](ritz, l, draw)

    def refresh(s: Subspace) -> jax.Array:
        core, scale = _factored(s, decay, tracks)
        u, known, finds = s.vectors, is_some(s.vectors), is_some(s.gradient)
        u = jnp.where(known, u, normal(s.key, u.shape[:-2], *u.shape[-2:], u.dtype))
        steps = jnp.where(known | ~finds, 1, _FIRST_STEPS)[..., 0, 0]
        ritz = subspace_iteration(
            *(u, core, s.gradient),
            scale=scale,
            iterations=steps,
            most=_FIRST_STEPS,
            qr=qr,
        )[1]
        return switched(ritz, s)

    def mix(gram: Gram, sigma: jax.Array) -> Gram:
        return mix_gram(gram, scaled(sigma), decay)

    def first(s: Subspace) -> jax.Array:
        return switched(left_vectors(s.gradient, s.rank), s)

    return Basis(
        init=no_gram if tracks else nothing_tracked,
        track=mix if tracks else tracked_as_it_was,
        refresh=refresh,
        start=first if start == "exact" else None,
        move=_turned_gram if tracks else None,
    )


@checked
def gaussian_basis(*, stored: bool = False) -> Basis:
    r"""A basis of normal numbers with variance 1/r: projections preserve mean norms.

    Args:
        stored: Whether the basis is part of the state. If not, it is drawn at every
            update from the key of the last renewal (APOLLO).

    Returns:
        A basis for `project_low_rank`.
    """

    def refresh(s: Subspace) -> jax.Array:
        shape = s.gradient.shape
        x = normal(s.key, shape[:-2], shape[-2], s.rank, s.gradient.dtype)
        return x * s.rank**-0.5

    return Basis(nothing_tracked, tracked_as_it_was, refresh, stored=stored)


@checked
def orthonormal_basis(
    *,
    stored: bool = True,
    qr: Kernel = cholesky_qr,
) -> Basis:
    """An orthonormal basis of a uniformly random subspace.

    Args:
        stored: Whether the basis is part of the state, as in `gaussian_basis`.
        qr: Kernel that orthonormalizes columns.

    Returns:
        A basis for `project_low_rank`.
    """
    draw = gaussian_basis().refresh
    return Basis(
        nothing_tracked, tracked_as_it_was, lambda s: qr(draw(s)), stored=stored
    )


@checked
def given_basis(find: Kernel) -> Basis:
    """A basis of the user's: a fixed one, or one found by a function of the user's.

    Args:
        find: Function from a `Subspace` to columns ``(..., m, r)``, called at every
            renewal, for example ``lambda s: jnp.eye(s.gradient.shape[-2], s.rank)``.
            The columns should be orthonormal. One matrix serves the whole stack.

    Returns:
        A basis for `project_low_rank` that tracks nothing.

    Raises:
        ValueError: If ``find`` is no function; at `update`, if the columns do not have
            the shape ``(m, r)``.

    Examples:
        >>> import jax.numpy as jnp, optax, optax_matrix as om
        >>> basis = om.transforms.given_basis(lambda s: jnp.array([[0.0], [1.0]]))
        >>> tx = om.project_low_rank(optax.identity(), rank=1, basis=basis)
        >>> w = {"w": jnp.array([[3.0, 1.0], [2.0, 5.0]])}
        >>> tx.update(w, tx.init(w))[0]["w"].tolist()
        [[0.0, 0.0], [2.0, 5.0]]
    """

    def refresh(s: Subspace) -> jax.Array:
        found, shape = jnp.asarray(find(s)), (*s.gradient.shape[:-1], s.rank)
        if found.ndim < 2 or found.shape not in (shape, shape[-2:]):
            raise ValueError(
                f"`basis` must return columns of shape {shape[-2:]}, with or without "
                f"the batch axes of {shape}, got {found.shape}; the rows are those of "
                "the projected side."
            )
        return jnp.broadcast_to(found.astype(s.gradient.dtype), shape)

    return Basis(nothing_tracked, tracked_as_it_was, refresh)


def _factored(s: Subspace, decay: ArrayLike, tracks: bool) -> tuple[Any, jax.Array]:
    """A and c of ``Q = U A U' + c^2 G G'``, up to a common scale."""
    peak = peak_or_one(s.gradient)
    if not tracks:
        return None, 1 / peak
    gram: Gram = s.tracked
    decay = jnp.asarray(decay, gram.normalized.dtype)
    scale = jnp.maximum(jnp.sqrt(decay) * gram.peak, peak)
    core = decay * (gram.peak / scale) ** 2 * gram.normalized
    return core, jnp.sqrt(1 - decay) / scale


def _turned_gram(gram: Gram, c: jax.Array) -> Gram:
    return gram._replace(normalized=statistics(statistics(c, gram.normalized), c.mT))
