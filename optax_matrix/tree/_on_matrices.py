"""Runs a transformation of matrix stacks on any parameter tree."""

from collections.abc import Callable
from typing import Any

import optax

from optax_matrix._arguments import PositiveInt, check_called, checked
from optax_matrix.linalg.precision import Precision
from optax_matrix.matrices.pairs import as_pair_rule
from optax_matrix.matrices.statistics import as_forms
from optax_matrix.sharding.keep_sharding import KeepSharding
from optax_matrix.stacks.placement import Placement
from optax_matrix.tree._build import Build, as_build
from optax_matrix.tree._unusual import (
    NonFinite,
    ZeroGradient,
    check_zero_gradient,
    kind_of,
)
from optax_matrix.tree._wrapper import OnMatrices

OfTree = optax.GradientTransformation | Callable[[Any], optax.GradientTransformation]


@checked
def on_matrices(
    build: Build | optax.GradientTransformation,
    *,
    after: OfTree | None = None,
    other: OfTree | None = None,
    name: str | None = None,
    dimension_numbers: Any = None,
    pairs: Any = None,
    statistics: Any = None,
    placement: Placement[Any] | None = None,
    max_batch: PositiveInt | None = None,
    needs_params: bool = False,
    moves_zeros: bool = True,
    probe: bool = True,
    nonfinite: NonFinite = "propagate",
    zero_gradient: ZeroGradient = "follow",
    precision: Precision = "default",
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
            Blocks know the layout where they run, so that most chains need no function
            of it. Such a function is called in `init` and in every trace of `update`,
            and invalid arguments of its blocks raise in `init`. If `build` uses arrays,
            traced or not, make it a ``jax.tree_util.Partial`` of them: JAX does not let
            a function on a mesh with Explicit axes read arrays from the function around
            it.
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
        pairs: Which matrices a block sees together, by the paths of their leaves: a
            dict of replacements by regular expression, as `re.sub` takes them
            (``{"lora_a": "lora_b"}``; the first expression that is found in a path
            counts), or a function from a path to that of the partner, or None. Partners
            are stacked in one order, matrix i beside its partner i, and have one owner.
            `transforms.on_pairs` and `transforms.partners_of` show them to a block;
            other blocks do not change.
        statistics: Extra arguments of `update` that are trees with an array for each
            matrix leaf, by name: the sides of that array, behind the batch axes of the
            leaf. ``{"second_moments": ("in", "in"), "tokens": ()}`` are a square array
            and a number for each matrix. They are stacked and sent as gradients are, so
            that a block gets ``second_moments`` as ``{group: (batch, in, in)}``. Trees
            whose leaves have the shapes of the matrices' are recognized without it;
            None as the sides says so to the test of `probe`. All other extra arguments
            are passed on as they are.
        placement: Where matrices live on a mesh, a `Placement` such as `owners`. None
            keeps the sharding of the arrays, in Auto and Explicit mode.
        max_batch: Largest number of matrices in a stack (with `owners`, on each
            device), which bounds the memory of stacking; None for a bound of
            `stacks.STACK_ELEMENTS` elements, or with `owners` a larger one, with which
            equal matrices have at most 16 stacks.
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
            ``"zero"`` treats the gradient as zero, so that momentum still moves the
            matrix; ``"raise"`` is ``"propagate"`` with an error that names the leaf,
            under `jax.experimental.checkify`, which fails on the ``shard_map`` of
            `owners` if the mesh has Explicit axes or is set by `jax.set_mesh`.
        zero_gradient: What happens while the gradient of a matrix is zero (an expert
            without tokens, a head that is off). A normalized momentum would move the
            matrix on at full size. A decay rate :math:`\beta`, a number in [0, 1),
            multiplies the update of the k-th such step in a row by :math:`\beta^k`, so
            that the matrix goes at most :math:`\beta / (1 - \beta)` ordinary steps
            further; the state counts them for each matrix, and weight decay continues.
            ``"follow"`` leaves the transformation alone. ``"skip"`` neither updates the
            matrix nor changes its state; nothing that `after` does moves it. Counts
            that all matrices share go on.
        precision: What the products of the transformation consist of on accelerators,
            ``"default"``, ``"fast"`` or ``"exact"`` (``linalg.precision``).

    Returns:
        A transformation for any tree of arrays (dict, NNX state, Linen variables,
        Equinox modules), with `OnMatricesState`. `optax.tree.map_params` sees what it
        keeps for matrices stack by stack, ``(batch, ...)``, so that no tree of the
        parameters fits beside it, and the ``manifest`` as one dict that belongs to no
        parameter; `state_specs` has the shardings.

    Raises:
        ValueError: If an argument is out of range; at `init`, if a block that `build`
            makes refuses an argument, dimension numbers do not fit, a partner is
            missing, is that of two matrices or has another number of matrices, or the
            transformation couples other matrices; at `update`, if the state belongs to
            other matrices or another method, or a gradient has another shape than its
            parameter.

    Examples:
        >>> import jax.numpy as jnp, optax
        >>> tx = on_matrices(optax.scale(2.0), other=optax.sgd(1.0))
        >>> params = {"up": {"kernel": jnp.ones((3, 5)), "bias": jnp.ones(5)}}
        >>> updates, _ = tx.update(params, tx.init(params))
        >>> float(updates["up"]["kernel"][0, 0]), float(updates["up"]["bias"][0])
        (2.0, -1.0)
    """
    _check(name, placement)
    check_zero_gradient(zero_gradient)
    wrapper = OnMatrices(
        name=name,
        build=as_build(build),
        after=_as_function("after", after),
        other=_as_function("other", other),
        dimension_numbers=dimension_numbers,
        pairs=as_pair_rule(pairs),
        forms=as_forms(statistics),
        max_batch=max_batch,
        placement=KeepSharding() if placement is None else placement,
        needs_params=needs_params,
        moves_zeros=moves_zeros,
        probe=probe,
        nonfinite=nonfinite,
        zero_gradient=zero_gradient,
        on_zero=kind_of(zero_gradient),
        precision=precision,
    )
    return optax.GradientTransformationExtraArgs(wrapper.init, wrapper.update)


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
    check_called(name, tx)
    make: Any = tx
    return lambda params: optax.with_extra_args_support(make(params))


def _check(name: Any, placement: Any) -> None:
    if name is not None and (not isinstance(name, str) or not name or "/" in name):
        raise ValueError(f"`name` must be a name without '/', or None, got {name!r}.")
    is_placement = isinstance(placement, Placement) and not isinstance(placement, type)
    if placement is not None and not is_placement:
        raise ValueError(
            "`placement` must be None, optax_matrix.owners(mesh_axes, ...) or "
            f"optax_matrix.quantized(...), got {placement!r}."
        )
