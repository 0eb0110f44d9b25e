"""Running a transformation in a subspace of the rows or columns of the gradient."""

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from optax_matrix._arguments import (
    NotNegativeInt,
    Positive,
    PositiveInt,
    Rank,
    Seed,
    checked,
)
from optax_matrix._surroundings.joining import jointly
from optax_matrix._surroundings.keeping import movable, note_kept
from optax_matrix._surroundings.observation import in_another_frame
from optax_matrix.linalg.scale import is_usable
from optax_matrix.transforms.arguments import Transformation
from optax_matrix.transforms.low_rank._basis import (
    Subspace,
    identity_overlap,
    no_coordinates,
    no_vectors,
    rank_in,
)
from optax_matrix.transforms.low_rank._combine import (
    as_combining,
    back_project,
    coordinates,
    finite_or_zero,
)
from optax_matrix.transforms.low_rank._find_basis import find_basis
from optax_matrix.transforms.low_rank._moment_transport import (
    carry_moments,
    check_transport,
)
from optax_matrix.transforms.low_rank._renewal import BasisState, Renewal, numbers_of
from optax_matrix.transforms.sides import (
    ProjectedSides,
    side_views,
    turned,
    turned_back,
    turned_zeros,
)


class ProjectLowRankState(NamedTuple):
    """State of `project_low_rank`.

    Attributes:
        count: Number of updates.
        basis: Per leaf a `BasisState`.
        inner_state: State of the inner transformation, of coordinates ``(..., r, n)``.
        combine_state: State of ``combine``.
        momentum: State of the momentum, in the frame of the parameters.
    """

    count: Any
    basis: Any
    inner_state: Any
    combine_state: Any
    momentum: Any = None


@checked
def project_low_rank(
    inner: Transformation,
    *,
    combine: Any = back_project,
    rank: Rank = 128,
    side: ProjectedSides = "short",
    basis: Any = "randomized_svd",
    update_interval: PositiveInt = 200,
    phase: NotNegativeInt = 1,
    renew_below: Positive | None = None,
    stagger: bool = False,
    transport: Any = "keep",
    momentum: Transformation | None = None,
    seed: Seed = 0,
) -> optax.GradientTransformationExtraArgs:
    r"""Runs a transformation on the coordinates of the gradient in a subspace.

    .. math::
        \sigma_t = U_t^\top M_t, \qquad \omega_t = \mathrm{inner}(\sigma_t), \qquad
        \Delta_t = \mathrm{combine}(M_t, \sigma_t, \omega_t, U_t)

    where M is the gradient G or its ``momentum``. The basis U is that of G, whose
    coordinates :math:`U_t^\top G_t` ``inner`` gets as ``gradient``, as in
    `in_eigenbasis`.

    The basis U is renewed at the first update and then once every ``update_interval``
    updates. One `jax.lax.switch` covers all stacks: nothing is due, all are, or, where
    that differs, first bases are found. With ``stagger`` it has a branch for each stack
    alone, and one for several at once.

    Coordinates below :math:`8 \epsilon \sqrt m` times the norm of their column of G are
    rounding noise and are set to zero. A gradient that is not finite counts as zero,
    and a gradient of zeros does not change its basis. (Within `on_matrices`,
    ``nonfinite`` decides before that.) A matrix whose gradients have all been zero has
    no basis yet; it gets one with its first other gradient.

    At a renewal the ``transport`` decides what happens to the inner state:

    * ``"keep"`` leaves it unchanged.
    * ``"carry"`` transports the fields ``mu``, ``trace`` and ``ema``, and the statistic
      that the basis tracks, to the new basis with :math:`U_{new}^\top U_{old}`. Second
      moments and counts are kept, so quotients of the moments may be wrong for a while;
      `scale_by_second_moment` keeps them within Adam's largest value.
      `scale_by_tracked_adam` transports both moments.
    * ``"reset"`` initializes it again.
    * A function from the inner state and the tree of :math:`U_{new}^\top U_{old}`
      returns the new inner state. The statistic of the basis is transported as above.

    Args:
        inner: Any transformation of stacks ``(..., r, n)``. As ``gradient`` it gets the
            coordinates, or those of a ``gradient`` that is given (`with_gradient`).
        combine: A function of ``(gradient, projected, answer, basis)``, the arrays of
            one stack with the projected side as rows; or a transformation, such as
            `compensate` or a chain that starts with it, whose updates are the outputs
            of ``inner`` and which gets the trees ``gradient``, ``projected`` and
            ``basis`` as extra arguments.
        rank: Number of columns r: an int, clipped to the shorter side, or a float for
            a fraction of the shorter side, rounded up.
        side: Side to project: ``"short"`` or ``"long"`` (the rows of square matrices
            for both), ``"out"`` (rows), ``"in"`` (columns); or a dict that gives one of
            them for each leaf of a dict of stacks.
        basis: ``"randomized_svd"``, ``"svd"``, ``"subspace"`` (Alice's, with its
            defaults), ``"gaussian"``, ``"orthonormal"``; a basis returned by
            `transforms.subspace_basis` or `transforms.given_basis`; or functions
            ``(init, track, refresh)``, see `transforms.Basis`.
        update_interval: Number K of updates between renewals.
        phase: Offset of the renewals, which are due where ``phase + t`` is divisible by
            K, with t from 0: 1 for updates 1, K, 2K, ... (Alice), 0 for updates 1,
            K + 1, 2K + 1, ... (GaLore).
        renew_below: Norm :math:`\varsigma` of the coordinates in the old basis,
            :math:`\|U^\top G_t\|_F \leq \varsigma`, at which a matrix gets a new basis
            besides; None for no such renewals.
        stagger: Whether to renew stacks in turn, spread evenly over K updates, each
            under its own condition, instead of all at once. A matrix has the turn of
            its stack, which depends on the bound of stacks and on their placement.
        transport: Change of the inner state at a renewal: ``"keep"``, ``"carry"``,
            ``"reset"`` or a function, see above.
        momentum: Transformation from gradients to M, such as `momentum`
            (``om.momentum(0.9)``), in the frame of the parameters, so that a renewal
            does not change it; None for M = G.
        seed: Seed of the random numbers. Inside `on_matrices` those of a matrix depend
            on its path and its place in its leaf; elsewhere all matrices of a stack
            have the same.

    Returns:
        A transformation of trees whose leaves are ``(..., m, n)``.

    Raises:
        ValueError: If an argument is out of range; at `init`, if ``transport="carry"``
            does not support a state of ``inner``.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax
        >>> import optax_matrix as om
        >>> tx = om.project_low_rank(optax.scale(2.0), rank=1)
        >>> w = {"w": jnp.diag(jnp.array([3.0, 1.0]))}
        >>> print(tx.update(w, tx.init(w))[0]["w"].round(1))
        [[6. 0.]
         [0. 0.]]

        Adam whose momentum is whole, so that it outlasts the bases:

        >>> adam = om.scale_by_second_moment(0.99, bias_correction=True)
        >>> average = om.momentum(0.9, bias_correction=True)
        >>> tx = om.project_low_rank(adam, rank=1, momentum=average)
        >>> print(tx.update(w, tx.init(w))[0]["w"].round(1))
        [[1. 0.]
         [0. 0.]]

    References:
        Zhao et al., `GaLore <https://arxiv.org/abs/2403.03507>`_, 2024, Algorithm 2;
        Structured Fisher (Alice), Algorithm 4; SUMO, Algorithm 1 (with the alternative
        criterion of a renewal, on which its Theorem 3.8 rests).
    """
    found = find_basis(basis)
    check_transport(transport, found.stored, stagger, renew_below)

    block = _ProjectLowRank(
        inner=optax.with_extra_args_support(inner),
        combine=as_combining(combine),
        rank=rank,
        side=side,
        renewal=Renewal(found, update_interval, phase, stagger, seed, renew_below),
        transport=carry_moments if transport == "carry" else transport,
        momentum=momentum,
    )
    return optax.GradientTransformationExtraArgs(block.init, block.update)


@dataclasses.dataclass(frozen=True)
class _ProjectLowRank:
    inner: optax.GradientTransformationExtraArgs
    combine: optax.GradientTransformationExtraArgs
    rank: Any
    side: Any
    renewal: Renewal
    transport: Any
    momentum: optax.GradientTransformation | None

    def init(self, params: Any) -> ProjectLowRankState:
        seen = turned_zeros(side_views(self.side, params), params)
        sigma = jax.tree.map(partial(no_coordinates, self.rank), seen)
        inner_state = self.inner.init(sigma)
        if callable(self.transport):  # Reject unsupported states at `init`.
            overlaps = jax.tree.map(identity_overlap, sigma)
            jax.eval_shape(self.transport, inner_state, overlaps)
        return ProjectLowRankState(
            count=jnp.zeros((), jnp.int32),
            basis=jax.tree.map(self._no_basis, seen, sigma),
            inner_state=inner_state,
            combine_state=self.combine.init(seen),
            momentum=None if self.momentum is None else self.momentum.init(params),
        )

    def update(
        self, updates: Any, state: Any, params: Any = None, **extra_args: Any
    ) -> tuple[Any, ProjectLowRankState]:
        del params
        views = side_views(self.side, updates)
        given = extra_args.pop("gradient", None)
        gradient = turned(views, updates)
        basis, held, inner_state = self._bases(gradient, state)
        sigma = jax.tree.map(coordinates, gradient, basis)
        track = lambda x, h: h._replace(tracked=self.renewal.basis.track(h.tracked, x))
        held = jax.tree.map(track, sigma, held)
        extra_args["gradient"] = sigma
        if given is not None and given is not updates:
            extra_args["gradient"] = jax.tree.map(
                coordinates, turned(views, given), basis
            )
        mean, momentum = gradient, None
        if self.momentum is not None:
            live = jax.tree.map(finite_or_zero, updates)
            mean, momentum = self.momentum.update(live, state.momentum)
            mean = turned(views, mean)
            sigma = jax.tree.map(coordinates, mean, basis)
        with in_another_frame():
            omega, inner_state = self.inner.update(sigma, inner_state, **extra_args)
        extra_args |= {"gradient": mean, "projected": sigma, "basis": basis}
        out, combined = self.combine.update(omega, state.combine_state, **extra_args)
        count = optax.safe_increment(state.count)
        new = ProjectLowRankState(count, held, inner_state, combined, momentum)
        return turned_back(views, out, updates), new

    def _bases(self, gradient: Any, state: Any) -> tuple[Any, Any, Any]:
        """Trees of the bases and of their states, and the inner state."""
        leaves, structure = jax.tree.flatten(gradient)
        keys = self.renewal.keys(state.count, numbers_of(gradient))
        if not self.renewal.basis.stored:
            found = jointly(self._drawn, *(dict(enumerate(x)) for x in (leaves, keys)))
            basis = structure.unflatten(found.values())
            return basis, state.basis, state.inner_state
        carry = structure.flatten_up_to(state.basis), state.inner_state
        for x, held in zip(leaves, carry[0], strict=True):
            self._check_held(x, held.vectors)
        move = self._move(structure, leaves)
        live = jax.tree.leaves(movable(jax.tree.map(is_usable, gradient)))
        run = partial(self.renewal.run, state.count, leaves, live, keys)
        held, inner_state = run(carry, move)
        basis = structure.unflatten([h.vectors for h in held])
        note_kept(basis, structure.unflatten([h.vectors for h in carry[0]]))
        return basis, structure.unflatten(held), inner_state

    def _drawn(self, g: jax.Array, key: jax.Array) -> jax.Array:
        view = Subspace(g, None, None, key, rank_in(self.rank, g))
        return self.renewal.basis.refresh(view)

    def _move(self, structure: Any, leaves: list) -> Any:
        """How the inner state changes with the bases; None for no change."""
        if self.transport == "keep":
            return None
        if self.transport == "reset":
            zeros = [no_coordinates(self.rank, x) for x in leaves]
            sigma = structure.unflatten(zeros)
            return lambda *_: self.inner.init(sigma)
        return lambda state, c: self.transport(state, structure.unflatten(c))

    def _check_held(self, seen: jax.Array, vectors: jax.Array) -> None:
        expected = (*seen.shape[:-1], rank_in(self.rank, seen))
        if vectors.shape != expected:
            raise ValueError(
                f"`state` must hold bases of shape {expected}, got {vectors.shape}: it "
                "was made with another rank or side; use those, or make a new state."
            )

    def _no_basis(self, seen: jax.Array, sigma: jax.Array) -> BasisState:
        basis = self.renewal.basis
        vectors = no_vectors(self.rank, seen) if basis.stored else None
        return BasisState(vectors, basis.init(sigma))
