"""Programs in MXNet's manner give the numbers that MXNet 1.9.1 gave."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import arrayexec.compat.mxnet as mx
from tests.compat import programs

RECORDED: dict[str, dict[str, list[float]]] = json.loads((Path(__file__).parent / "programs.json").read_text(encoding="utf-8"))


def test_all_programs_are_recorded() -> None:
    assert [program.__name__ for program in programs.PROGRAMS] == list(RECORDED)


@pytest.mark.parametrize("program", programs.PROGRAMS, ids=lambda program: program.__name__)
def test_program(program: Callable[[Any], dict[str, list[float]]]) -> None:
    found, wanted = program(mx), RECORDED[program.__name__]
    assert found.keys() == wanted.keys()
    for name, values in wanted.items():
        np.testing.assert_allclose(found[name], values, rtol=2e-3, atol=2e-5, err_msg=name)
