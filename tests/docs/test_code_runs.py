"""The Python blocks of the pages run, in order, in one namespace a page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("docs/**/*.md"), *ROOT.glob("README.md")])
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_python_blocks_run(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    namespace: dict[str, object] = {"__name__": "page"}
    for match in BLOCK.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        code = compile("\n" * line + match[1], str(page), "exec")
        exec(code, namespace)
    assert len(BLOCK.findall(text)) == text.count("```python\n")
