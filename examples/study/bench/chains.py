"""The algebra of methods: a chain is one choice of each of six parts.

    momentum      average | lookahead | corrected (variance reduction, then lookahead)
    frame         none | aro | eigen, on the side of the residual stream
    equilibration none | row | col | rowcol before the map, plus_row | plus_colrow after
    map           polar | sinkhorn | sign | row_norm | adam
    second moment none | row | entry, of the map's output
    size          rms (0.2 for each matrix) | out/in (that times sqrt(out / in),
                  never less than 1)

Scalings of rows and columns are tried around the polar factor only, which is the same
in every frame. Chains that are equal to others are left out; `KNOWN` are the ones that
have been published.
"""

import itertools
from collections.abc import Iterator, Mapping
from functools import partial

import optax

import optax_matrix as om
from examples.pretrain.optimizers import Arena
from examples.pretrain.options import Method

PARTS = {
    "momentum": ("average", "lookahead", "corrected"),
    "frame": ("none", "aro", "eigen"),
    "equilibration": ("none", "row", "col", "rowcol", "plus_row", "plus_colrow"),
    "map": ("polar", "sinkhorn", "sign", "row_norm", "adam"),
    "second": ("none", "row", "entry"),
    "size": ("rms", "out/in"),
}
B1 = B2 = 0.95
SCALINGS = {
    "none": (),
    "row": (om.linalg.scale_rows,),
    "col": (om.linalg.scale_columns,),
    "rowcol": (om.linalg.scale_rows_and_columns,),
    "colrow": (om.linalg.scale_columns, om.linalg.scale_rows),
}


def sensible() -> Iterator[str]:
    """The names of all chains that differ."""
    for choice in itertools.product(*PARTS.values()):
        parts = dict(zip(PARTS, choice, strict=True))
        if is_sensible(parts):
            yield name_of(**parts)


def is_sensible(parts: Mapping[str, str]) -> bool:
    """Whether a chain is in the search, and not another one under a second name."""
    kind, frame, second = parts["equilibration"], parts["frame"], parts["second"]
    if parts["map"] == "polar":
        has_equal_rows = kind.startswith("plus_")
        return frame == "none" and not (has_equal_rows and second == "row")
    if kind != "none":
        return False
    if parts["map"] == "sign" and frame == "none":
        return second == "none"  # All entries have one size.
    if parts["map"] == "row_norm":  # ARO's rotation is then that of the eigenvectors.
        return frame != "aro" and not (frame == "none" and second == "row")
    return not (parts["map"] == "adam" and second == "entry")


def name_of(**parts: str) -> str:
    """The name of a chain; parts that are not given have their first choice."""
    chosen = {part: parts.get(part, choices[0]) for part, choices in PARTS.items()}
    return "chain:" + ":".join(f"{part}={x}" for part, x in chosen.items())


_LOOKAHEAD = {"momentum": "lookahead", "map": "polar"}
# Recipes by the name of their chain; sizes of matrices may differ by a constant.
KNOWN = {
    name_of(**_LOOKAHEAD): "muon",
    name_of(**_LOOKAHEAD, equilibration="row"): "muoneq",
    name_of(**_LOOKAHEAD, equilibration="col"): "muoneq:mode=col",
    name_of(**_LOOKAHEAD, equilibration="rowcol"): "muoneq:mode=rowcol",
    name_of(**_LOOKAHEAD, equilibration="plus_row"): "muon_plus:mode=row",
    name_of(**_LOOKAHEAD, equilibration="plus_colrow"): "muon_plus",
    name_of(**_LOOKAHEAD, second="row"): "normuon",
    name_of(**_LOOKAHEAD, second="entry"): "adamuon:variant=unsigned:b2=0.95",
    name_of(frame="aro", map="sinkhorn"): "aro",
    name_of(frame="aro", map="sign"): "aro:base=sign",
    name_of(frame="aro", map="adam"): "aro:base=adam",
    name_of(frame="eigen", map="sinkhorn"): "eigen_sinkhorn",
    name_of(frame="eigen", map="sign"): "eigen_sign",
    name_of(frame="eigen", map="row_norm"): "eigen_rownorm",
}


def chains(arena: Arena) -> Method:
    """The method `chain`, whose options are the parts and `b1`; by default MuonEq."""

    def build(lr, b1, **parts):
        for part, choice in parts.items():
            if choice not in PARTS[part]:
                known = ", ".join(PARTS[part])
                raise ValueError(f"`{part}` must be one of {known}, got {choice!r}.")
        return om.on_matrices(
            optax.chain(*_blocks(b1, parts)),
            after=optax.chain(
                optax.add_decayed_weights(arena.weight_decay),
                optax.scale_by_learning_rate(lr),
            ),
            other=arena.adamw(lr),
            dimension_numbers=arena.dimension_numbers,
        )

    chosen = {"momentum": "lookahead", "equilibration": "row"}
    first = {part: choices[0] for part, choices in PARTS.items()}
    return Method(build, first | chosen | {"b1": B1})


def _blocks(b1, parts):
    """The blocks of a chain, in their order."""
    if parts["momentum"] == "corrected":
        yield om.transforms.correct_variance(0.025, b1)
    yield om.momentum(b1, nesterov=parts["momentum"] != "average")
    kind = parts["equilibration"]
    scalings = map(om.equilibrate, SCALINGS[kind.removeprefix("plus_")])
    if kind.startswith("plus_"):
        yield _mapped(parts)
        yield from scalings
    else:
        yield from scalings
        yield _mapped(parts)
    if parts["second"] == "row":
        yield om.transforms.equilibrate_with_ema(om.row_rms, B2)
    if parts["second"] == "entry":
        yield om.scale_by_second_moment(B2)
    yield om.match_rms(0.2)
    if parts["size"] == "out/in":
        yield om.scale_by_shape("out/in")


def _mapped(parts):
    """The map, in its frame."""
    base = MAPS[parts["map"]]()
    if parts["frame"] == "none":
        return base
    side = lambda layout: om.stacks.oriented_sides(layout, "residual")
    return om.rotate(base, policy=parts["frame"], side=side)


MAPS = {
    "polar": partial(om.orthogonalize, om.linalg.newton_schulz),
    "sinkhorn": partial(om.equilibrate, partial(om.linalg.sinkhorn, rounds=5)),
    "sign": optax.scale_by_sign,
    "row_norm": partial(om.equilibrate, partial(om.linalg.scale_rows, eps=0.0)),
    "adam": partial(om.scale_by_second_moment, B2),
}
