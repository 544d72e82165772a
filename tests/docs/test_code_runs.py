"""The Python blocks of the pages run, in order, in one namespace a page."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("docs/**/*.md"), *ROOT.glob("README.md")])
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_python_blocks_run(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = page.read_text(encoding="utf-8")
    module = types.ModuleType("page_of_the_documents")  # dataclasses look their module up
    monkeypatch.setitem(sys.modules, module.__name__, module)
    namespace = module.__dict__
    for match in BLOCK.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        code = compile("\n" * line + match[1], str(page), "exec")
        exec(code, namespace)
    assert len(BLOCK.findall(text)) == text.count("```python\n")


def test_the_output_in_the_readme_is_what_the_example_prints(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(r"```python\n(.*?)^```\n\n```text\n(.*?)^```", text, re.M | re.S)
    assert found is not None
    exec(compile(found[1], "README.md", "exec"), {"__name__": "readme"})
    assert capsys.readouterr().out == found[2]


def test_links_between_pages_exist() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
