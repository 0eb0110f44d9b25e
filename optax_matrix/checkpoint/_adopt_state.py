"""Continues a run with the state of another optimizer, by name and parameter path."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from optax_matrix._arguments import AnyOptimizer, checked
from optax_matrix._mesh import Recorder, recording
from optax_matrix._paths import key_name, leaves_with_keys, named_leaves, path_name
from optax_matrix.checkpoint._entries import (
    check_values,
    entries_by_leaf,
)
from optax_matrix.checkpoint._kinds import check_signs, typed
from optax_matrix.checkpoint._portable import from_portable, to_portable
from optax_matrix.checkpoint._refusals import some
from optax_matrix.checkpoint.compacting import compact
from optax_matrix.checkpoint.gathering import on_host
from optax_matrix.quantization.packing import QuantizedState, unpacked
from optax_matrix.stacks.identities import paths_by_checksum
from optax_matrix.tree.holders import held_state
from optax_matrix.tree.state import states_in

_COUNTS = ("count", "gradient_step")
_FRESH = ("acc_grads", "zero_gradients")  # Zeros between two updates.
_SIDES = {"rows", "cols", "in", "out", "vectors", "tracked", "right"}
# Their second moments are those of polar factors and of momenta, not of gradients.
_OTHER_SQUARES = {"adamuon", "muon2"}


@checked
def adopt_state(
    source: Any,
    tx: AnyOptimizer,
    params: Any,
    *,
    count: int | None = None,
    missing: Literal["error", "init"] = "error",
    unused: Literal["error", "drop"] = "error",
) -> optax.OptState:
    r"""Fills a fresh state with the arrays of another optimizer, to continue its run.

    Arrays are found by name and parameter path. A name is the end of a place in
    `to_portable`:

    =================  =================================================================
    ``mu``             average of the gradients
    ``nu``             average of their squares
    ``weight``         :math:`1 - \beta^t`, the sum of the weights in an average whose
                       bias is corrected; a number
    ``rotation/rows``  eigenbasis of the output side; ``rotation/cols`` of the input
    ``gram/rows``      average of the Gram matrices of that side; ``gram/cols``
    ``basis/vectors``  basis of a subspace, ``(side, rank)``
    =================  =================================================================

    A longer name, such as ``momentum/weight``, distinguishes two. Moments have the
    shape of the parameter, those in an eigenbasis included: if you transpose the
    weights of another program, transpose their moments, too. Bases, Gram matrices and
    projected moments belong to the matrix ``(out, in)``; if they are not square, they
    may be transposed. Batch axes are in front.

    Counts of updates are adopted, those of schedules included. Hyperparameters and
    random keys are those of ``tx``.

    Args:
        source: State of an optimizer of optax or built like those (`optax.adamw`,
            `optax.contrib.muon`, rollfast), wrapped or not; or ``{name: tree}``, where
            a tree is like ``params`` or a part of them, or ``{path: array}``.
        tx: The optimizer that continues the run.
        params: The parameters.
        count: Number of updates so far; None for what ``source`` says.
        missing: What to do about arrays of ``tx`` that ``source`` lacks: ``"error"``,
            or ``"init"`` to start them afresh. A ``weight`` cannot start afresh beside
            an average that does not.
        unused: What to do about arrays of ``source`` that ``tx`` has no place for:
            ``"error"``, or ``"drop"``.

    Returns:
        A state with the structure, dtypes and sharding of ``tx.init(params)``.

    Raises:
        ValueError: If arrays are missing, unused, ambiguous or of another shape, if the
            count is unknown, if ``source`` is in the middle of an accumulation, or if
            its arrays are traced.

    Examples:
        >>> import jax.numpy as jnp, optax
        >>> import optax_matrix as om
        >>> params = {"kernel": jnp.ones((4, 8)), "bias": jnp.zeros(8)}
        >>> old, tx = optax.adamw(1e-3).init(params), om.muoneq(1e-2)
        >>> state = om.adopt_state(old, tx, params, unused="drop")

    References:
        ``.docs/guides/migrate.rst`` shows it for each program, and says what differs.
    """
    paths = paths_by_checksum(named_leaves(params))
    if "" in paths.values():
        raise ValueError(
            "`params` must have names, by which arrays are found, got one bare array; "
            "train a dict with one entry."
        )
    source = held_state(source, "source")
    check_values(source, "source")
    given, counts = _read(source, set(paths.values()))
    counts = counts if count is None else {count}
    recorder = Recorder({}, None)
    with recording(recorder):
        state = tx.init(params)
    views = {p: v for layout, _ in recorder.layouts for p, v in layout.views.items()}
    methods = {name for _, node in states_in(state) for name in node.method}
    portable: dict[str, Any] = dict(to_portable(state, params))
    entries = _entries(compact(state)[0], paths)
    used: dict[tuple[str, str], str] = {}
    absent, filled = list[str](), set[str]()
    for key, (place, path, shape, dtype, is_unsigned) in entries.items():
        leaf, _, piece = path.partition("#")
        if not path or _last(place) in (*_COUNTS, *_FRESH):
            continue
        role, form = _role(place)
        name = _longest_end(role, given.get(leaf, ()))
        foreign = name == "nu" and leaf in views and methods & _OTHER_SQUARES
        if name is None or foreign:
            absent.append(key)
            continue
        value = typed(given[leaf][name], dtype, f"{name} of {leaf}", "source")
        if is_unsigned:
            check_signs(value, f"{name} of {leaf}", "source")
        if used.setdefault((leaf, name), role) != role and value.ndim:
            raise ValueError(
                "`source` must name arrays such that each has one place in `tx`, got "
                f"{name!r} for {used[leaf, name]} and {role}; give longer names."
            )
        of_side = not _SIDES.isdisjoint(role.split("/"))
        if leaf in views and value.shape == views[leaf].shape and not of_side:
            stacks = views[leaf].to_matrices(jnp.asarray(value)[None])
            value = np.asarray(stacks[int(piece or 0)])
        portable[key] = _fitted(form(value), shape, f"{name!r} of {leaf!r}")
        filled.add(key)
    _check_complete(absent, given, used, missing, unused)
    for key, (place, path, shape, *_) in entries.items():
        if _last(place) in _COUNTS and _goes_on(place, path, entries, filled):
            portable[key] = np.broadcast_to(_only(counts), shape)
    # Of moments that were packed only their scales are left over.
    return from_portable(portable, state, params, unused="drop")


def _read(source: Any, known: set[str]) -> tuple[dict[str, dict], set[int]]:
    """The arrays of each parameter by name, and the counts of updates."""
    given, counts = dict[str, dict[str, np.ndarray]](), set[int]()
    packed = lambda node: isinstance(node, QuantizedState)
    plain = lambda node: unpacked(node) if packed(node) else node
    source = jax.tree.map(plain, source, is_leaf=packed)
    for keys, leaf in leaves_with_keys(source):
        ends = (k for k in range(1, len(keys)) if path_name(keys[k:]) in known)
        start = next(ends, None)
        if start is None:
            field = _last(path_name(keys))
            counts |= {_number(leaf)} if field in _COUNTS else set()
            if field == "mini_step" and int(leaf):
                raise ValueError(
                    "`source` must not be in the middle of an accumulation, got "
                    f"mini_step {int(leaf)}; go on after it is complete."
                )
            continue
        name, path = key_name(keys[start - 1]), path_name(keys[start:])
        if name in given.setdefault(path, {}):
            raise ValueError(
                f"`source` must hold one array {name!r} of {path!r}, got two; pass the "
                "part of the state that goes on, or {name: tree}."
            )
        if name not in _FRESH:
            given[path][name] = on_host(leaf)
    return given, counts


def _number(count: Any) -> int:
    """A count of updates; some programs have it as a float."""
    if int(count) != count:
        raise ValueError(
            f"`source` must hold whole numbers of updates, got {count}; pass count=."
        )
    return int(count)


def _entries(state: Any, paths: Mapping[int, str]) -> dict[str, tuple]:
    """Place, path, shape, dtype and sign of all state, by key in the portable form.

    Moments in fewer bits are floats here, and their scales are left out.
    """
    found = {}
    for leaf, entries in entries_by_leaf(state, paths):
        shape = np.shape(leaf)
        for entry in entries:
            if entry.is_derived:
                continue
            own = shape if entry.rows is None else (len(entry.rows), *shape[1:])
            dtype = np.dtype(np.float32) if entry.packed else jnp.result_type(leaf)
            about = entry.place, entry.path, own, dtype, entry.is_unsigned
            found[entry.key] = about
    return found


def _role(place: str) -> tuple[str, Callable[[np.ndarray], np.ndarray]]:
    """What a place holds, and the form in which it does."""
    lead, _, field = place.rpartition("/")
    if field == "root":
        return f"{lead}/nu", np.sqrt
    if field == "peak":
        return lead, _peak
    if field == "normalized":
        return lead, lambda gram: gram / np.where((peak := _peak(gram)), peak, 1) ** 2
    return place, lambda value: value


def _peak(gram: np.ndarray) -> np.ndarray:
    """The root of the largest entry, about the largest entry of the gradients."""
    return np.sqrt(np.abs(gram).max((-2, -1), keepdims=True))


def _longest_end(role: str, names: Iterable[str]) -> str | None:
    """The longest of the names that a role ends in."""
    return max(
        (n for n in names if f"/{role}".endswith(f"/{n}")), key=len, default=None
    )


def _last(place: str) -> str:
    return place.rpartition("/")[2]


def _fitted(value: np.ndarray, shape: tuple[int, ...], what: str) -> np.ndarray:
    """The array in this shape; the matrices that it consists of may be transposed."""
    if not value.ndim:
        return np.broadcast_to(value, shape)
    for x in (value, value.swapaxes(-2, -1) if value.ndim > 1 else value):
        if x.shape == shape:
            return x
        if x.size == np.prod(shape) and x.shape[-2:] == shape[1:][-2:]:
            return x.reshape(shape)
    raise ValueError(
        f"`source` must hold {what} in the shape of the parameter, or as {shape}, got "
        f"{value.shape}; transpose what belongs to transposed weights."
    )


def _check_complete(absent: list, given: dict, used: dict, missing: str, unused: str):
    """Raises unless every array has a place, and every place an array."""
    if missing == "init":  # An average divided by no weight would be far too large.
        adopted = {path for path, _ in used}
        parts = [(key, *key.partition("/weight/")[1:]) for key in absent]
        absent = [k for k, mid, at in parts if mid and at.partition("#")[0] in adopted]
    if absent:
        raise ValueError(
            f"`source` must hold all that `tx` keeps, but lacks {some(absent)}; "
            "give them by name (`weight` is 1 - decay**count), treat the same leaves "
            "as matrices (`dimension_numbers`), or pass missing='init'."
        )
    known = [(path, name) for path, arrays in given.items() for name in arrays]
    rest = [f"{name} of {path}" for path, name in known if (path, name) not in used]
    if not used or (rest and unused == "error"):
        raise ValueError(
            "`source` must hold arrays that `tx` keeps, but `tx` has no place for "
            f"{some(rest) or 'any'}; treat the same leaves as matrices "
            "(`dimension_numbers`), or pass unused='drop'."
        )


def _goes_on(place: str, path: str, entries: Mapping, filled: set[str]) -> bool:
    """Whether a count continues: some array beside it was adopted, if there is any."""
    lead = place.removesuffix(_last(place))
    near = [
        key
        for key, (other, at, *_) in entries.items()
        if at and (at == path or not path) and other.startswith(lead)
        if _last(other) not in (*_COUNTS, *_FRESH)
    ]
    return not near or not filled.isdisjoint(near)


def _only(counts: set[int]) -> int:
    if len(counts) != 1:
        raise ValueError(
            "`count` must be the number of updates so far where `source` does not say "
            f"it once, got counts {sorted(counts)}; pass count=."
        )
    return next(iter(counts))
