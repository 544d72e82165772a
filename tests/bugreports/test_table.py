"""The table of this folder is exact: reports and tests name each other."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NUMBER = r"[BMW]?\d+"
FOREIGN = r"\b[A-Za-z]+(?:-[a-z]+)* (?=\d)"
"""The name of another project before its number."""


def rows() -> Iterator[tuple[str, list[str], list[str]]]:
    """(ancestor, numbers, what holds it) of each row."""
    ancestor = ""
    for line in (HERE / "README.md").read_text(encoding="utf-8").splitlines():
        ancestor = line[3:] if line.startswith("## ") else ancestor
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == 5 and re.search(r"\d", cells[1]):
            numbers = re.sub(FOREIGN, "", cells[1]).split(", ")
            assert all(re.fullmatch(NUMBER, number) for number in numbers), line
            assert cells[2], line
            yield ancestor, numbers, re.findall("`([^`]+)`", cells[3])


@functools.cache
def functions(path: Path) -> dict[str, str]:
    """The tests of a file and their docstrings."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    found = [node for node in body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    return {node.name: ast.get_docstring(node) or "" for node in found}


def borne(ancestor: str, name: str, text: str) -> set[str]:
    """The numbers that a test bears: those its name begins with, and of MXNet's those in its docstring."""
    prefix = "test_bug" if ancestor == "MXNet" else "test_rows?"
    begin = re.match(prefix + r"((?:_b?\d+)+)_", name)
    numbers = set(begin[1].upper().strip("_").split("_")) if begin else set()
    if ancestor == "MXNet":
        numbers |= set(re.findall(r"\bM\d+\b|(?<![\d.])\d{3,5}(?!\.?\d)", text))
    return numbers


TABLE = list(rows())
FILES = {path.name: functions(path) for path in sorted(HERE.glob("test_*.py")) if path.name != Path(__file__).name}
TESTS = {
    f"{file}::{name}": borne("Caffe2" if file == "test_caffe2.py" else "MXNet", name, text)
    for file, found in FILES.items() for name, text in found.items()
}  # fmt: skip


def test_no_number_stands_twice() -> None:
    numbers = [(ancestor, number) for ancestor, row, _ in TABLE for number in row]
    assert len(numbers) == len(set(numbers)) > 200
    for ancestor, letter in (("MXNet", "M"), ("MXNet", "W")):
        of_letter = [int(number[1:]) for one, number in numbers if one == ancestor and number[0] == letter]
        assert of_letter and sorted(of_letter) == list(range(1, len(of_letter) + 1))


@pytest.mark.parametrize(("ancestor", "numbers", "held"), TABLE, ids=["-".join(row[1]) for row in TABLE])
def test_what_a_row_names_is_there_and_bears_its_numbers(ancestor: str, numbers: list[str], held: list[str]) -> None:
    assert held
    for place in held:
        file, _, name = place.partition("::")
        page, _, heading = place.partition("#")
        if heading:
            assert re.search(f"^#+ {re.escape(heading)}$", (HERE / page).read_text(encoding="utf-8"), re.M), place
        else:
            assert name in functions(HERE / file), place
    if numbers[0][0] != "W":
        for number in numbers:
            assert any(number in TESTS.get(place, ()) for place in held), f"no test of {held} bears {number}"


@pytest.mark.parametrize("test", TESTS)
def test_each_test_stands_in_the_rows_of_its_numbers(test: str) -> None:
    ancestor = "Caffe2" if test.startswith("test_caffe2") else "MXNet"
    mine = [numbers for one, numbers, held in TABLE if one == ancestor and test in held and numbers[0][0] != "W"]
    assert mine, f"{test} stands in no row"
    missing = TESTS[test] - {number for numbers in mine for number in numbers}
    assert not missing, f"{test} bears {missing}, but does not stand in that row"
