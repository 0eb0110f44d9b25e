"""What `on_matrices` makes of a transformation: its `init` and its `update`."""

import dataclasses
from collections.abc import Callable, Iterable
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
from optax_matrix._paths import flatten_named, named_leaves
from optax_matrix._surroundings import within
from optax_matrix._surroundings.keeping import settled
from optax_matrix._surroundings.observation import observed
from optax_matrix._surroundings.worked_sides import WorkedSides
from optax_matrix.matrices.boxes import (
    apart,
    boxed,
    boxes_of,
    placed_names_of,
    unboxed,
)
from optax_matrix.matrices.decisions import decide, views_of
from optax_matrix.matrices.doubts import warn_of_mistakes
from optax_matrix.matrices.view import MatrixView
from optax_matrix.stacks.identities import paths_by_checksum
from optax_matrix.stacks.layout import Layout
from optax_matrix.stacks.placement import Placement
from optax_matrix.stacks.zeros import warn_of_zero_leaves
from optax_matrix.tree._arrays import split_arrays
from optax_matrix.tree._nonfinite import (
    NonFinite,
    check_finite,
    examined,
    keeping,
    marked,
)
from optax_matrix.tree._placeholder import is_placeholder, placeholder_state
from optax_matrix.tree._probe import refuse_coupling
from optax_matrix.tree._refusals import (
    refuse_gradient,
    refuse_missing_params,
    refuse_missing_updates,
    refuse_nested,
    refuse_tiny,
)
from optax_matrix.tree._replicated import warn_of_replicated
from optax_matrix.tree._trial import Build
from optax_matrix.tree._zero_gradient import (
    OnZero,
    ZeroGradient,
    faded,
    no_zeros,
    still,
)
from optax_matrix.tree.state import (
    OnMatricesState,
    check_manifest,
    check_method,
    check_shapes,
    check_structure,
    entries_of,
    entry_of,
    has_fields,
    is_ours,
    sides_of,
    with_updates_only,
)


@dataclasses.dataclass(frozen=True)
class OnMatrices:
    name: str | None
    build: Build
    after: Callable[[Any], optax.GradientTransformationExtraArgs] | None
    other: Callable[[Any], optax.GradientTransformationExtraArgs] | None
    dimension_numbers: Any
    max_batch: int | None
    placement: Placement[Any]
    needs_params: bool
    moves_zeros: bool
    probe: bool
    nonfinite: NonFinite
    zero_gradient: ZeroGradient
    on_zero: OnZero
    # The views that `init` found, by structure and shapes; `update` looks them up.
    views: dict[Any, dict[str, MatrixView]] = dataclasses.field(default_factory=dict)
    # The stacks that `init` has probed `build` with; it does so once for each set.
    probed: set[frozenset[str]] = dataclasses.field(default_factory=set)
    # The replicated state that `update` has warned of; it does so once.
    warned: list[str] = dataclasses.field(default_factory=list)

    def init(self, params: Any) -> Any:
        if is_placeholder(params):
            state = placeholder_state(self.name, self.build, self.placement, params)
            if self.on_zero == "fade":
                state = state._replace(zero_gradients=params)
            return state._replace(
                after=self.after and self.after(None).init(params),
                other=self.other and self.other(None).init(params),
            )
        leaves, rebuild = flatten_named(params)
        paths_by_checksum(leaves)  # Two of one checksum are refused.
        decisions = decide(params, self.dimension_numbers)
        warn_of_mistakes(self.dimension_numbers, params, decisions)
        views = self.views[_form(params, leaves)] = views_of(decisions)
        refuse_tiny(leaves, views)
        if not self.moves_zeros:
            warn_of_zero_leaves(leaves, views, self.name or "this transformation")
        state = self._init_matrices(params, leaves, views)
        matrices, others = apart(rebuild, leaves, views)
        return state._replace(
            after=self.after and self.after(params).init(matrices),
            other=self.other and _init_other(self.other(params), others),
        )

    def _init_matrices(self, params: Any, leaves: Any, views: Any) -> OnMatricesState:
        layout = self.placement.layout(leaves, views, self.max_batch)
        matrices = {path: leaves[path] for path in views}
        check_one_mesh(matrices)

        arrays, join = split_arrays(self.build)

        def make_state(local, stacks, arrays):
            sides = WorkedSides(local.groups)
            with within(sides=sides):
                inner_state = observed(join(arrays)(local)).init(stacks)
            refuse_nested(inner_state)
            manifest = {name: jnp.asarray(x) for name, x in local.manifest.items()}
            labels = entry_of(self.name), manifest, entries_of(sides.labels())
            state = OnMatricesState(*labels, inner_state)
            if self.on_zero != "fade":
                return state
            return state._replace(zero_gradients=no_zeros(stacks))

        state = self.placement.init(
            layout, make_state, matrices, arrays, self.needs_params
        )
        self._refuse_coupling(layout)
        specs = partial(self.placement.specs, layout, state)
        if known := recorder():
            known.note(state, specs(known.specs, known.mesh))
            known.layouts.append((layout, self.placement.wire_dtype))
        boxes = boxes_of(params)
        names = {path: placed_names_of(box) for path, box in boxes.items()}
        mesh = visible_mesh(matrices) or context_mesh()
        return boxed(state, specs(names, mesh), boxes, layout.groups)

    def update(self, updates: Any, state: Any, params: Any = None, **extra_args: Any):
        tree = updates if params is None else with_updates_only(params, updates)
        zeros = self.on_zero == "fade" or None
        wanted = {"after": self.after, "other": self.other, "zero_gradients": zeros}
        if not has_fields(state, **wanted):
            check_structure(self.init, state, tree)
        check_method(state, self.name)
        refuse_gradient(extra_args, self.name)
        if self.needs_params and params is None:
            raise ValueError(
                "`params` must be passed to `update`: this transformation uses the "
                "parameters; call tx.update(updates, state, params)."
            )
        try:
            return self._update(updates, state, params, tree, extra_args)
        except Exception as error:
            # Only now, as it traces `init`; a state of the right form is not the cause.
            refuse_missing_params(error, params)
            refuse_missing_updates(self.init, state, updates, params)
            if not is_ours(error):
                check_structure(self.init, state, tree)
            raise

    def _update(
        self, updates: Any, state: Any, params: Any, whole: Any, extra_args: Any
    ):
        # Shapes and dtypes are those of ``whole``, the parameters that have updates.
        leaves, rebuild = flatten_named(updates)
        named, rebuild_params = flatten_named(whole)
        check_shapes(leaves, named)
        like = {path: named[path] for path in leaves}
        tree = updates if params is None else params
        views = self._views(tree, like)
        inner = state._replace(after=None, other=None)
        new, inner = self._update_matrices(leaves, inner, like, views, extra_args)

        new = {**leaves, **new}
        trees, own = apart(rebuild, new, views), (None, None)
        if params is not None:
            own = apart(rebuild_params, named, views)
        whole, given = (None, None) if params is None else (whole, params)
        for name, part, params in zip(("after", "other"), trees, own, strict=True):
            make, held = getattr(self, name), getattr(state, name)
            if make is not None:
                old = held
                part, held = make(whole).update(part, old, params, **extra_args)
                if jax.tree.structure(held) != jax.tree.structure(old):
                    refuse_missing_updates(self.init, state, updates, given)
                held = _keep_dtypes(held, old)
                found = named_leaves(part).items()
                new |= {path: _keep_dtype(x, like[path]) for path, x in found}
            if name == "after" and make is not None:
                new |= still(views, leaves, new, self.on_zero, self.nonfinite)
            inner = inner._replace(**{name: held})
        return rebuild(new), inner

    def _views(self, tree: Any, leaves: Any) -> dict[str, MatrixView]:
        """The views of some leaves of a tree; after a restart they are found anew."""
        form = _form(tree, leaves)
        if form not in self.views:
            self.views[form] = views_of(decide(tree, self.dimension_numbers, leaves))
        return self.views[form]

    def _update_matrices(
        self, leaves: Any, state: Any, like: Any, views: Any, extra_args: Any
    ) -> tuple[dict[str, Any], Any]:
        # A recipe is whole: its blocks square what they get, or pass a gradient along.
        extra_args = {k: x for k, x in extra_args.items() if k != "gradient"}
        state, rebox = unboxed(state)
        layout = self.placement.layout(like, views, self.max_batch)
        check_manifest(layout, state)
        if self.nonfinite == "raise":
            check_finite(leaves, views)
        matrices = {"updates": {path: leaves[path] for path in views}}
        if self.needs_params:
            matrices["params"] = {path: like[path] for path in views}
        self._warn_of_replicated(layout, state, like)

        arrays, join = split_arrays((self.build, extra_args, self.zero_gradient))

        def step(local, stacks, state, arrays):
            build, extra_args, decay = join(arrays)
            tx = optax.with_extra_args_support(observed(build(local)))
            grads = examined(self.nonfinite, stacks["updates"])
            keeps = keeping(self.nonfinite, self.on_zero, grads)
            kept, params = [], stacks.get("params")
            new: Any
            sides = WorkedSides(local.groups, sides_of(state))
            with within(keeps=keeps, kept=kept, sides=sides):
                new, inner_state = tx.update(
                    grads.finite, state.inner_state, params, **extra_args
                )
            sides.check_all()
            inner_state = jax.tree.map(_keep_dtype, inner_state, state.inner_state)
            old = state.inner_state, state.zero_gradients
            held = inner_state, state.zero_gradients
            if self.on_zero == "fade":
                new, counts = faded(decay, grads.zero, state.zero_gradients, new)
                held = inner_state, counts
            new = {n: _keep_dtype(x, local.groups[n]) for n, x in new.items()}
            new = marked(self.nonfinite, self.on_zero, grads, new)
            held = settled(keeps, kept, held, old)
            return new, state._replace(inner_state=held[0], zero_gradients=held[1])

        new, state = self.placement.update(layout, step, matrices, state, arrays)
        return dict(new), rebox(state)

    def _warn_of_replicated(self, layout: Layout, state: Any, leaves: Any) -> None:
        mesh = visible_mesh(leaves)
        if mesh is not None and not self.warned:
            known = {path: visible_spec(leaf) for path, leaf in leaves.items()}
            specs = self.placement.specs(layout, state, known, mesh)
            self.warned.extend(warn_of_replicated(state, specs, mesh))

    def _refuse_coupling(self, layout: Layout) -> None:
        stacks = frozenset(layout.groups)
        if self.probe and stacks not in self.probed:
            refuse_coupling(self.build, layout, self.needs_params)
            self.probed.add(stacks)


def _init_other(other: optax.GradientTransformation, others: Any) -> Any:
    try:
        return other.init(others)
    except Exception as error:
        if is_ours(error) or isinstance(error, Warning):
            raise
        raise ValueError(
            "`other` must run on the tree with None in place of matrices, and its "
            f"`init` raised {type(error).__name__}: {error}. If its mask is a function "
            "that needs the whole tree, call it first: a tree of True and False for "
            "all parameters fits, as in optax.adamw(rate, mask=mask(params))."
        ) from error


def _form(tree: Any, paths: Iterable[str]) -> Any:
    """What decides which of some leaves of a tree are matrices; hashable."""
    leaves, structure = jax.tree.flatten(tree)
    kind = lambda x: (getattr(x, "shape", None), getattr(x, "dtype", None))
    return structure, tuple(map(kind, leaves)), tuple(paths)


def _keep_dtype(new: Any, old: Any) -> Any:
    return new.astype(old.dtype) if new.dtype != old.dtype else new


def _keep_dtypes(new: Any, old: Any) -> Any:
    """A state in the dtypes that it had, so that a scan can carry it."""
    if jax.tree.structure(new) != jax.tree.structure(old):
        return new
    is_array = lambda x: hasattr(x, "dtype")
    keep = lambda x, y: _keep_dtype(x, y) if is_array(x) and is_array(y) else x
    return jax.tree.map(keep, new, old)
