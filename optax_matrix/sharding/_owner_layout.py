"""The layout of whole matrices that are spread over owners."""

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Array

from optax_matrix._mesh import shards
from optax_matrix._thresholds import Thresholds
from optax_matrix.matrices.pairs import Pairs
from optax_matrix.matrices.statistics import Sides, to_pieces
from optax_matrix.matrices.view import MatrixView, Side
from optax_matrix.sharding._bundles import Bundle, bundled, without
from optax_matrix.sharding._exchange import Exchange
from optax_matrix.sharding._ownership import Ownership
from optax_matrix.sharding._param_specs import Spec
from optax_matrix.sharding._pools import from_owners, to_owners
from optax_matrix.sharding._state_pools import StatePool, state_pools
from optax_matrix.sharding._teams import LastRound, Team
from optax_matrix.stacks.identities import FILLER
from optax_matrix.stacks.layout import Layout

_FILLER = np.array(FILLER, np.uint32)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnerLayout(Layout):
    """A layout whose stacks are spread over the devices of the owner axes.

    ``groups`` describe whole stacks. Inside `shard_map`, `on_device` gives the layout
    of one device's matrices, the ``local`` of `Placement`; `stack` and `unstack` work
    only there.

    Attributes:
        bundles: The leaves, by what is exchanged together.
        mesh: The mesh, abstract while tracing.
        specs: Mesh axes of each axis of each matrix leaf, by path.
        inside: Mesh axes that split matrices and are not owner axes.
        teams: The argument of `owners`.
        is_local: Whether this is the layout of one device.
        state_pools: Stacks whose state shares slots.
    """

    bundles: tuple[Bundle, ...]
    mesh: Any
    specs: Mapping[str, Spec]
    inside: tuple[str, ...]
    teams: int
    is_local: bool = False
    state_pools: tuple[StatePool, ...] = ()

    @property
    def axes(self) -> dict[str, tuple[str, ...]]:
        """For each stack the mesh axes that it is spread over in a ``shard_map``."""
        return {n: g.spec[0] if self.is_local else () for n, g in self.groups.items()}

    def owners_of(self, path: str) -> str:
        """Which owners have the matrices of a leaf, as in ``0-3, 6 of 8``."""
        own, first = self._ownerships[path]
        end = first + self.views[path].batch
        owners = np.unique(own.owners[first:end]).tolist()
        return f"{_ranges(owners)} of {len(own.table)}"

    @functools.cached_property
    def _ownerships(self) -> dict[str, tuple[Ownership, int]]:
        """For each path the ownership of its matrices, and the number of the first."""
        found: dict[str, tuple[Ownership, int]] = {}
        for bundle in self.bundles:
            counts = itertools.accumulate((v.batch for v in bundle.views), initial=0)
            for path, first in zip(bundle.paths, counts, strict=False):
                found[path] = bundle.ownership, first
        return found

    @functools.cached_property
    def pairs(self) -> dict[str, str]:
        """From the path of the first leaf of each pair to that of its partner."""
        both = itertools.pairwise(self.bundles)
        paired = [(a.paths, b.paths) for a, b in both if b.ownership.follows]
        return {p: q for each in paired for p, q in zip(*each, strict=True)}

    @functools.cached_property
    def full_specs(self) -> dict[str, PartitionSpec]:
        """The partition spec of each leaf, in full rank."""
        return {path: _full_rank(spec) for path, spec in self.specs.items()}

    @functools.cached_property
    def manual_specs(self) -> dict[str, PartitionSpec]:
        """The same without the axes in `inside`: those of the ``shard_map``."""
        if not self.inside:
            return self.full_specs
        manual = {p: without(spec, self.inside) for p, spec in self.specs.items()}
        return {path: _full_rank(spec) for path, spec in manual.items()}

    def specs_of(
        self, names: Iterable[str], sides: Mapping[str, Sides]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The specs of trees of leaves by name, without and with the axes `inside`."""
        given = {n: sides.get(n) for n in names}
        whole = {n: self._of_statistic(s) for n, s in given.items() if s is not None}
        trees = self.manual_specs, self.full_specs
        manual, full = (dict.fromkeys(names, specs) | whole for specs in trees)
        return manual, full

    def _of_statistic(self, sides: tuple[Side, ...]) -> dict[str, PartitionSpec]:
        specs: dict[str, PartitionSpec] = {}
        for bundle in self.bundles:
            entries = bundle.ownership.of_statistic(sides).spec
            end = len(entries) - len(_ones(sides))
            of_sides = entries[end - len(sides) : end]
            for path, view in zip(bundle.paths, bundle.views, strict=True):
                spec = without(self.specs[path], self.inside)
                batch = [spec[a] for a in view.batch_axes]
                specs[path] = _full_rank((*batch, *of_sides))
        return specs

    def on_device(self, manifest: Mapping[str, Array]) -> "OwnerLayout":
        """The layout of one device's own matrices, of which this is the manifest."""
        own = lambda x: {"count": len(x), "ids": x[:, :2], "forms": x[:, 2:]}
        groups = {
            name: dataclasses.replace(group, **own(manifest[name]))
            for name, group in self.groups.items()
        }
        return dataclasses.replace(self, groups=groups, is_local=True)

    def real(self, manifest: Mapping[str, Array]) -> dict[str, Array]:
        """Which of one device's matrices are no padding, where leaving it out pays.

        Leaving padding out pays if a device has one matrix of the stack, or if the
        matrices are so large that it computes them no faster together. With axes inside
        matrices the partitioner decides.
        """
        if self.inside:
            return {}
        padded = [n for n, g in self.groups.items() if (g.ids == _FILLER).all(1).any()]
        one = lambda name: len(manifest[name]) == 1
        busy = Thresholds.busy_side
        large = lambda name: min(self.groups[name].shape[1:]) >= busy
        return {
            name: jnp.any(manifest[name][:, :2] != _FILLER, axis=1)
            for name in padded
            if one(name) or large(name)
        }

    def last_rounds(self, manifest: Mapping[str, Array]) -> dict[str, LastRound]:
        """The rounds that teams share, of one device's stacks."""
        rounds = {}
        for bundle in self.bundles:
            own = bundle.ownership
            team = Team(own.shard_axes, own.owners_per_shard, own.team_size)
            for name in bundle.stacks if team.size > 1 else ():
                rows = manifest[name]
                last = rows[-(len(rows) // own.matrices_per_owner) :, :2]
                real = jnp.any(last != _FILLER, axis=1)
                rounds[name] = LastRound(team, len(rows), real)
        return rounds

    def part(self) -> "OwnerLayout":
        """The layout of as many matrices as one device has, for `jax.eval_shape`."""
        count = lambda g: g.count // shards(g.spec[:1], self.mesh.shape)
        own = {n: g.manifest[: count(g)] for n, g in self.groups.items()}
        return dataclasses.replace(self.on_device(own), is_local=False)

    def stack(
        self,
        leaves: Mapping[str, Array],
        sides: Sides = None,
        wire_dtype: Any = None,
        unreduced: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    ) -> dict[str, Array]:
        """Brings the parts of leaves, given by path, to this device's whole stacks.

        Some leaves are `unreduced` along mesh axes: they are added on the way.
        """
        exchanges = [bundle.exchange for bundle in self.bundles]
        leaves_of = [[leaves[path] for path in b.paths] for b in self.bundles]
        if sides is not None:
            exchanges = [Exchange(x.ownership.of_statistic(sides)) for x in exchanges]
            full = lambda x: x.reshape(*x.shape, *_ones(sides))
            leaves_of = [[full(x) for x in each] for each in leaves_of]
        waiting = []
        for i, bundle in enumerate(self.bundles):
            axes = [unreduced.get(path, ()) for path in bundle.paths]
            if len(set(axes)) > 1:  # They cannot be added together.
                pairs = zip(leaves_of[i], axes, strict=True)
                leaves_of[i] = [jax.lax.psum(x, a) if a else x for x, a in pairs]
                axes = [()]
            waiting.append(axes[0])
            leaves_of[i] = bundle.exchanged(leaves_of[i], sides)
        moved = to_owners(exchanges, leaves_of, wire_dtype, not self.inside, waiting)
        parts: dict[str, list[Array]] = {}
        for bundle, whole in zip(self.bundles, moved, strict=True):
            own = bundle.ownership
            if sides is None:
                pieces = own.matrix.to_matrices(whole)
            else:
                pieces = to_pieces(own.matrix, sides, whole)
            for (name, _, _), piece in zip(bundle.slots, pieces, strict=True):
                by_matrix = piece.reshape(own.matrices_per_owner, -1, *piece.shape[1:])
                parts.setdefault(name, []).append(by_matrix)
        joined = {n: jnp.concatenate(xs, axis=1) for n, xs in parts.items()}
        return {n: x.reshape(-1, *x.shape[2:]) for n, x in joined.items()}

    def unstack(self, stacks: Any, wire_dtype: Any = None) -> dict[str, Array]:
        """Sends this device's stacks back to the parts of the leaves."""
        matrices: list[Array] = []
        for bundle in self.bundles:
            own, pieces = bundle.ownership, []
            for name, lo, hi in bundle.slots:
                shape = stacks[name].shape[1:]
                by_matrix = stacks[name].reshape(own.matrices_per_owner, -1, *shape)
                pieces.append(by_matrix[:, lo:hi].reshape(-1, *shape))
            matrices.append(own.matrix.from_matrices(pieces))
        exchanges = [bundle.exchange for bundle in self.bundles]
        moved = from_owners(exchanges, matrices, wire_dtype, not self.inside)
        leaves: dict[str, Array] = {}
        for bundle, parts in zip(self.bundles, moved, strict=True):
            leaves |= dict(zip(bundle.paths, bundle.leaves(parts), strict=True))
        return leaves


def _ones(sides: tuple[Side, ...]) -> tuple[int, ...]:
    """The sides that a matrix has more than a statistic."""
    return (1,) * (2 - len(sides))


def _full_rank(spec: Spec) -> PartitionSpec:
    return PartitionSpec(*[axes or None for axes in spec])


def _ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers as ranges: ``0-3, 6``."""
    runs = itertools.groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])
    ends = [[number for _, number in run] for _, run in runs]
    return ", ".join(
        f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in ends
    )


def owner_layout(
    leaves: Mapping[str, Any],
    views: Mapping[str, MatrixView],
    specs: Mapping[str, Spec],
    owner_axes: tuple[str, ...],
    mesh: Any,
    *,
    pairs: Pairs = MappingProxyType({}),
    max_batch: int | None = None,
    pad_to: int | None = None,
    teams: int = 1,
    pool_state: bool = False,
) -> OwnerLayout:
    """The layout of matrix leaves, given by path, over the owners of a mesh."""
    options = pairs, max_batch, pad_to, teams
    found = bundled(leaves, views, specs, owner_axes, mesh, *options)
    pools = pool_state and not found.inside
    return OwnerLayout(
        **found._asdict(),
        state_pools=state_pools(found.bundles, found.groups) if pools else (),
        views=views,
        mesh=mesh,
        specs=specs,
        teams=teams,
        max_batch=max_batch,
    )
