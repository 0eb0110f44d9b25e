"""The fine-tuning example at a toy size: what moves, what it costs, what it prints."""

import dataclasses

import jax
import numpy as np
import pytest

from examples import finetune
from examples.pretrain.config import SIZES
from examples.pretrain.step import initial_weights

pytestmark = pytest.mark.broad

TOY = dataclasses.replace(
    SIZES["tiny"], embed=16, mlp=24, heads=2, kv_heads=2, layers=1, context=16
)
RANK = 2
SIDES = [(16, 16)] * 4 + [(16, 24)] * 3  # (m, n), m <= n


@pytest.fixture(scope="module")
def settings():
    return finetune.Settings(
        TOY, pretrain_steps=2, steps=2, batch=4, ranks=(RANK,), methods=("galore",)
    )


@pytest.fixture(scope="module")
def books(settings):
    return [finetune.book(name, settings) for name in ("king_james", "moby_dick")]


STATE = {
    "adamw": sum(2 * m * n for m, n in SIDES),
    "galore": sum(2 * n * RANK + m * RANK for m, n in SIDES),
    "sumo": sum(n * RANK + m * RANK for m, n in SIDES),
    "lora": sum(2 * (n * RANK + m * RANK) for m, n in SIDES),
    # Blocks of five, the last of which sticks out, their moments, and permutations.
    "poet": sum(3 * 10 * (-(-m // 5) - (-n // 5)) + m + n for m, n in SIDES),
    "oft": sum(3 * 10 * -(-n // 5) + n for n in (16,) * 6 + (24,)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", finetune.METHODS)
def test_only_matrices_move_at_the_stated_cost(name, settings, books, monkeypatch):
    method = dataclasses.replace(finetune.METHODS[name], rates=(0.01,))
    monkeypatch.setitem(finetune.METHODS, name, method)
    params = initial_weights(TOY, 0)
    tuned = []

    def keep(*args):
        for peak, new in tune(*args):
            tuned.append(new)
            yield peak, new

    tune = finetune.tune
    monkeypatch.setattr(finetune, "tune", keep)
    result = finetune.measure(settings, name, RANK, params, books)
    assert (
        STATE[name] * 4 <= result.state < STATE[name] * 4 + 512
    )  # Counts, ids, names.
    assert result.added == (STATE["lora"] // 2 * 4 if name == "lora" else 0)
    assert np.isfinite([result.loss, result.first]).all()
    low_rank = name not in ("adamw", "poet", "oft")
    assert (result.captured > 0.999) == low_rank
    changed = jax.tree.map(lambda a, b: bool((a != b).any()), params, tuned[0])
    for path, leaf in jax.tree_util.tree_leaves_with_path(changed):
        is_layer = "layers" in str(path) and "norm" not in str(path)
        assert leaf == is_layer, path


@pytest.mark.slow
def test_command_line(capsys, monkeypatch):
    monkeypatch.setitem(finetune.SIZES, "tiny", TOY)
    galore = dataclasses.replace(finetune.METHODS["galore"], rates=(0.01,))
    monkeypatch.setitem(finetune.METHODS, "galore", galore)
    few = ["--pretrain-steps", "2", "--steps", "2", "--batch", "4", "--ranks", "2"]
    (result,) = finetune.main([*few, "--methods", "galore"])
    header, start, line = capsys.readouterr().out.splitlines()
    assert header == finetune.HEADER
    assert start.startswith("pretrained:")
    assert line == finetune.line(result)
    assert line.split()[:3] == ["galore", "2", "0.01"]
    assert len(line) == len(header)


@pytest.mark.parametrize(
    ("bad", "said"),
    [(few, "or more, got") for few in ("--steps=1", "--batch=0", "--ranks=0")]
    + [("--ranks=49", "at most 48, got 49")],
)
def test_counts_are_checked(capsys, bad, said):
    with pytest.raises(SystemExit):
        finetune.main([bad])
    assert said in capsys.readouterr().err
