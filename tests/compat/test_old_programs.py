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


def test_a_schedule_is_asked_for_the_rates_of_updates_alone() -> None:
    asked: list[int] = []

    class Halved(mx.lr_scheduler.LRScheduler):  # type: ignore[misc, name-defined]
        def __call__(self, num_update: int) -> float:
            asked.append(num_update)
            return float(self.base_lr) * 0.5 ** (num_update - 1)

    module = mx.mod.Module(old_programs.perceptron(mx))
    batches = mx.io.NDArrayIter(old_programs.ROWS, old_programs.CLASSES, 10)
    module.fit(batches, optimizer="adam", optimizer_params={"lr_scheduler": Halved(base_lr=0.1)}, num_epoch=1)
    assert sorted(set(asked)) == [1, 2, 3, 4]


class TwoSums(mx.metric.EvalMetric):
    """A metric of two values, as programs for several tasks wrote it: all that gives a value is its own."""

    def __init__(self) -> None:
        super().__init__("two")

    def reset(self) -> None:
        self.num_inst, self.sum_metric = [0, 0], [0.0, 0.0]  # type: ignore[assignment]

    def update(self, labels: Any, preds: Any) -> None:
        for i in range(2):
            self.sum_metric[i] += float(preds[0].sum().asscalar()) + i  # type: ignore[index]
            self.num_inst[i] += 2  # type: ignore[index]

    def get(self) -> Any:
        sums = zip(self.sum_metric, self.num_inst, strict=True)  # type: ignore[call-overload]
        return ["two_0", "two_1"], [total / count for total, count in sums]

    def get_name_value(self) -> Any:  # type: ignore[override]
        return list(zip(*self.get(), strict=True))


class Doubled(mx.metric.EvalMetric):
    """A metric whose value is made of its base class's."""

    def update(self, labels: Any, preds: Any) -> None:
        self.sum_metric += float(preds[0].sum().asscalar())
        self.num_inst += 2

    def get(self) -> Any:
        name, value = super().get()
        return name, 2 * value


def test_values_that_a_metric_gives_in_its_own_way(caplog: pytest.LogCaptureFixture) -> None:
    preds = [mx.nd.array([[1, 2], [3, 0]])]
    both = mx.metric.CompositeEvalMetric([TwoSums(), Doubled("doubled"), mx.metric.Loss()])
    speedometer = mx.callback.Speedometer(2, 1)
    with caplog.at_level("INFO"):
        for batch in range(3):
            both.update([], preds)
            speedometer(mx.model.BatchEndParam(0, batch, both, {}))
    wanted = [("two_0", 3.0), ("two_1", 3.5), ("doubled", 6.0), ("loss", 1.5)]
    assert both.get_name_value() == both.get_global_name_value() == wanted
    assert caplog.text.count("two_0=3.000000\ttwo_1=3.500000\tdoubled=6.000000\tloss=1.500000") == 2
