"""What `on_matrices` makes of a transformation: its `init` and its `update`."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from optax_matrix._mesh import (
    check_one_mesh,
    context_mesh,
    recorder,
    visible_mesh,
    visible_spec,
)
from optax_matrix._paths import named_leaves
from optax_matrix._surroundings import within
from optax_matrix._surroundings.observation import observed
from optax_matrix._surroundings.worked_sides import WorkedSides
from optax_matrix.linalg.precision import Precision, using
from optax_matrix.matrices.boxes import (
    boxed,
    has_boxes,
    placed_names_of,
    unboxed,
    without_hollow,
)
from optax_matrix.matrices.decisions import Kinds, decide, kinds_of
from optax_matrix.matrices.doubts import warn_of_mistakes
from optax_matrix.matrices.pairs import PairRule, pairs_of, warn_of_unmatched_pairs
from optax_matrix.matrices.statistics import Sides
from optax_matrix.stacks.identities import paths_by_checksum
from optax_matrix.stacks.layout import Layout
from optax_matrix.stacks.placement import Placement
from optax_matrix.stacks.zeros import warn_of_zero_leaves
from optax_matrix.tree._admission import (
    Admitted,
    Named,
    Terms,
    admitted,
    refuse_missing_updates,
)
from optax_matrix.tree._arrays import keep_dtype, keep_dtypes, split_arrays
from optax_matrix.tree._asked_sides import refusing_late_questions, views_for
from optax_matrix.tree._build import Build
from optax_matrix.tree._placeholder import is_placeholder, placeholder_state
from optax_matrix.tree._probe import refuse_coupling
from optax_matrix.tree._refusals import (
    init_other,
    refuse_nested,
    refuse_tiny,
    warn_of_replicated,
)
from optax_matrix.tree._statistics import split_trees, stand_ins
from optax_matrix.tree._unusual import (
    GuardedState,
    NonFinite,
    OnZero,
    ZeroGradient,
    check_finite,
    guarded,
    still,
)
from optax_matrix.tree.state import (
    OnMatricesState,
    entries_of,
    entry_of,
    sides_of,
)


@dataclasses.dataclass(frozen=True)
class OnMatrices:
    name: str | None
    build: Build
    after: Callable[[Any], optax.GradientTransformationExtraArgs] | None
    other: Callable[[Any], optax.GradientTransformationExtraArgs] | None
    dimension_numbers: Any
    pairs: PairRule
    forms: Mapping[str, Sides]
    max_batch: int | None
    placement: Placement[Any]
    needs_params: bool
    moves_zeros: bool
    probe: bool
    nonfinite: NonFinite
    zero_gradient: ZeroGradient
    on_zero: OnZero
    precision: Precision
    # What `init` decided, by all that decides it; `update` looks it up.
    kinds: dict[Any, Kinds] = dataclasses.field(default_factory=dict)
    # Structures of trees and states without boxes, as far as they are known.
    bare: list[Any] = dataclasses.field(default_factory=list)
    # The stacks that `init` has probed `build` with; it does so once for each set.
    probed: set[frozenset[str]] = dataclasses.field(default_factory=set)
    # The replicated state that `update` has warned of; it does so once.
    warned: list[str] = dataclasses.field(default_factory=list)

    def init(self, params: Any) -> Any:
        if is_placeholder(params):
            return placeholder_state(self, params)
        named = Named.of(params)
        leaves = named.leaves
        paths_by_checksum(leaves)  # Two of one checksum are refused.
        decisions = decide(params, self.dimension_numbers)
        warn_of_mistakes(self.dimension_numbers, params, decisions)
        kinds = self.kinds[_form(params, leaves)] = kinds_of(decisions)
        refuse_tiny(leaves, kinds.views)
        if not self.moves_zeros:
            warn_of_zero_leaves(leaves, kinds.views, self.name or "this transformation")
        warn_of_unmatched_pairs(self.pairs, kinds.views)
        layout = self._layout(leaves, kinds)
        boxes = {p: d.box for p, d in decisions.items() if d.box is not None}
        state = self._init_matrices(layout, leaves, boxes)
        matrices, others = self._apart(named, leaves, kinds)
        with within(kinds=kinds):
            whole = state._replace(
                after=self.after and self.after(params).init(matrices),
                other=self.other and init_other(self.other(params), others),
            )
        self._is_bare(state)  # `update` finds it known.
        return whole

    def _init_matrices(self, layout: Layout, leaves: Any, boxes: Any) -> Any:
        matrices = {path: leaves[path] for path in layout.views}
        check_one_mesh(matrices)
        arrays, join = split_arrays((self.build, self.zero_gradient))
        given = matrices, arrays, self.needs_params
        state = self.placement.init(layout, partial(self._make_state, join), *given)
        self._refuse_coupling(layout)
        specs = partial(self.placement.specs, layout, state)
        if known := recorder():
            known.note(state, specs(known.specs, known.mesh))
            known.layouts.append((layout, self.placement.wire_dtype))
        if not boxes:
            return state
        names = {path: placed_names_of(box) for path, box in boxes.items()}
        mesh = visible_mesh(matrices) or context_mesh()
        return boxed(state, specs(names, mesh), boxes, layout.groups)

    def _make_state(
        self, join: Callable, local: Layout, stacks: Any, arrays: Any
    ) -> OnMatricesState:
        held: Any
        sides = WorkedSides(local.groups)
        tried = partial(stand_ins, self.forms, local)
        around = within(sides=sides, layout=local, stand_ins=tried)
        with using(self.precision), around:
            held = self._chain(local, *join(arrays)[:2]).init(stacks)
        refuse_nested(held.inner_state)
        manifest = {name: jnp.asarray(x) for name, x in local.manifest.items()}
        labels = entry_of(self.name), manifest, entries_of(sides.labels())
        return OnMatricesState(*labels, **held._asdict())

    def _chain(
        self, layout: Layout, build: Build, zero_gradient: ZeroGradient
    ) -> optax.GradientTransformationExtraArgs:
        """The transformation of the stacks of one device."""
        return guarded(observed(build(layout)), self.nonfinite, zero_gradient)

    def update(self, updates: Any, state: Any, params: Any = None, **extra_args: Any):
        fades = True if self.on_zero == "fade" else None
        fields = {"after": self.after, "other": self.other, "zero_gradients": fades}
        terms = Terms(self.name, self.init, self.needs_params, fields, self._seen)
        with admitted(terms, updates, state, params, extra_args) as trees:
            inner = state._replace(after=None, other=None)
            new, inner = self._update_matrices(trees, inner, extra_args)
            new, held = self._update_tree(trees, new, state, extra_args)
            new_state = inner._replace(**held)
        if jax.tree.structure(new_state) != jax.tree.structure(state):
            refuse_missing_updates(self.init, state, updates, params)
        return trees.updates.rebuild(new), new_state

    def _seen(self, tree: Any, leaves: Mapping[str, Any]) -> tuple[Kinds, Layout]:
        """What was decided on some leaves of a tree; after a restart it is so anew."""
        form = _form(tree, leaves)
        if form not in self.kinds:
            self.kinds[form] = kinds_of(decide(tree, self.dimension_numbers, leaves))
        kinds = self.kinds[form]
        return kinds, self._layout(leaves, kinds)

    def _layout(self, leaves: Mapping[str, Any], kinds: Kinds) -> Layout:
        pairs = pairs_of(self.pairs, leaves, kinds.views) if any(self.pairs) else {}
        views = views_for(self.build, leaves, kinds, pairs)
        return self.placement.layout(leaves, views, self.max_batch, pairs)

    def _update_matrices(
        self, trees: Admitted, state: Any, extra_args: Any
    ) -> tuple[dict[str, Any], Any]:
        """The updates of matrices by path, and their state."""
        # A recipe is whole: its blocks square what they get, or pass a gradient along.
        extra_args = {k: x for k, x in extra_args.items() if k != "gradient"}
        bare = self._is_bare(state)
        state, rebox = (state, lambda x: x) if bare else unboxed(state)
        views, layout = trees.kinds.views, trees.layout
        leaves, like = trees.updates.leaves, trees.params.leaves
        if self.nonfinite == "raise":
            check_finite(leaves, views)
        matrices = {"updates": {path: leaves[path] for path in views}}
        if self.needs_params:
            matrices["params"] = {path: like[path] for path in views}
        along: dict[str, Any] = {}
        if extra_args or self.forms:
            along, extra_args = split_trees(self.forms, views, extra_args)
        self._warn_of_replicated(layout, state, like)

        arrays, join = split_arrays((self.build, self.zero_gradient, extra_args))

        def step(local, stacks, state, arrays):
            *made, extra_args = join(arrays)
            tx = self._chain(local := refusing_late_questions(local, views), *made)
            old = GuardedState(state.inner_state, state.zero_gradients)
            sides = WorkedSides(local.groups, sides_of(state))
            new: Any
            held: Any
            around = within(sides=sides, layout=local)
            with using(self.precision), around:
                for name in along:
                    extra_args[name] = stacks[name]
                new, held = tx.update(
                    stacks["updates"], old, stacks.get("params"), **extra_args
                )
            sides.check_all()
            new = {n: keep_dtype(x, local.groups[n]) for n, x in new.items()}
            return new, state._replace(**held._asdict())

        given = matrices | along, state, arrays, self.forms
        make_state = partial(self._make_state, join)
        new, state = self.placement.update(layout, step, *given, make_state)
        return dict(new), rebox(state)

    def _update_tree(
        self, trees: Admitted, new: Any, state: Any, extra_args: Any
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """All updates by path, after `after` and `other`, and the states of these."""
        new = {**trees.updates.leaves, **new}
        kinds, like = trees.kinds, trees.params.leaves
        parts, own, whole = self._apart(trees.updates, new, kinds), (None, None), None
        if trees.has_params:
            own = self._apart(trees.params, like, kinds)
            whole = trees.params.tree
        states = {}
        with within(kinds=kinds):
            for name, part, params in zip(("after", "other"), parts, own, strict=True):
                make, old = getattr(self, name), getattr(state, name)
                if make is None:
                    continue
                part, held = make(whole).update(part, old, params, **extra_args)
                found = named_leaves(part)
                states[name] = keep_dtypes(held, old)
                new |= keep_dtypes(found, {path: like[path] for path in found})
                if name == "after":
                    policies = self.nonfinite, self.on_zero
                    new |= still(kinds.views, trees.updates.leaves, new, *policies)
        return new, states

    def _apart(self, named: Named, leaves: Mapping[str, Any], kinds: Kinds) -> list:
        """The tree of the matrices among the leaves, and that of the others.

        There is None in place of other leaves. A tree without any node is `()`, because
        optax treats None as parameters that were not passed.
        """
        clean = (lambda x: x) if self._is_bare(named.tree) else without_hollow
        is_matrix = {path: path in kinds.views for path in leaves}
        part = lambda kept: {
            path: x if is_matrix[path] == kept else None for path, x in leaves.items()
        }
        trees = [clean(named.rebuild(part(kept))) for kept in (True, False)]
        return [() if tree is None else tree for tree in trees]

    def _is_bare(self, tree: Any) -> bool:
        """Whether a tree has no boxes; each structure is searched once."""
        structure = jax.tree.structure(tree)
        if structure not in self.bare and not has_boxes(tree):
            self.bare.append(structure)
        return structure in self.bare

    def _warn_of_replicated(self, layout: Layout, state: Any, leaves: Any) -> None:
        mesh = visible_mesh(leaves)
        if mesh is not None and not self.warned:
            known = {path: visible_spec(leaf) for path, leaf in leaves.items()}
            specs = self.placement.specs(layout, state, known, mesh)
            self.warned.extend(warn_of_replicated(state, specs, mesh))

    def _refuse_coupling(self, layout: Layout) -> None:
        stacks = frozenset(layout.groups)
        if self.probe and stacks not in self.probed:
            with using(self.precision):
                refuse_coupling(self.build, layout, self.needs_params, self.forms)
            self.probed.add(stacks)


def _form(tree: Any, paths: Iterable[str]) -> Any:
    """What decides which of some leaves of a tree are matrices; hashable."""
    leaves, structure = jax.tree.flatten(tree)
    kind = lambda x: (getattr(x, "shape", None), getattr(x, "dtype", None))
    return structure, tuple(map(kind, leaves)), tuple(paths)
