"""Counts the lines of the package: how much of it is code.

python tests/size.py

Code is what is left without docstrings, comments, imports and blank lines.
`test_size.py` holds the totals to their limits.
"""

import ast
import collections
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "optax_matrix"


def count(text: str) -> collections.Counter:
    """Lines of a module by kind: code, docstrings, comments, imports, blank."""
    kinds = dict.fromkeys(range(1, len(text.splitlines()) + 1), "code")
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            kinds[number] = "blank"
        elif line.lstrip().startswith("#"):
            kinds[number] = "comments"
    for node in ast.walk(ast.parse(text)):
        is_import = isinstance(node, ast.Import | ast.ImportFrom)
        text_alone = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_import or (text_alone and isinstance(node.value.value, str)):
            kind = "imports" if is_import else "docstrings"
            kinds |= dict.fromkeys(range(node.lineno, node.end_lineno + 1), kind)
    return collections.Counter(kinds.values())


def by_package() -> dict[str, collections.Counter]:
    """Lines by kind of each package inside the package."""
    found = collections.defaultdict(collections.Counter)
    for path in sorted(PACKAGE.rglob("*.py")):
        first, *rest = path.relative_to(PACKAGE).parts
        found[first if rest else "."].update(count(path.read_text()))
    return found


def main():
    """Prints the table."""
    kinds = ("code", "docstrings", "comments", "imports", "blank")
    print(f"{'package':16s}", *(f"{kind:>10s}" for kind in kinds), f"{'all':>8s}")
    found = by_package()
    found["all"] = sum(found.values(), collections.Counter())
    for name, lines in found.items():
        numbers = (f"{lines[kind]:10,d}" for kind in kinds)
        print(f"{name:16s}", *numbers, f"{lines.total():8,d}")


if __name__ == "__main__":
    main()
