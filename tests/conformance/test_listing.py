"""Names, attributes and children of recorded symbols, as MXNet 1.9.1 lists them; and the symbol files to the byte."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conformance import golden

DIFFERENT: dict[str, str] = json.loads((golden.DATA.parent / "differences.json").read_text())
CASES = golden.cases("listing")
WAITING: set[str] = set()
"""Cases whose operators do not exist yet; exactly these."""


def listing(symbol: Any) -> dict[str, Any]:
    children = symbol.get_children()
    return {
        "name": symbol.name,
        "num_outputs": len(symbol),
        "arguments": symbol.list_arguments(),
        "auxiliary_states": symbol.list_auxiliary_states(),
        "outputs": symbol.list_outputs(),
        "internals_outputs": symbol.get_internals().list_outputs(),
        "children_outputs": None if children is None else children.list_outputs(),
        "attr_dict": symbol.attr_dict(),
        "list_attr": symbol.list_attr(),
    }


def test_waiting_is_exact() -> None:
    assert {case["name"] for case in CASES if golden.missing(case)} == WAITING


@pytest.mark.parametrize("case", [c for c in CASES if c["name"] not in WAITING], ids=lambda c: c["name"])
def test_listing(case: golden.Case) -> None:
    same = listing(golden.load_symbol(case)) == case["expect"]
    if case["name"] in DIFFERENT:
        assert not same, "listed in differences.json, but as recorded"
    else:
        assert listing(golden.load_symbol(case)) == case["expect"]


def test_one_name_is_one_argument() -> None:  # D6
    case = next(c for c in CASES if c["name"] == "list_duplicate_arg_names")
    assert listing(golden.load_symbol(case)) == {
        **case["expect"],
        "arguments": ["w"],
        "internals_outputs": ["w", "_mul0_output"],
    }


def written_cases() -> list[golden.Case]:
    """One case for each symbol file that MXNet 1.9.1 wrote itself."""
    found = {case["symbol"]: case for case in golden.cases(
        "operator", "network", "bind_error", "listing", "infer_shape", "infer_type"
    )}  # fmt: skip
    return list(found.values())


def test_every_written_file_is_written_again_to_the_byte() -> None:
    ready = [case for case in written_cases() if not golden.missing(case)]
    assert len(ready) > 100
    wrong = [c["name"] for c in ready if golden.load_symbol(c).tojson() != golden.symbol_text(c)]
    assert not wrong
