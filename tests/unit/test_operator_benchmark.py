"""The benchmark of operators leaves none out, and every row fits its operator."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arrayexec.registry import Sample, get_op
from arrayexec.testing.trial import Trial

HOME = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(HOME))
    return importlib.import_module("operators")


def test_every_operator_has_a_row(benchmark: Any) -> None:
    rows = {get_op(row.op).form.name for row in benchmark.rows()}
    assert [name for name in benchmark.operators() if name not in rows] == []


def test_every_row_names_its_use_and_fits_its_operator(benchmark: Any) -> None:
    for row in benchmark.rows():
        assert row.use
        shapes = {k: Sample(v.shape) if isinstance(v, np.ndarray) else v for k, v in row.example.items()}
        trial = Trial(get_op(row.op), shapes, np.float32)
        assert all(trial.shape(name) for name in (*trial.signature.arguments, *trial.signature.outputs))
