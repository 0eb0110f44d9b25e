"""`near.py` chooses the tests that a change can reach, on a tree made for it."""

import subprocess

import near
import pytest

FILES = {
    "optax_matrix/__init__.py": "from optax_matrix.recipes import *",
    "optax_matrix/recipes/__init__.py": """
from optax_matrix.recipes._one import one
from optax_matrix.recipes._two import two
METHODS = [one, two]
""",
    "optax_matrix/recipes/_one.py": """
from optax_matrix.linalg import polar
def one(): polar()
""",
    "optax_matrix/recipes/_two.py": "def two(): pass",
    "optax_matrix/linalg/__init__.py": """
from optax_matrix.linalg._polar import polar
from optax_matrix.linalg.scale import size
""",
    "optax_matrix/linalg/_polar.py": "def polar(): pass",
    "optax_matrix/linalg/scale.py": "def size(): pass",
    "tests/_helper.py": "import optax_matrix as om\ndef made(): return om.two()",
    "tests/test_one.py": "import optax_matrix as om\nom.one()",
    "tests/test_texts.py": 'import optax_matrix as om\ngetattr(om, "one")',
    "tests/test_helped.py": "from _helper import made",
    "tests/test_scale.py": "import optax_matrix as om\nom.linalg.size()",
    "tests/test_module.py": "from optax_matrix.linalg import scale\nscale.size()",
    "tests/test_table.py": "from optax_matrix.recipes import METHODS",
    "tests/test_readme.py": 'README = "README.md"',
    "examples/study/runs.py": "from optax_matrix import two",
    "examples/study/tests/test_study.py": "from examples.study import runs",
    "README.md": "",
}
REACHED = {
    "optax_matrix/linalg/_polar.py": {"one", "texts"},
    "optax_matrix/linalg/scale.py": {"scale", "module"},
    "optax_matrix/recipes/_one.py": {"one", "texts"},
    "optax_matrix/recipes/_two.py": {"helped"},
    "examples/study/runs.py": {"study"},
    "optax_matrix/recipes/__init__.py": {"table"},
    "tests/_helper.py": {"helped"},
    "tests/test_one.py": {"one"},
    "README.md": {"readme"},
}


@pytest.fixture
def root(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_tests_use_what_defines_the_names_that_they_take(root):
    found = {x: near.near(root, [root / x]) for x in REACHED}
    names = {x: {y.stem.removeprefix("test_") for y in found[x]} for x in found}
    assert names == REACHED


def test_files_changed_since_the_base(root, capsys):
    run = lambda *args: subprocess.run(["git", *args], cwd=root, check=True)
    user = ("-c", "user.name=a", "-c", "user.email=a@b")
    run("init", "-q", "-b", "main")
    run("add", ".")
    run(*user, "commit", "-q", "-m", "first")
    assert near.changed_since(root, "main") == []
    run("checkout", "-q", "-b", "work")
    (root / "optax_matrix/linalg/scale.py").write_text("def size(): return 1")
    run(*user, "commit", "-q", "-a", "-m", "second")
    (root / "optax_matrix/recipes/_two.py").write_text("def two(): return 2")
    (root / "tests/_helper.py").unlink()
    (root / "tests/test_new.py").touch()
    changed = ("linalg/scale.py", "recipes/_two.py")
    wanted = [*(root / "optax_matrix" / x for x in changed), root / "tests/test_new.py"]
    assert near.changed_since(root, "main") == wanted
    assert near.main(root, ["--list"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("3 files differ from main; 3 of 9 test files reach them:\n")
    assert "\n  optax_matrix/recipes/_two.py\n" in said  # Its doctests.
    with pytest.raises(SystemExit, match="make test-near BASE=main"):
        near.changed_since(root, "no_such_branch")
