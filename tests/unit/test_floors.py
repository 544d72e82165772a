"""The house stays small and its optional packages stay in their rooms.

import-linter (see pyproject.toml) holds the floors; this holds what it cannot see.
"""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

import pytest

import arrayexec

PACKAGE = Path(arrayexec.__file__).resolve().parent
FILES = sorted(PACKAGE.rglob("*.py"))

# Who may import an optional package. CuPy is also the array namespace of the CUDA kernels.
OPTIONAL = {
    "cupy": ("context.py", "comm/nccl.py", "kernels/cuda/"),
    "cupyx": ("context.py", "comm/nccl.py", "kernels/cuda/"),
    "mpi4py": ("comm/mpi.py",),
    "numba": ("kernels/numba/", "kernels/numba.py"),
    "PIL": ("train/image_codec.py",),
}
# Three walks through the engine (docs/design/rooms.md): how a symbol becomes a step, how steps are shared out over devices
# and ranks, how one model is built and trained on all of them. Catalogues (of operators, kernels, training and formats of
# files), and what stands above, are on none.
ABOVE = ("ops/", "kernels/", "files/", "train/", "module/", "interop/", "compat/", "testing/", "cli/", "__main__.py")
MANY = ("comm/", "parallel/")
MODEL = tuple(
    f"parallel/{name}.py"
    for name in "bmuf data_parallel_model device_net feeding model_checks model_state parallel_model predictor sparse".split()
)
LINES = {"one device": 5000, "many devices": 3000, "one model": 1500}
FILE_LINES = 400
FILE_BYTES = 24_000
LONGER_FILES: dict[str, str] = {}  # path: the reason why it is not cut in two


def relative(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def imports(tree: ast.AST) -> set[str]:
    """Top-level packages that a module imports anywhere, by statement or by ``import_module('…')``."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.partition(".")[0])
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                found.add(node.args[0].value.partition(".")[0])
    return found


def code_lines(text: str) -> int:
    """Lines that hold code: no blanks, no comments, no docstrings."""
    lines: set[int] = set()
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in skipped:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
                lines -= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return len(lines)


def test_counting_lines() -> None:
    text = '"""Doc\nof two lines."""\n\n# comment\nX = """a\nb"""\n\n\ndef f():\n    """Doc."""\n    return (\n        1\n    )\n'
    assert code_lines(text) == 6


def test_finding_imports() -> None:
    text = "import a.b, c\nfrom d.e import f\nfrom . import g\ndef h():\n    import i\n    import_module('j.k')\n"
    assert imports(ast.parse(text)) == {"a", "c", "d", "i", "j"}


@pytest.mark.parametrize("package", OPTIONAL)
def test_optional_package_stays_in_its_room(package: str) -> None:
    rooms = OPTIONAL[package]
    users = [relative(path) for path in FILES if package in imports(ast.parse(path.read_text()))]
    assert [user for user in users if not user.startswith(rooms)] == []


def test_optional_packages_are_imported_when_first_used() -> None:
    early = []
    for path in FILES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, (ast.Import, ast.ImportFrom)) and imports(node) & {"cupy", "cupyx", "mpi4py"}:
                early.append(f"{relative(path)}:{node.lineno}")
    assert early == []


def test_the_core_is_read_in_a_day(capsys: pytest.CaptureFixture[str]) -> None:
    counts = {relative(path): code_lines(path.read_text()) for path in FILES}
    core = {name: count for name, count in counts.items() if not name.startswith(ABOVE)}
    many = sum(count for name, count in core.items() if name.startswith(MANY))
    model = sum(core[name] for name in MODEL)
    found = {"one device": sum(core.values()) - many, "many devices": many - model, "one model": model}
    with capsys.disabled():
        print(f"\n  lines of code: {found} of {LINES}, all {sum(counts.values())}")
    assert all(0 < found[walk] < LINES[walk] for walk in LINES)


def test_no_file_is_too_long() -> None:
    long = {}
    for path in FILES:
        count, size = code_lines(path.read_text()), path.stat().st_size
        if count > FILE_LINES or size > FILE_BYTES:
            long[relative(path)] = f"{count} lines of code, {size} bytes"
    assert {name: size for name, size in long.items() if name not in LONGER_FILES} == {}
    assert set(LONGER_FILES) <= set(long), "an exception that is not needed any more"
