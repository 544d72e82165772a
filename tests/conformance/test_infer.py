"""Shapes and types that follow from partly known ones, as recorded from MXNet 1.9.1."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from arrayexec.errors import ShapeError, TypeInferenceError, UnknownNameError
from tests.conformance import golden

DIFFERENT: dict[str, str] = json.loads((golden.DATA.parent / "differences.json").read_text())
SHAPES = golden.cases("infer_shape")
TYPES = golden.cases("infer_type")
WAITING = {
    "shape_fused_lm", "shape_dcgan_g", "shape_deconv_target", "shape_deconv_target_partial", "shape_rnn_params",
    "shape_rnn_params_partial", "type_where", "type_topk_both",
}  # fmt: skip
"""Cases whose operators do not exist yet; exactly these."""

_FC = ([(3, 7), (4, 7), (4,)], [(3, 4)], [])
OURS: dict[str, Any] = {
    "shape_fc_weight_and_batch": _FC,
    "shape_fc_weight_and_batch_partial": _FC,
    "shape_err_reshape": ShapeError,
    "shape_err_aux_like_name": ShapeError,
    "shape_concat_missing_partial": ([(2, 3), (2, 0)], [(2, 0)], []),
    "shape_conv_from_weight_partial": ([(0, 5, 0, 0), (4, 5, 3, 3), (4,)], [(0, 4, 0, 0)], []),
    "shape_flatten_unknown_partial": ([(0, 3, 4)], [(0, 12)], []),
}
"""Right answers to the cases of differences.json, from the shape rules by hand."""


def agrees(symbol: Any, got: Any, expect: dict[str, Any], what: str, partial: bool = False) -> bool:
    """Whether ``got`` (arguments, outputs, auxiliary states) is what was recorded.

    In a partial result a dim that MXNet left unknown may be known (D20), never another known dim.
    """
    if got[0] is None:
        return expect["result"] == "incomplete"
    names = symbol.list_arguments(), symbol.list_outputs(), symbol.list_auxiliary_states()
    for part, part_names, values in zip(("arg", "out", "aux"), names, got, strict=True):
        recorded = expect.get(f"{part}_{what}")
        if recorded is None or [name for name, _ in recorded] != part_names:
            return False
        for value, (_, wanted) in zip(values, recorded, strict=True):
            if what == "types":
                same = np.dtype(value).name == wanted
            elif partial:
                same = not wanted or (
                    len(value) == len(wanted) and all(w in (0, v) for v, w in zip(value, wanted, strict=True))
                )
            else:
                same = list(value) == wanted
            if not same:
                return False
    return True


def run_shape(case: golden.Case) -> tuple[Any, Any]:
    symbol = golden.load_symbol(case)
    infer = symbol.infer_shape_partial if case["partial"] else symbol.infer_shape
    return symbol, infer(**{name: tuple(shape) for name, shape in case["known"].items()})


def test_waiting_is_exact() -> None:
    assert {case["name"] for case in SHAPES + TYPES if golden.missing(case)} == WAITING


@pytest.mark.filterwarnings("ignore:infer_shape could not find")
@pytest.mark.parametrize("case", [c for c in SHAPES if c["name"] not in WAITING], ids=lambda c: c["name"])
def test_shapes(case: golden.Case) -> None:
    expect = case["expect"]
    if case["name"] in DIFFERENT:
        check_difference(case)
    elif expect["result"] == "error":
        with pytest.raises(UnknownNameError if "not found" in expect["message"] else ShapeError):
            run_shape(case)
    else:
        symbol, got = run_shape(case)
        assert agrees(symbol, got, expect, "shapes", case["partial"]), got


@pytest.mark.parametrize("case", [c for c in TYPES if c["name"] not in WAITING], ids=lambda c: c["name"])
def test_types(case: golden.Case) -> None:
    symbol = golden.load_symbol(case)
    if case["expect"]["result"] == "error":
        with pytest.raises(TypeInferenceError):
            symbol.infer_type(**case["known"])
    else:
        got = symbol.infer_type(**case["known"])
        assert agrees(symbol, got, case["expect"], "types"), got


def check_difference(case: golden.Case) -> None:
    """Ours is right, and is not what was recorded."""
    wanted = OURS[case["name"]]
    if wanted is ShapeError:
        assert case["expect"]["result"] != "error", "listed in differences.json, but as recorded"
        with pytest.raises(ShapeError):
            run_shape(case)
        return
    symbol, got = run_shape(case)
    assert got == wanted
    strict = case["expect"]["result"] == "ok" and agrees(symbol, got, case["expect"], "shapes")
    assert not strict, "listed in differences.json, but as recorded"
