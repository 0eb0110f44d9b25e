"""Runs a transformation of matrix stacks on any parameter tree."""

import dataclasses
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, get_args

import jax
import jax.numpy as jnp
import optax

from optax_matrix._arguments import check_choice
from optax_matrix._mesh import (
    check_one_mesh,
    context_mesh,
    recorder,
    visible_mesh,
    visible_spec,
)
from optax_matrix._surroundings import within
from optax_matrix._surroundings.keeping import settled
from optax_matrix._surroundings.observation import observed
from optax_matrix.matrices.boxes import apart, boxed, boxes_of, names_of, unboxed
from optax_matrix.matrices.decisions import decide, views_of
from optax_matrix.matrices.doubts import warn_of_mistakes
from optax_matrix.matrices.paths import flatten_named, named_leaves
from optax_matrix.matrices.view import MatrixView
from optax_matrix.sharding.keep_sharding import KeepSharding
from optax_matrix.stacks.checksums import paths_by_checksum
from optax_matrix.stacks.layout import Layout
from optax_matrix.stacks.placement import Placement
from optax_matrix.stacks.zeros import warn_of_zero_leaves
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
    refuse_missing_params,
    refuse_missing_updates,
    refuse_nested,
)
from optax_matrix.tree._replicated import warn_of_replicated
from optax_matrix.tree._trial import Build, check_arguments
from optax_matrix.tree._zero_gradient import (
    OnZero,
    ZeroGradient,
    check_zero_gradient,
    faded,
    kind_of,
    no_zeros,
    still,
)
from optax_matrix.tree.state import (
    OnMatricesState,
    check_manifest,
    check_method,
    check_shapes,
    check_structure,
    entry_of,
    has_fields,
    is_ours,
    with_updates_only,
)

OfTree = optax.GradientTransformation | Callable[[Any], optax.GradientTransformation]


def on_matrices(
    build: Build | optax.GradientTransformation,
    *,
    after: OfTree | None = None,
    other: OfTree | None = None,
    name: str | None = None,
    dimension_numbers: Any = None,
    placement: Placement[Any] | None = None,
    max_batch: int | None = None,
    needs_params: bool = False,
    moves_zeros: bool = True,
    probe: bool = True,
    nonfinite: NonFinite = "propagate",
    zero_gradient: ZeroGradient = "follow",
) -> optax.GradientTransformationExtraArgs:
    r"""Runs a transformation of matrix stacks on the matrix leaves of a tree.

    Every matrix leaf is viewed as ``(batch, out, in)``, where rows are output neurons.
    Leaves of equal view are stacked, and the transformation gets a plain dict
    ``{group: stack}``. Updates are returned in the leaf's shape and the parameter's
    dtype. `other` trains the leaves that are not matrices in the same pass; without it
    they pass through unchanged.

    Args:
        build: A transformation of stacks, or ``build(layout)``, which returns one for a
            static `Layout`. It must treat each matrix independently, also matrices of
            zeros. State that belongs to matrices must be under the name of their stack
            with the batch axis in front, as ``jax.tree.map`` over the stacks makes it.
            `on_matrices` calls `build` once with `stacks.EMPTY_LAYOUT`, which has no
            groups, so that invalid arguments of blocks raise at once. If `build` uses
            arrays, traced or not, make it a ``jax.tree_util.Partial`` of them: JAX does
            not let a function on a mesh with Explicit axes read arrays from the
            function around it.
        after: Transformation of the matrices' updates in the shape of the tree, with
            None in place of other leaves: weight decay, learning rate.
        other: Optimizer of all leaves that are not matrices. It runs on the tree with
            None in place of matrices, so that its state has the paths of the tree. Both
            `after` and `other` may be functions from the whole parameter tree (None, if
            `update` gets none) to a transformation, for masks that need all of it.
        name: Name of the method, stored in the state: `update` and checkpoints refuse
            the state of another method, even if its arrays have the same shapes. None
            for a method without a name.
        dimension_numbers: Which leaves are matrices and how: None for the default rule
            (`matrices.default_rule`), a rule (`matrices.by_path`, `matrices.infer`), a
            tree or prefix tree of `MatrixDimensionNumbers` or
            `optax.contrib.MuonDimensionNumbers` with None for other leaves, or a
            callable from the parameters to such a tree.
        placement: Where matrices live on a mesh, a `Placement` such as `owners`. None
            keeps the sharding of the arrays, in Auto and Explicit mode.
        max_batch: Largest number of matrices in a stack (with `owners`, on each
            device), which bounds the memory of stacking; None for a bound of
            `stacks.STACK_ELEMENTS` elements.
        needs_params: Whether the transformation uses parameters; they are then stacked,
            too. Weight decay does not need this: put it into `after`.
        moves_zeros: Whether the transformation can move a matrix of zeros; if not,
            `init` warns of such matrices.
        probe: Whether `init` tests that matrices do not influence one another. Blocks
            of this package do not need the test.
        nonfinite: What happens if the gradient of a matrix holds a NaN or infinity.
            Other matrices are updated as usual, and only ``"zero"`` changes the state
            of this one. ``"propagate"`` gives NaN as its update, which
            `optax.apply_if_finite` and loggers notice; ``"skip"`` gives zero;
            ``"zero"`` takes the gradient for zero, so that momentum moves the matrix
            on; ``"raise"`` is ``"propagate"`` with an error that names the leaf, under
            `jax.experimental.checkify`, which fails on the ``shard_map`` of `owners` if
            the mesh has Explicit axes or is set by `jax.set_mesh`.
        zero_gradient: What happens while the gradient of a matrix is zero (an expert
            without tokens, a head that is off). A normalized momentum would move the
            matrix on at full size. A decay rate :math:`\beta`, a number in [0, 1),
            multiplies the update of the k-th such step in a row by :math:`\beta^k`, so
            that the matrix goes at most :math:`\beta / (1 - \beta)` ordinary steps
            further; the state counts them for each matrix, and weight decay goes on.
            ``"follow"`` leaves the transformation alone. ``"skip"`` neither updates the
            matrix nor changes its state; nothing that `after` does moves it. Counts
            that all matrices share go on.

    Returns:
        A transformation for any tree of arrays (dict, NNX state, Linen variables,
        Equinox modules), with `OnMatricesState`. `optax.tree.map_params` sees what it
        keeps for matrices stack by stack, ``(batch, ...)``, so that no tree of the
        parameters fits beside it, and the ``manifest`` as one dict that belongs to no
        parameter; `state_specs` has the shardings.

    Raises:
        ValueError: If an argument is out of range, here or in `build`; at `init`, if
            dimension numbers do not fit or the transformation couples matrices; at
            `update`, if the state belongs to other matrices or another method, or a
            gradient has another shape than its parameter.

    Examples:
        >>> import jax.numpy as jnp, optax
        >>> tx = on_matrices(optax.scale(2.0), other=optax.sgd(1.0))
        >>> params = {"up": {"kernel": jnp.ones((3, 5)), "bias": jnp.ones(5)}}
        >>> updates, _ = tx.update(params, tx.init(params))
        >>> float(updates["up"]["kernel"][0, 0]), float(updates["up"]["bias"][0])
        (2.0, -1.0)
    """
    _check(name, placement, max_batch)
    check_choice("nonfinite", nonfinite, get_args(NonFinite))
    check_zero_gradient(zero_gradient)
    make = _as_build(build)
    check_arguments(make)
    wrapper = _OnMatrices(
        name=name,
        build=make,
        after=_as_function("after", after),
        other=_as_function("other", other),
        dimension_numbers=dimension_numbers,
        max_batch=max_batch,
        placement=KeepSharding() if placement is None else placement,
        needs_params=needs_params,
        moves_zeros=moves_zeros,
        probe=probe,
        nonfinite=nonfinite,
        zero_gradient=zero_gradient,
        on_zero=kind_of(zero_gradient),
    )
    return optax.GradientTransformationExtraArgs(wrapper.init, wrapper.update)


@dataclasses.dataclass(frozen=True)
class _OnMatrices:
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

        arrays, join = _split(self.build)

        def make_state(local, stacks, arrays):
            inner_state = observed(join(arrays)(local)).init(stacks)
            refuse_nested(inner_state)
            manifest = {name: jnp.asarray(x) for name, x in local.manifest.items()}
            state = OnMatricesState(entry_of(self.name), manifest, inner_state)
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
        names = {path: names_of(box) for path, box in boxes.items()}
        mesh = visible_mesh(matrices) or context_mesh()
        return boxed(state, specs(names, mesh), boxes, layout.groups)

    def update(self, updates: Any, state: Any, params: Any = None, **extra_args: Any):
        tree = updates if params is None else with_updates_only(params, updates)
        zeros = self.on_zero == "fade" or None
        wanted = {"after": self.after, "other": self.other, "zero_gradients": zeros}
        if not has_fields(state, **wanted):
            check_structure(self.init, state, tree)
        check_method(state, self.name)
        if self.needs_params and params is None:
            raise ValueError(
                "`params` must be passed to `update`: this transformation uses the "
                "parameters; call tx.update(updates, state, params)."
            )
        try:
            return self._update(updates, state, params, tree, extra_args)
        except Exception as error:
            # Only now, as it traces `init`; a state of the right form is not the cause.
            if params is None:
                refuse_missing_params(error)
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
            if name == "after" and make is not None and self.on_zero == "skip":
                new |= still(views, leaves, new, self.nonfinite == "zero")
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
        state, rebox = unboxed(state)
        layout = self.placement.layout(like, views, self.max_batch)
        check_manifest(layout, state)
        if self.nonfinite == "raise":
            check_finite(leaves, views)
        matrices = {"updates": {path: leaves[path] for path in views}}
        if self.needs_params:
            matrices["params"] = {path: like[path] for path in views}
        self._warn_of_replicated(layout, state, like)

        arrays, join = _split((self.build, extra_args, self.zero_gradient))

        def step(local, stacks, state, arrays):
            build, extra_args, decay = join(arrays)
            tx = optax.with_extra_args_support(observed(build(local)))
            grads = examined(self.nonfinite, stacks["updates"])
            keeps = keeping(self.nonfinite, self.on_zero, grads)
            kept, params = [], stacks.get("params")
            new: Any
            with within(keeps=keeps, kept=kept):
                new, inner_state = tx.update(
                    grads.finite, state.inner_state, params, **extra_args
                )
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
        if is_ours(error):
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


def _as_build(build: Any) -> Any:
    if isinstance(build, optax.GradientTransformation):
        return lambda _: build
    if not callable(build):
        raise ValueError(
            "`build` must be a gradient transformation or a callable build(layout) "
            f"that returns one, got {build!r}."
        )
    return build


def _as_function(name: str, tx: Any) -> Any:
    if tx is None:
        return None
    if isinstance(tx, optax.GradientTransformation):
        tx = optax.with_extra_args_support(tx)
        return lambda _: tx
    if not callable(tx):
        raise ValueError(
            f"`{name}` must be a gradient transformation, a function from the "
            f"parameters to one, or None, got {tx!r}."
        )
    make: Any = tx
    return lambda params: optax.with_extra_args_support(make(params))


def _check(name: Any, placement: Any, max_batch: Any) -> None:
    if name is not None and (not isinstance(name, str) or not name or "/" in name):
        raise ValueError(f"`name` must be a name without '/', or None, got {name!r}.")
    is_placement = isinstance(placement, Placement) and not isinstance(placement, type)
    if placement is not None and not is_placement:
        raise ValueError(
            "`placement` must be None or optax_matrix.owners(mesh_axes, ...), got "
            f"{placement!r}."
        )
    if max_batch is not None and (not isinstance(max_batch, int) or max_batch < 1):
        raise ValueError(
            f"`max_batch` must be a positive int or None, got {max_batch!r}."
        )


def _keep_dtype(new: Any, old: Any) -> Any:
    return new.astype(old.dtype) if new.dtype != old.dtype else new


def _keep_dtypes(new: Any, old: Any) -> Any:
    """A state in the dtypes that it had, so that a scan can carry it."""
    if jax.tree.structure(new) != jax.tree.structure(old):
        return new
    is_array = lambda x: hasattr(x, "dtype")
    keep = lambda x, y: _keep_dtype(x, y) if is_array(x) and is_array(y) else x
    return jax.tree.map(keep, new, old)


def _split(tree: Any) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """The arrays of a tree, and the function that puts arrays back into it.

    Arrays may be traced: they must go through a `shard_map` as arguments. Numbers stay
    Python numbers, so that they do not promote the dtype of an array.
    """
    leaves, structure = jax.tree.flatten(tree)
    at = [i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)]

    def join(arrays: list[Any]) -> Any:
        new = dict(zip(at, arrays, strict=True))
        whole = [new.get(i, leaf) for i, leaf in enumerate(leaves)]
        return jax.tree.unflatten(structure, whole)

    return [leaves[i] for i in at], join
