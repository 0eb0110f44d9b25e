"""A type checker finds mistakes in calls of recipes before the program runs."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CORRECT = """\
import jax.numpy as jnp
import optax

import optax_matrix as om

schedule = optax.linear_schedule(1e-3, 0.0, 100)
om.alice(0.02, rank=128, switch="complement", weight_decay=schedule)
om.muoneq(1e-3, mode=None, b1=jnp.float32(0.9), other=optax.adamw(1e-3))
om.muoneq(schedule, mode="col", mu_dtype=jnp.bfloat16, other_learning_rate=1e-4)
om.scale_by_muon(nesterov=False, polar=om.linalg.polar_svd)
optax.chain(om.scale_by_racs(), optax.scale_by_learning_rate(1e-3))
om.eigen_sign(1e-3, policy="eigen_exact", placement=om.owners("fsdp"))
optimizers: list[optax.GradientTransformationExtraArgs] = [
    om.muoneq(1e-3),
    om.scale_by_muoneq(b1=0.9),
    om.kl_soap(1e-3),
    om.scale_by_kl_soap(),
]
"""
PLANTED = {
    "wrong literal": 'om.muoneq(1e-3, mode="diagonal")',
    "unknown keyword": "om.alice(0.02, ranks=128)",
    "wrong type of a common keyword": 'om.muon(1e-3, other="adamw")',
    "missing learning rate": "om.swan()",
    "wrong type of a number": 'om.soap(1e-3, b1="0.9")',
    "unknown keyword of an update": "om.scale_by_muoneq(modes=None)",
    "unknown keyword of a preset": "om.kl_soap(1e-3, betas=0.9)",
    "wrong type in an update": 'om.scale_by_muoneq(nesterov="yes")',
    "learning rate of an update": "om.scale_by_muoneq(1e-3)",
    "no method": "om.muoneq(1e-3).chain",
    "unknown recipe": "om.muonq(1e-3)",
}

pytestmark = [
    pytest.mark.broad,
    pytest.mark.skipif(
        importlib.util.find_spec("pyright") is None, reason="pyright is not installed"
    ),
]


@pytest.fixture(scope="module")
def errors(tmp_path_factory):
    """Per file the lines, counted from zero, in which pyright finds an error."""
    folder = tmp_path_factory.mktemp("typing")
    planted = ["import optax_matrix as om", *PLANTED.values(), ""]
    (folder / "correct.py").write_text(CORRECT)
    (folder / "planted.py").write_text("\n".join(planted))
    config = {"typeCheckingMode": "basic", "extraPaths": [str(ROOT)]}
    (folder / "pyrightconfig.json").write_text(json.dumps(config))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--project", folder]
    command += ["--pythonpath", sys.executable]
    report = json.loads(subprocess.run(command, capture_output=True, text=True).stdout)
    assert report["summary"]["filesAnalyzed"] == 2
    lines = {"correct.py": {}, "planted.py": {}}
    for found in report["generalDiagnostics"]:
        line = found["range"]["start"]["line"]
        lines[Path(found["file"]).name][line] = found["message"]
    return lines


def test_correct_calls_have_no_error(errors):
    assert not errors["correct.py"]


def test_planted_errors_are_all_found(errors):
    found = errors["planted.py"]
    assert [m for line, m in enumerate(PLANTED, start=1) if line not in found] == []
    assert 0 not in found
