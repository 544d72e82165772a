"""Pieces of old programs give what MXNet 1.9.1 gave."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import arrayexec.compat.mxnet as mx
from tests.compat import old_programs

RECORDED: dict[str, Any] = json.loads((Path(__file__).parent / "old_programs.json").read_text(encoding="utf-8"))


def same(found: Any, wanted: Any, where: str) -> None:
    """Compare two answers of a program, part by part."""
    if isinstance(wanted, dict) and "dtype" in wanted:
        assert found["dtype"] == wanted["dtype"], where
        np.testing.assert_allclose(found["values"], wanted["values"], rtol=1e-3, atol=2e-5, err_msg=where)
    elif isinstance(wanted, dict):
        assert found.keys() == wanted.keys(), where
        for name in wanted:
            same(found[name], wanted[name], f"{where}.{name}")
    elif isinstance(wanted, list):
        assert len(found) == len(wanted), where
        for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
            same(one, other, f"{where}[{number}]")
    else:
        assert found == (pytest.approx(wanted, rel=1e-3) if isinstance(wanted, float) else wanted), where


def test_all_programs_are_recorded() -> None:
    assert sorted(program.__name__ for program in old_programs.PROGRAMS) == sorted(RECORDED)


@pytest.mark.parametrize("program", old_programs.PROGRAMS, ids=lambda program: program.__name__)
def test_program(program: Callable[[Any], Any]) -> None:
    same(old_programs.plain(program(mx)), RECORDED[program.__name__], program.__name__)
