"""MaxText: `opt_type: "muon"`, with another method behind it.

Call `use` once before a trainer starts, and every trainer that takes Muon from
`maxtext.optimizers.optimizers.get_optimizer` (pre-training, SFT, DPO) has the method::

    from optax_matrix.adapters.maxtext import use

    use(om.muoneq)
    use(om.aro, placement=om.owners("fsdp"), qr="cholesky_qr")  # In place of it.

What MaxText's configuration says of Muon holds for the method: the rate and its
schedule, `muon_beta`, `muon_weight_decay`, `mu_dtype`, `muon_include_routers`, and for
the other leaves `adam_*`. So do `skip_step_on_spikes` and `trainable_parameters_mask`,
which are around the optimizer. An argument of `use` takes precedence. The axes of the
matrices are those of MaxText's `muon_utils`, counted without the axes that the model
names as layers, stages and repeats: `muon_utils` expects layers on axis 1 alone, but
pipelines and `param_scan_axis=0` have others in front. Its configuration refuses
`opt_type: "muon"` for decoder blocks that it has not tested with Muon. The trainers of
RL and distillation cannot have Muon in MaxText 0.2.5, so not these.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import optax

import optax_matrix as om
from optax_matrix.matrices.batch_names import LAYERS, STAGES, batch_axes
from optax_matrix.matrices.boxes import boxes_of, names_of

_HOOKS = ("optax_muon", "muon")  # Its name in MaxText 0.2.5, and before.
_MUON_TYPES = ("optax_muon", "optax")
# Arguments of Muon that other methods do not have, at the values that ask for nothing.
_OF_MUON = {"nesterov": True, "adaptive": False, "preconditioning": "frobenius"}


def use(recipe: Callable[..., Any], *, placement: Any = None, **options: Any) -> None:
    """Puts a recipe behind `opt_type: "muon"`.

    Args:
        recipe: A recipe, such as `om.muoneq`.
        placement: None, or `om.owners`. Its ``param_specs`` may be left out: they are
            MaxText's shardings on the mesh that `get_optimizer` receives.
        **options: Further arguments of the recipe.

    Raises:
        RuntimeError: If this version of MaxText calls Muon by another name; where the
            optimizer is made, too, if it was made without our function.
        ValueError: Where the optimizer is made, if the configuration asks Muon for
            something that the method does not have, or if there is no mesh for the
            placement.
    """
    from maxtext.optimizers import optimizers

    before = optimizers.get_optimizer
    original = getattr(before, "__wrapped__", before)  # Without an earlier `use`.
    name = next((n for n in _HOOKS if hasattr(optimizers, n)), None)
    if name is None:
        raise RuntimeError(
            f"{optimizers.__name__} must have one of {_HOOKS}, which this version of "
            "MaxText does not; look up what `get_optimizer` calls for Muon."
        )

    @functools.wraps(original)
    def get_optimizer(config, learning_rate_schedule, model=None, mesh=None):
        given = {} if mesh is None else {"mesh": mesh}  # Earlier versions take none.
        make = functools.partial(
            original, config, learning_rate_schedule, model, **given
        )
        if config.opt_type != "muon":
            return make()
        kind = getattr(config, "muon_type", _MUON_TYPES[0])
        if kind not in _MUON_TYPES:
            raise ValueError(
                f"`muon_type` must be 'optax_muon', got {kind!r}: that is MaxText's "
                "own implementation, which no other method can replace."
            )
        placed = _with_specs(placement, config, model, mesh)
        given = functools.partial(axes_by_name, model=model)
        muon = with_keywords_of_muon(recipe, axes=given, **placed, **options)
        hook = mock.Mock(side_effect=muon)
        with mock.patch.object(optimizers, name, hook):
            made = make()
        if not hook.called:
            raise RuntimeError(
                f"`get_optimizer` must call {optimizers.__name__}.{name} for Muon, but "
                "made an optimizer without; this version of MaxText needs another "
                "adapter."
            )
        return made

    optimizers.get_optimizer = get_optimizer


def axes_by_name(numbers: Any, model: Any) -> om.matrices.PathRule:
    """A rule of MaxText's numbers, counted in a kernel without its named batch axes.

    The axis of experts is one of those, too; numbers from the end are counted the same
    way.
    """
    from flax import nnx

    params = nnx.split(model, nnx.Param, ...)[1]
    names = {path: names_of(box) for path, box in boxes_of(params).items()}
    is_leaf = lambda x: x is None or hasattr(x, "reduction_axis")
    pairs = jax.tree.leaves_with_path(nnx.to_pure_dict(numbers), is_leaf=is_leaf)
    table = {"/".join(str(key.key) for key in keys): x for keys, x in pairs}

    def of_leaf(path: str, leaf: Any) -> tuple[Any, str]:
        if path not in table:
            raise ValueError(
                f"MaxText's numbers must have an entry for {path!r}, got none; this "
                "version of MaxText needs another adapter."
            )
        given, named = table[path], names.get(path, ())
        if given is None or len(named) != len(leaf.shape):
            return given, "given by MaxText"
        counting = batch_axes(named)
        kernel = [a for a in range(len(named)) if a not in counting]
        sides = given.reduction_axis, given.output_axis
        if any(not -len(kernel) <= a < len(kernel) for side in sides for a in side):
            raise ValueError(
                f"MaxText's numbers of {path!r} must be axes of its kernel, which has "
                f"{len(kernel)} without the batch axes of {named}, got {sides}; give "
                "`dimension_numbers` to `use`."
            )
        side = lambda axes: tuple(kernel[a] for a in axes)
        numbers = om.MatrixDimensionNumbers(
            side(given.reduction_axis),
            side(given.output_axis),
            layer_axis=tuple(a for a in counting if named[a] in (*STAGES, *LAYERS)),
        )
        return numbers, f"given by MaxText, axes {named}"

    return om.matrices.PathRule(of_leaf)


def by_use(
    model: Any, config: Any, mesh: Any = None, **options: Any
) -> om.matrices.UseRule:
    """Reads from a model, which may be abstract, what it uses each kernel for.

    Args:
        model: The model of MaxText.
        config: Its configuration.
        mesh: Its mesh; None for that of the model.
        **options: Those of `matrices.by_use`, such as `numbers`.

    Returns:
        The rule, which `print` shows as a table.
    """
    import flax.linen as nn

    shape = (config.micro_batch_size_to_train_on, config.max_target_length)
    ints = jax.ShapeDtypeStruct(shape, "int32")  # Tokens, positions, segments.

    def call(model, tokens, positions, segments):
        options = {"decoder_segment_ids": segments, "enable_dropout": False}
        return model(tokens, positions, **options)

    mesh = model.mesh if mesh is None else mesh
    with jax.set_mesh(mesh), nn.logical_axis_rules(config.logical_axis_rules):
        return om.matrices.by_use(call, model, ints, ints, ints, **options)


def with_keywords_of_muon(
    recipe: Callable[..., Any],
    *,
    axes: Callable[[Any], Any] = lambda numbers: numbers,
    **options: Any,
) -> Callable[..., Any]:
    """A recipe that takes the arguments of `optax.contrib.muon`.

    The coefficients and steps of Newton-Schulz are MaxText's constants for Muon; the
    method has its own. A momentum and its dtype go to recipes that have these. `axes`
    makes its dimension numbers of Muon's.
    """
    known = inspect.signature(recipe).parameters

    def muon(
        learning_rate: optax.ScalarOrSchedule,
        ns_coeffs: Any = None,
        ns_steps: Any = None,
        beta: float = 0.95,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        weight_decay_mask: Any = None,
        mu_dtype: Any = None,
        *,
        adam_b1: float = 0.9,
        adam_b2: float = 0.999,
        adam_eps_root: float = 0.0,
        adam_weight_decay: float = 0.0,
        adam_learning_rate: optax.ScalarOrSchedule | None = None,
        muon_weight_dimension_numbers: Any = None,
        consistent_rms: float | None = None,
        **of_muon: Any,
    ) -> optax.GradientTransformation:
        del ns_coeffs, ns_steps
        if consistent_rms is not None:
            raise ValueError(
                "`muon_consistent_rms` must be unset, got "
                f"{consistent_rms}: the method has its own scale; change the rate."
            )
        for name, value in of_muon.items():
            if name not in _OF_MUON:
                raise ValueError(
                    f"Arguments must be those of optax.contrib.muon, got {name!r}; "
                    "this version of MaxText needs another adapter."
                )
            if value != _OF_MUON[name]:
                raise ValueError(
                    f"`{name}` must be {_OF_MUON[name]!r}, got {value!r}: only Muon "
                    "has it; give the method its own arguments."
                )
        other = optax.adamw(
            learning_rate if adam_learning_rate is None else adam_learning_rate,
            b1=adam_b1,
            b2=adam_b2,
            eps=eps,
            eps_root=adam_eps_root,
            weight_decay=adam_weight_decay,
            mu_dtype=mu_dtype,
        )
        momentum = {"b1": beta, "mu_dtype": mu_dtype}
        arguments = {
            **{name: x for name, x in momentum.items() if name in known},
            "weight_decay": weight_decay,
            "weight_decay_mask": weight_decay_mask,
            "dimension_numbers": axes(muon_weight_dimension_numbers),
            "other": other,
        }
        return recipe(learning_rate, **{**arguments, **options})

    return muon


def _with_specs(placement: Any, config: Any, model: Any, mesh: Any) -> dict[str, Any]:
    """The placement as an argument, with MaxText's shardings if it has none."""
    if placement is None:
        return {}
    if getattr(placement, "param_specs", ()) is not None:
        return {"placement": placement}
    mesh = getattr(model, "mesh", None) if mesh is None else mesh
    if mesh is None:
        raise ValueError(
            "`placement` must know the mesh, but `get_optimizer` received none and the "
            "model has none; give om.owners(..., param_specs=...)."
        )
    from flax import nnx
    from flax.core.spmd import logical_axis_rules
    from maxtext.utils.sharding import nnx_construct_named_sharding

    with logical_axis_rules(config.logical_axis_rules):
        params = nnx.split(model, nnx.Param, ...)[1]
        specs = nnx.to_pure_dict(nnx_construct_named_sharding(params, mesh))
    return {"placement": dataclasses.replace(placement, param_specs=specs)}
