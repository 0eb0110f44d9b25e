"""Use, names and axis names read the same; where they differ, one is settled as right.

Where a case has answers, those settle a difference: the use is right or asks, and the
names are wrong, unless the answer allows both. `KINDS` says why names cannot know. The
models that the examples and other tests build have no answers: `SETTLED` has each leaf.
"""

import importlib
import re

import pytest
from _uses.battery import CASES, answer, answer_of, is_right, letters, read, read_case
from _uses.built_models import BUILT

from optax_matrix.matrices import MatrixDimensionNumbers, infer
from optax_matrix.matrices.decisions import decide

for name in (
    "flax_models",
    "other_models",
    "keras_models",
    "plain_models",
    "chosen_models",
):
    importlib.import_module(f"_uses.{name}")

# What the use says and what the names say instead; by kind why the use is right.
KINDS = {
    ("sections", "matrix"): "names and shapes do not show that a layer is fused",
    ("axes", "matrix"): "names do not tell `(out, in)`, heads, taps or a batch in it",
    ("matrix", "-"): "what is called gate, bias, scale, base, self or embedding, a "
    "kernel of one input channel, or a complex one, may multiply data",
    ("last layer", "matrix"): "a last layer has any name: out, fin, final, linear, q",
    ("table", "matrix"): "what is looked up has any name: y, msa, relpos, words, books",
    ("vector", "matrix"): "what meets data by entry has two axes, too: u, r_k, time",
    ("filter", "matrix"): "a depthwise kernel looks like a convolution's",
    ("router", "matrix"): "a router has any name: gate, without experts beside it",
}

# By model and leaf: what use, names, and axis names (None: they say nothing) read, and
# which is right.
FUSED = "use: queries, keys and values are three matrices in one kernel"
LAST = "use: nothing learned comes after; the name is no head's"
ONE = "use: a convolution that mixes its taps, of the only input channel"
SETTLED = {
    "gpt: layers/./attn/qkv/kernel": ("io/3", "io", "io", FUSED),
    "vit: layers/./attn/qkv/kernel": ("io/3", "io", "io", FUSED),
    "vit: stem/kernel": ("iiio", "-", None, ONE),
    "equinox_vit: conv/weight": ("oiii", "-", None, ONE),
    "quickstart: layers/6/kernel": ("-", "io", None, LAST),
    "quickstart_linen: params/Dense_2/kernel": ("-", "io", None, LAST),
    "coordinate_check: output": ("-", "io", None, LAST),
    "frameworks_haiku: decoder/linear/w": ("-", "io", None, LAST),
    "experts: experts/down": (
        *("-", "bio", None),
        "names: the layer stands for one inside a model; alone, it is the last",
    ),
}


def letters_of(view):
    if view is None:
        return "-"
    sides = view.reduction_axes, view.output_axes, view.output_sections
    return letters(MatrixDimensionNumbers(*sides), view.shape)


def kind_of(used, named, shape):
    """The kind of a difference, as in `KINDS`."""
    other = "-" if named == "-" else "matrix"
    if used.startswith("-"):
        return used[1:], other
    same_axes = is_right(used.partition("/")[0], named.partition("/")[0], shape)
    return "matrix" if other == "-" else "sections" if same_axes else "axes", other


def readings(verdicts, params):
    """Of leaves that the use tells: path, shape, and what the three say."""
    by_name, by_axes = decide(params), decide(params, infer(params))
    for verdict in verdicts:
        used = answer(verdict)
        if sum(n > 1 for n in verdict.shape) < 2 or used.startswith("?"):
            continue
        path, axes = verdict.path, by_axes[verdict.path]
        told = None if axes.is_guess else letters_of(axes.view)
        yield path, verdict.shape, used, letters_of(by_name[path].view), told


def agree(used, other, shape):
    return is_right("-" if used.startswith("-") else used, other, shape)


@pytest.mark.quick("mla", "eqx_nets", "scanned_llama_experts", "linen_scan1")
@pytest.mark.parametrize("name", CASES)
def test_where_names_differ_the_answer_is_against_them(name):
    params, answers, verdicts = read_case(name)
    for path, shape, used, named, told in readings(verdicts, params):
        assert told is None or agree(used, told, shape), path
        if agree(used, named, shape):
            continue
        want = answer_of(path, answers) or ""
        assert "|" in want or not is_right(named, want, shape), path
        assert kind_of(used, named, shape) in KINDS, (path, used, named)


@pytest.mark.quick("coordinate_check")
@pytest.mark.parametrize("name", BUILT)
def test_each_difference_is_settled(name):
    arguments, params = BUILT[name]()
    settled = {k: x for k, x in SETTLED.items() if k.startswith(f"{name}: ")}
    seen = set()
    for path, shape, used, named, told in readings(read(*arguments), params):
        if agree(used, named, shape) and (told is None or agree(used, told, shape)):
            continue
        key = next((k for k in settled if re.fullmatch(k, f"{name}: {path}")), None)
        assert key is not None, (path, used, named, told)
        seen.add(key)
        *want, _ = settled[key]
        for got, right in zip((used, named, told), want, strict=True):
            assert got == right or agree(got, right, shape), path
    assert seen == set(settled)
