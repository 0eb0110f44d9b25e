"""Adam in a subspace that moves at every step, with error feedback (LDAdam)."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from optax_matrix._arguments import Decay, Dtype, Kernel, Rank, Seed, checked
from optax_matrix.linalg import cholesky_qr, overlap
from optax_matrix.linalg.precision import project, roots
from optax_matrix.linalg.scale import unit_peak
from optax_matrix.transforms.low_rank._basis import (
    Subspace,
    no_coordinates,
    no_vectors,
)
from optax_matrix.transforms.low_rank._combine import coordinates, finite_or_zero
from optax_matrix.transforms.low_rank._next_bases import next_bases
from optax_matrix.transforms.low_rank._subspace_bases import Start, svd_basis
from optax_matrix.transforms.low_rank._tracked_moments import TrackedMoments
from optax_matrix.transforms.sides import (
    ProjectedSides,
    side_views,
    turned,
    turned_back,
    turned_zeros,
)


class ScaleByTrackedAdamState(NamedTuple):
    """State of `scale_by_tracked_adam`; the projected side is the rows.

    Attributes:
        count: Number of updates.
        vectors: Per leaf the basis P, ``(..., m, r)``, at least float32.
        mu: Per leaf the averaged coordinates, ``(..., r, n)``.
        root: Per leaf the root of their averaged squares, at least float32.
        error: Per leaf the part that the subspaces left out, ``(..., m, n)``; None
            without error feedback.
    """

    count: Any
    vectors: Any
    mu: Any
    root: Any
    error: Any


@checked
def scale_by_tracked_adam(
    b1: Decay = 0.908,
    b2: Decay = 0.99,
    *,
    rho: Decay = 0.908,
    rank: Rank = 16,
    side: ProjectedSides = "short",
    error_feedback: bool = True,
    start: Start = "randomized",
    seed: Seed = 0,
    qr: Kernel = cholesky_qr,
    mu_dtype: Dtype | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Runs Adam in a subspace that takes one power step at every update.

    .. math::
        A_t = G_t + E_t, \qquad
        B_t = \rho \, P_{t-1} \hat{M}_{t-1} + (1 - \rho) A_t, \qquad
        P_t = \mathrm{qr}(B_t B_t^\top P_{t-1})

    The moments in the new basis are estimated from those in the old one. With
    :math:`C = P_t^\top P_{t-1}` and hats for bias correction,

    .. math::
        \tilde M = C M_{t-1}, \qquad
        \tilde V = (1 - \beta_2^{t-1}) \,
        | C^{\circ 2} (\hat V_{t-1} - \hat M_{t-1}^2) + (C \hat M_{t-1})^2 |

    Then Adam takes a step with :math:`P_t^\top A_t`. The part that was left out is
    added to the next gradient:

    .. math::
        E_{t+1} = A_t - P_t P_t^\top A_t
        + \frac{\beta_1}{1 - \beta_1} (P_{t-1} M_{t-1} - P_t \tilde M)

    Args:
        b1: Decay rate of the momentum.
        b2: Decay rate of the second moment.
        rho: Weight of the momentum in the matrix B that the basis follows.
        rank: Number of columns r, as in `project_low_rank`.
        side: Side to project, as in `project_low_rank`.
        error_feedback: Whether to keep E, ``m n`` numbers; if not, E is zero.
        start: How to find the first basis, leading left singular vectors:
            ``"randomized"`` or ``"exact"``.
        seed: Seed of the random numbers, as in `project_low_rank`.
        qr: Kernel that orthonormalizes columns, as in `rotate`.
        mu_dtype: Dtype of the momentum and the error; None for float32.

    Returns:
        A transformation of trees whose leaves are ``(..., m, n)``.

    Raises:
        ValueError: If an argument is out of range.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> tx = om.transforms.scale_by_tracked_adam(rank=1)
        >>> w = {"w": jnp.diag(jnp.array([3.0, 5.0]))}
        >>> updates, state = tx.update(w, tx.init(w))
        >>> abs(updates["w"].round(3)).tolist(), state.error["w"].round(3).tolist()
        ([[0.0, 0.0], [0.0, 1.0]], [[3.0..., 0.0], [0.0, 0.0]])

    References:
        Robert et al., `LDAdam <https://arxiv.org/abs/2410.16103>`_, 2024; as in the
        authors' code, which keeps E in the buffer of the gradient. Deviations: no
        epsilon, as nothing is divided by zero; coordinates that are rounding noise are
        set to zero, as in `project_low_rank`, and so are gradients that are not finite;
        the state holds the square root of V, so that nothing overflows; ratios beyond
        Adam's largest are reduced, as in `scale_by_second_moment`: the difference of
        :math:`\hat V` and :math:`\hat M^2` may leave almost nothing of V, and single
        coordinates then were five times beyond it. If ``b1`` or ``b2`` changes between
        steps, the bias corrections are those of their current values.
    """
    block = _TrackedAdam(
        adam=TrackedMoments(b1, b2),
        rho=rho,
        rank=rank,
        side=side,
        error_feedback=error_feedback,
        first=svd_basis(start, qr=qr).refresh,
        seed=seed,
        qr=qr,
        mu_dtype=mu_dtype,
    )
    return optax.GradientTransformationExtraArgs(block.init, block.update)


@dataclasses.dataclass(frozen=True)
class _TrackedAdam:
    adam: TrackedMoments
    rho: ArrayLike
    rank: Any
    side: Any
    error_feedback: bool
    first: Callable[[Subspace], jax.Array]
    seed: int
    qr: Any
    mu_dtype: Any

    def init(self, params: Any) -> ScaleByTrackedAdamState:
        seen = turned_zeros(side_views(self.side, params), params)

        moments = partial(no_coordinates, self.rank)
        # Each array is a new one: a state with shared arrays cannot be donated.
        error = lambda x: x.astype(self.mu_dtype or x.dtype)
        return ScaleByTrackedAdamState(
            count=jnp.zeros((), jnp.int32),
            vectors=jax.tree.map(partial(no_vectors, self.rank), seen),
            mu=jax.tree.map(partial(moments, dtype=self.mu_dtype), seen),
            root=jax.tree.map(moments, seen),
            error=jax.tree.map(error, seen) if self.error_feedback else None,
        )

    def update(
        self, updates: Any, state: Any, params: Any = None, **extra_args: Any
    ) -> tuple[Any, ScaleByTrackedAdamState]:
        del params, extra_args
        views = side_views(self.side, updates)
        seen = jax.tree.map(finite_or_zero, turned(views, updates))
        if state.error is not None:
            seen = jax.tree.map(lambda g, e: g + e.astype(g.dtype), seen, state.error)
        step = partial(self._power_step, state.count)
        trees = seen, state.vectors, state.mu
        vectors = next_bases(step, *trees, first=self.first, seed=self.seed)
        structure = jax.tree.structure(updates)
        trees = (seen, state.vectors, vectors, state.mu, state.root)
        stacks = zip(*map(structure.flatten_up_to, trees), strict=True)
        steps = [self._step(state.count, *stack) for stack in stacks]
        out, mu, root, error = (
            structure.unflatten([step[i] for step in steps]) for i in range(4)
        )
        error = error if self.error_feedback else None
        count = optax.safe_increment(state.count)
        state = ScaleByTrackedAdamState(count, vectors, mu, root, error)
        return turned_back(views, out, updates), state

    def _power_step(
        self, count: jax.Array, x: jax.Array, u: jax.Array, mu: jax.Array
    ) -> jax.Array:
        mean = self.adam.mean(mu.astype(x.dtype), count)
        rho = jnp.asarray(self.rho, x.dtype)
        b, _ = unit_peak(rho * project(u, mean) + (1 - rho) * x)
        return self.qr(unit_peak(project(b, project(b.mT, u)))[0], previous=u)

    def _step(self, count, x, old, new, mu, root):
        """The update of one stack, its new moments and its error."""
        sigma, change, dtype = coordinates(x, new), overlap(new, old), mu.dtype
        mu = mu.astype(x.dtype)
        carried = project(change, mu)
        root = self.adam.carried_root(change, mu, root, count)
        left = x - roots(new, sigma)
        lost = roots(old, mu) - roots(new, carried)
        b1 = jnp.asarray(self.adam.b1, x.dtype)
        error = left + b1 / (1 - b1) * lost
        out, mu, root = self.adam.step(sigma, carried, root, count + 1)
        return project(new, out), mu.astype(dtype), root, error.astype(dtype)
