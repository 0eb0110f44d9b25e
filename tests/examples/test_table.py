"""A run saves which weights are matrices, and one that resumes it reads the same."""

import dataclasses
import json
import re
import warnings

import jax
import pytest

import optax_matrix as om
from examples.pretrain import step
from examples.pretrain.cli import main
from examples.pretrain.config import SIZES
from examples.pretrain.directory import TABLE
from examples.pretrain.optimizers import OPTIMIZERS, find
from optax_matrix.matrices.decisions import decide
from optax_matrix.matrices.use import answers, verdicts

MODEL = dataclasses.replace(
    SIZES["tiny"], embed=16, mlp=24, heads=2, kv_heads=2, layers=2, context=8
)
SETTINGS = (
    *("--context", "8", "--batch", "4", "--validation", "4"),
    *("--optimizer", "muoneq", "--steps", "4"),
)


@pytest.mark.broad
@pytest.mark.parametrize("scan", [False, True])
def test_use_reads_the_model_as_its_axis_names_do(scan):
    config = dataclasses.replace(MODEL, scan=scan)
    params = jax.eval_shape(step.initial_weights, config, 0)
    rule = step.matrices(config)
    used, named = decide(params, rule), decide(params, om.matrices.infer(params))
    assert {p: d.view for p, d in used.items()} == {p: d.view for p, d in named.items()}
    for verdict in rule.verdicts:
        if (numbers := verdict.numbers) and verdict.kind == "matrix":
            view = named[verdict.path].view
            assert numbers.residual == view.residual
            assert numbers.layer_axis == (view.layer_axes[0] if scan else None)


@pytest.mark.broad
@pytest.mark.parametrize("name", ["muoneq", "galore", "poet", "lora"])
def test_every_kind_of_method_gets_the_numbers_of_the_model(name):
    model = dataclasses.replace(MODEL, layers=1)
    table = step.matrices(model).table()
    fewer = {path: None if "mlp" in path else x for path, x in table.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", om.matrices.ChangedUseWarning)
        trainer = step.Trainer(model, OPTIMIZERS[name], 4, 1, table=fewer)
    assert trainer.table == fewer
    whole = step.Trainer(model, OPTIMIZERS[name], 4, 1)
    assert whole.table == table
    states = [str(jax.eval_shape(one.init, 0).opt_state) for one in (trainer, whole)]
    assert states[0] != states[1]


@pytest.mark.broad
def test_kernels_that_do_not_show_their_heads_are_split():
    trainer = step.Trainer(MODEL, find("muon:heads=split"), 4, 1)
    state = jax.eval_shape(trainer.init, 0)
    stacks = {x.shape for x in jax.tree.leaves(state.opt_state)}
    assert (12, 8, 16) in stacks  # 2 layers, 3 readers, 2 heads.


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(bytes(range(97, 123)) * 40)
    return str(path)


def _turned(*_):
    return om.MatrixDimensionNumbers(1, 0)


@pytest.mark.slow
@pytest.mark.filterwarnings("default:The model uses parameters in another")
def test_a_resumed_run_uses_its_table(tmp_path, monkeypatch, capsys, text):
    """Also under a version that reads the model otherwise: the same weights."""
    out, losses = tmp_path / "run", []
    command = ["--data", text, *SETTINGS, "--out", str(out)]
    assert main([*command, "--checkpoint-every", "2", "--log-every", "1"]) == 0
    table = (out / TABLE).read_text()
    assert json.loads(table)["layers/0/attn/q/kernel"]["reduction_axis"] == 0
    for wrong in (False, True):
        rows = (out / "metrics.jsonl").read_text().splitlines()
        losses.append([json.loads(row)["loss"] for row in rows])
        (out / "checkpoints" / "4").rename(tmp_path / f"last{wrong}")
        capsys.readouterr()
        with monkeypatch.context() as patch:
            if wrong:
                patch.setattr(answers, "axes_told", lambda _: lambda *_: None)
                patch.setattr(verdicts, "numbers_of", _turned)
            assert main([*command, "--log-every", "1", "--resume"]) == 0
        said = capsys.readouterr().err
        assert ("in another way than `table`" in said) == wrong, said
        assert (out / TABLE).read_text() == table
    assert losses[0] == losses[1]
    rows = (out / "metrics.jsonl").read_text().splitlines()
    assert losses[0] == [json.loads(row)["loss"] for row in rows]


@pytest.mark.broad
@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "matrices.json is damaged"),
        ('{"layers/9/w": null}', "does not fit: `table` must have paths .* layers/9/w"),
        ('{"norm/scale": 3}', "does not fit: `table` must have .* for 'norm/scale'"),
    ],
)
def test_a_bad_table_gets_one_line(tmp_path, capsys, text, content, says):
    out = tmp_path / "run"
    out.mkdir()
    (out / TABLE).write_text(content)
    assert main(["--data", text, *SETTINGS, "--out", str(out), "--resume"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert re.search(says, said), said
