"""Calls that are refused: their whole texts in a file, and whether they reach every place that refuses.

A file of texts has one section a case: its name and the class, then the text, indented. With
``ARRAYEXEC_WRITE_TEXTS=1`` the files are written anew (to be read before they are committed).
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import arrayexec as ax

PACKAGE = Path(ax.__file__).parent
ROOT = Path(__file__).resolve().parents[2]
Faults = dict[str, BaseException]


class Recorder:
    """Cases by name, the file of their texts (if there is one), and the files whose refusals they cover.

    ``internal``: exceptions that users see only as what they become. ``elsewhere``: for a file, a part of each
    statement that cannot be reached here, and which test holds it (``tests/….py::test_…``) or why there is none.
    """

    def __init__(
        self,
        texts: Path | None,
        files: Sequence[Path],
        internal: Collection[str] = (),
        elsewhere: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        self.texts, self.files = texts, files
        self.internal, self.elsewhere = internal, elsewhere or {}
        self.calls: dict[str, Callable[[], Any]] = {}

    def case(self, function: Callable[[], Any]) -> Callable[[], Any]:
        """Decorator: a case under the name of the function."""
        self.cases(**{function.__name__: function})
        return function

    def cases(self, **given: Callable[[], Any]) -> None:
        """Cases by keyword."""
        assert not self.calls.keys() & given, "a name of a case stands twice"
        self.calls.update(given)

    def run(self) -> Faults:
        """The exception of every case; each runs in an empty folder and with names counted from 0."""
        found: Faults = {}
        for name, call in self.calls.items():
            try:
                with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), ax.NameManager():
                    call()
            except Exception as error:
                found[name] = error
        if self.texts and os.environ.get("ARRAYEXEC_WRITE_TEXTS"):
            text = "\n".join(section(name, error) for name, error in found.items())
            self.texts.write_text(text, encoding="utf-8")
        return found

    def written(self) -> dict[str, str]:
        """The sections of the file by name."""
        assert self.texts, "the texts stand beside their cases"
        parts = re.split(r"\n(?=\S)", self.texts.read_text(encoding="utf-8"))
        return {part.partition(":")[0]: part.strip("\n") + "\n" for part in parts if part.strip()}

    def missing(self, found: Faults) -> list[str]:
        """Refusals in the files that no case passed on its way, and exceptions from that which fit nothing."""
        reached: set[tuple[str, int]] = set()
        for error in found.values():
            linked: BaseException | None = error
            while linked is not None:  # an error that became another one was raised, too
                trace = linked.__traceback__
                while trace is not None:
                    reached.add((trace.tb_frame.f_code.co_filename, trace.tb_lineno))
                    trace = trace.tb_next
                linked = linked.__context__
        missing = []
        for path in self.files:
            name = path.relative_to(PACKAGE).as_posix()
            lines = sites(path, self.internal)
            hit = {lines[line] for file, line in reached if file == str(path) and line in lines}
            left = [site for site in dict.fromkeys(lines.values()) if site not in hit]
            allowed = self.elsewhere.get(name, {})
            missing += [f"{name}:{line}: {text}" for line, text in left if not any(part in text for part in allowed)]
            missing += [f"{name}: not left: {part}" for part in allowed if not any(part in text for _, text in left)]
        return missing

    def without_test(self) -> list[str]:
        """The tests that ``elsewhere`` names and that are not there."""
        named = [found for held in self.elsewhere.values() for text in held.values() for found in _TEST.findall(text)]
        return [f"{path}::{test}" for path, test in named if not _has(ROOT / path, test)]


_TEST = re.compile(r"(tests/[\w/.]*\w)(?:::(\w+))?")


def _has(path: Path, test: str) -> bool:
    return path.exists() and (not test or f"def {test}(" in path.read_text(encoding="utf-8"))


def section(name: str, error: BaseException) -> str:
    """The section of a case, without lines of files, counts and addresses, which change."""
    text = re.sub(r"\(((?:test|odd)_\w+)\.py:\d+\)", r"(\1.py:LINE)", str(error))
    text = re.sub(r"\(\d+ in all\)", "(N in all)", text)
    text = re.sub(r"0x[0-9a-f]{9,}", "0x…", text)
    return f"{name}: {type(error).__name__}\n" + "".join(f"    {line}\n" for line in text.splitlines())


def sites(path: Path, internal: Collection[str]) -> dict[int, tuple[int, str]]:
    """For every line of a statement that raises or calls a ``fail``: the statement's first line and its source."""
    source = path.read_text(encoding="utf-8")
    found = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Raise) and node.exc is not None:
            made = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            told = ast.unparse(made) not in internal
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            told = isinstance(node.value.func, ast.Attribute) and node.value.func.attr == "fail"
        else:
            continue
        if told:
            lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            found.update(dict.fromkeys(lines, (node.lineno, ast.get_source_segment(source, node) or "")))
    return found


def checks_of(recorder: Recorder, run: Callable[[], Faults] | None = None) -> tuple[Any, ...]:
    """Fixture ``found`` and the tests of a file of cases, to be bound to their names there when all cases stand.

    They are ``found, test_text, test_no_text_is_left_over, test_every_refusal_is_reached,
    test_what_is_held_elsewhere_is_there``; ``run`` stands for ``recorder.run`` where a file prepares it.
    """

    @pytest.fixture(scope="module")
    def found() -> Faults:
        return (run or recorder.run)()

    @pytest.mark.parametrize("name", recorder.calls)
    def test_text(name: str, found: Faults) -> None:
        assert name in found, "nothing was refused"
        assert section(name, found[name]) == recorder.written().get(name)

    def test_no_text_is_left_over() -> None:
        assert list(recorder.written()) == list(recorder.calls)

    def test_every_refusal_is_reached(found: Faults) -> None:
        left = recorder.missing(found)
        assert not left, left

    def test_what_is_held_elsewhere_is_there() -> None:
        left = recorder.without_test()
        assert not left, left

    return (
        found, test_text, test_no_text_is_left_over, test_every_refusal_is_reached,
        test_what_is_held_elsewhere_is_there,
    )  # fmt: skip
