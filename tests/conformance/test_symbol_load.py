"""Files of MXNet 0.8 to 1.9.1, whole and damaged: what they hold, and what MXNet writes after reading them."""

from __future__ import annotations

import json

import pytest

from arrayexec.errors import FileFormatError, UnknownOperatorError
from tests.conformance import golden
from tests.conformance.test_infer import agrees
from tests.conformance.test_listing import listing

CASES = {case["name"]: case for case in golden.cases("symbol_load")}
DAMAGED = {"sload_unknown_op": UnknownOperatorError, "sload_truncated": FileFormatError}


@pytest.mark.parametrize("name", sorted(set(CASES) - set(DAMAGED)))
def test_loads(name: str) -> None:
    case = CASES[name]
    symbol = golden.load_symbol(case)
    assert {**listing(symbol), "result": "ok"} == case["expect"]
    assert json.loads(symbol.tojson()) == json.loads((golden.DATA / case["resaved"]).read_text())
    shapes = {name: tuple(shape) for name, shape in case["known"].items()}
    assert agrees(symbol, symbol.infer_shape(**shapes), case["expect_shape"], "shapes")
    assert case["expect_type"] == {"result": "incomplete"}
    assert symbol.infer_type() == (None, None, None)


@pytest.mark.parametrize("name", sorted(DAMAGED))
def test_refuses(name: str) -> None:
    assert CASES[name]["expect"]["result"] == "error"
    with pytest.raises(DAMAGED[name]):
        golden.load_symbol(CASES[name])


def test_all_cases_are_here() -> None:
    assert len(CASES) == 8
