"""Tests that a transformation treats each matrix of a stack independently."""

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
import optax

from optax_matrix._surroundings import within
from optax_matrix.matrices.statistics import Sides
from optax_matrix.stacks.identities import identities
from optax_matrix.stacks.layout import Group, Layout, Member
from optax_matrix.tree._build import Build
from optax_matrix.tree._statistics import stand_ins
from optax_matrix.tree.state import is_ours

_SIDE = 6
_COUNT = 8  # More than `_SIDE`: factored statistics look for the largest axes.
_ROUNDED = 2  # Of these, as many may differ in a stack of another size.
_STEPS = 2
_STAND_IN = 0.5


def refuse_coupling(
    build: Build,
    layout: Layout,
    needs_params: bool = False,
    forms: Mapping[str, Sides] = MappingProxyType({}),
) -> None:
    """Raises if an update or a state leaf of one matrix depends on other matrices.

    The transformation is built for small stacks, and once more with an additional
    matrix in front of each, the newcomer, and both run for a few steps. Updates and
    state of the other matrices must not depend on the newcomer's entries; the partners
    of newcomers are newcomers. Without a newcomer, those of nearly all matrices must be
    the same: stacks of another size may round differently, and an ill-conditioned
    matrix amplifies that. The first groups of ``layout`` are tested, cut to small
    sides.
    """
    if not layout.groups:
        return
    small = [_small(layout, newcomers) for newcomers in (0, 1)]
    with within(layout=small[0]):
        _refuse_shapes(build, small[0], needs_params, forms)
    if not _coupled(build, small, needs_params, forms):
        return
    raise ValueError(
        "`build` must treat each matrix of a stack by itself, but it gives a matrix "
        "another update or state when other matrices join its stack, so results would "
        "change with grouping; reduce over the last two axes only, wrap the "
        "transformation that does not in optax_matrix.per_matrix(...), or chain it "
        "outside `on_matrices`."
    )


def _refuse_shapes(
    build: Build, layout: Layout, needs_params: bool, forms: Mapping[str, Sides]
) -> None:
    """Raises if updates have other shapes than gradients."""
    stacks = _stacks(layout, 0, is_loud=False)
    tx = optax.with_extra_args_support(build(layout))
    run = lambda params: jax.eval_shape(
        lambda x, extra: tx.update(x, tx.init(x), params, **extra)[0],
        stacks,
        stand_ins(forms, layout),
    )
    try:
        new = run(stacks if needs_params else None)
    except Exception as error:
        if is_ours(error):
            raise
        if not needs_params and _succeeds(run, stacks):
            raise ValueError(
                "`needs_params` must be True, because `build` uses the parameters: "
                f"without them it raised {type(error).__name__}; pass "
                "needs_params=True."
            ) from error
        error.add_note("`on_matrices` probes `build` in `init`, unless probe=False.")
        raise
    found = {name: getattr(new.get(name), "shape", None) for name in stacks}
    for name, x in stacks.items():
        if found[name] != x.shape:
            raise ValueError(
                "`build` must return updates of the shape of the gradients, but for a "
                f"stack of shape {x.shape} it returned {found[name]}; a block that "
                "transposes matrices must transpose its result back."
            )


def _succeeds(f: Callable, *args: Any) -> bool:
    try:
        f(*args)
    except Exception:
        return False
    return True


def _small(layout: Layout, newcomers: int) -> Layout:
    groups: dict[str, Group] = {}
    views = dict(layout.views)
    for name, group in _first_groups(layout):
        first = group.members[0]
        newcomer = Member(f"newcomer beside {first.path}", first.piece, 0, newcomers)
        views[newcomer.path] = views[first.path]
        members = (newcomer, dataclasses.replace(first, start=newcomers, count=_COUNT))
        groups[name] = dataclasses.replace(
            group,
            rows=min(group.rows, _SIDE),
            cols=min(group.cols, _SIDE),
            dtype=np.dtype(np.float32),
            spec=(None, None, None),
            members=members,
            count=_COUNT + newcomers,
            ids=_ids(members),
            forms=np.tile(group.forms[:1], (_COUNT + newcomers, 1)),
        )
    partners = {a: b for a, b in layout.partners.items() if a in groups}
    return dataclasses.replace(layout, groups=groups, views=views, partners=partners)


def _first_groups(layout: Layout) -> list[tuple[str, Group]]:
    """The first two groups; with pairs those of the first pair, and one without."""
    pairs = list(layout.partners.items())
    paired = {name for pair in pairs for name in pair}
    alone = [name for name in layout.groups if name not in paired]
    names = [*pairs[0], *alone[:1]] if pairs else alone[:2]
    return [(name, layout.groups[name]) for name in names]


def _ids(members: tuple[Member, ...]) -> np.ndarray:
    rows = [identities(m.path, m.piece, np.arange(m.count)) for m in members]
    return np.concatenate(rows)


def _coupled(
    build: Build,
    layouts: list[Layout],
    needs_params: bool,
    forms: Mapping[str, Sides],
) -> bool:
    run = _runner(build, layouts, needs_params, forms)
    with jax.ensure_compile_time_eval(), jax.debug_nans(False):
        (alone, joined), (_, loud) = run(), run(is_loud=True)
    found = alone, joined, loud
    if len({jax.tree.structure(tree) for tree in found}) > 1:
        return True
    leaves = zip(*map(jax.tree.leaves, found), strict=True)
    return not all(_independent(*map(np.asarray, same)) for same in leaves)


def _runner(
    build: Build,
    layouts: list[Layout],
    needs_params: bool,
    forms: Mapping[str, Sides],
) -> Callable:
    """A function that returns updates and state of each layout after a few steps.

    All layouts are in one program, because the time goes into compiling programs.
    """

    def each(method: str, *args: Any) -> list:
        found = []
        for layout, own in zip(layouts, zip(*args, strict=True), strict=True):
            with within(layout=layout):
                tx = optax.with_extra_args_support(build(layout))
                *plain, extra = own
                found.append(getattr(tx, method)(*plain, **extra))
        return found

    none = [None] * len(layouts)
    stacks = lambda *args: [_stacks(layout, *args) for layout in layouts]
    statistics = lambda loud: [_statistics(forms, x, loud) for x in layouts]
    x = stacks(0, False)
    init, states = _compiled(partial(each, "init"), x, [{}] * len(layouts))
    args = x, states, x if needs_params else none, statistics(False)
    update, _ = _compiled(partial(each, "update"), *args)

    def run(is_loud: bool = False) -> Any:
        *steps, last = (stacks(seed, is_loud) for seed in range(_STEPS + 1))
        params = last if needs_params else none
        states, outputs = init(last, [{}] * len(layouts)), []
        for x in steps:
            results = update(x, states, params, statistics(is_loud))
            states = [state for _, state in results]
            outputs.append([updates for updates, _ in results])
        return jax.tree.map(_raw, list(zip(*outputs, states, strict=True)))

    return run


def _compiled(f: Callable, *args: Any) -> tuple[Callable, Any]:
    """`f` for arguments like these, and the shapes of its result.

    Under the user's `jax.jit`, a learning rate, say, has no value yet: each tracer that
    `f` reads gets a stand-in. `f` is traced and compiled here and not inside of
    `ensure_compile_time_eval`, which would run each constant as a program of its own.
    """
    from jax.extend.core import jaxpr_as_fun  # This loads Pallas: slow.

    is_traced = lambda x: isinstance(x, jax.core.Tracer)
    known = lambda x: np.full(x.shape, _STAND_IN, x.dtype) if is_traced(x) else x
    jaxpr, result = jax.make_jaxpr(f, return_shape=True)(*args)
    jaxpr = jaxpr.replace(consts=[*map(known, jaxpr.consts)])
    run = jax.jit(jaxpr_as_fun(jaxpr)).lower(*jax.tree.leaves(args)).compile()
    structure = jax.tree.structure(result)
    return lambda *args: structure.unflatten(run(*jax.tree.leaves(args))), result


def _stacks(layout: Layout, seed: int, is_loud: bool) -> dict[str, np.ndarray]:
    stacks = {}
    for i, (name, group) in enumerate(layout.groups.items()):
        rng = np.random.default_rng((seed, i))
        x = rng.standard_normal((1 + _COUNT, group.rows, group.cols), np.float32)
        if is_loud:  # Another newcomer, with a large effect, if it has any;
            x[0] = 1e3 * rng.standard_normal(x.shape[1:], np.float32)
            if seed == _STEPS - 1:
                x[0, 0, 0] = np.nan  # in the last step NaN spreads to all it affects.
        stacks[name] = x[-group.count :]
    return stacks


def _statistics(forms: Mapping[str, Sides], layout: Layout, is_loud: bool) -> Any:
    """Statistics of the stacks, those of a newcomer in front."""
    one_more = {
        name: dataclasses.replace(group, count=1 + _COUNT)
        for name, group in layout.groups.items()
    }
    whole = dataclasses.replace(layout, groups=one_more)
    found = stand_ins(forms, whole, loud=1e3 if is_loud else 1.0)
    own = lambda stacks: {n: x[-layout.groups[n].count :] for n, x in stacks.items()}
    return {name: own(stacks) for name, stacks in found.items()}


def _raw(x: Any) -> Any:
    is_key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(x) if is_key else x


def _independent(alone: np.ndarray, joined: np.ndarray, loud: np.ndarray) -> bool:
    """Whether a leaf does not depend on the newcomer, where there is one."""
    is_stack = alone.shape != joined.shape
    if is_stack:
        count, *sides = alone.shape or (0,)
        if count != _COUNT or joined.shape != (1 + _COUNT, *sides):
            return False
        joined, loud = joined[1:], loud[1:]
    if alone.dtype == np.uint32:
        return True  # Keys and fingerprints: rounding changes every bit of them.
    if not _close(joined, loud).all():
        return False
    same = _close(alone, joined).reshape(_COUNT if is_stack else 1, -1).all(1)
    return bool(np.sum(~same) <= _ROUNDED * is_stack)


def _close(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    scale = np.abs(a).max(initial=0.0)
    return np.isclose(a, b, rtol=1e-3, atol=1e-5 * scale, equal_nan=True)
