"""The model of what sums over ranks cost, against what it must say by hand."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def scaling(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    if not BENCHMARKS.is_dir():
        pytest.skip("benchmarks are not part of this installation")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location("scaling", BENCHMARKS / "scaling.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "scaling", module)
    spec.loader.exec_module(module)
    return module


def test_sums_between_hosts(scaling: ModuleType) -> None:
    costs = scaling.Costs(alpha=1e-5, network=1e9)
    assert scaling.between(10**9, 1, costs) == 0
    assert scaling.between(1000, 8, costs) == pytest.approx(3 * (1e-5 + 1e-6))  # three doublings
    assert scaling.between(10**8, 8, costs) == pytest.approx(6e-5 + 2 * 7 / 8 * 0.1)  # halved and doubled
    assert scaling.between(10**8, 5, costs) == pytest.approx(6e-5 + 2 * 4 / 5 * 0.1)


# Two buckets of 1 and 2 MB, full after 10 and 20 ms of a backward of 20 ms. In the host 1 GB/s and meetings of 1 ms:
# 2 and 3 ms of the thread, and 1 ms at the end. Between two hosts 100 MB/s: 10 and 20 ms.
BUCKETS = [(0.010, 10**6), (0.020, 2 * 10**6)]
MODEL = {"meeting": 1e-3, "memory": 1e9, "alpha": 0.0, "network": 1e8}


@pytest.mark.parametrize(
    ("hosts", "options", "seconds"),
    [
        (1, {}, 0.002 + 0.003 + 0.001),
        (2, {"progress": False}, 0.006 + 0.030),
        # the first bucket is added up when the second is full, at 20 ms, and travels from 22 to 32 while the second is
        # added up; that travels until 52
        (2, {}, 0.052 - 0.020 + 0.001),
        # beside the computation: 10 to 22, then 22 to 45 ms
        (2, {"beside": True}, 0.045 - 0.020 + 0.001),
        (2, {"beside": True, "compression": 2}, 0.033 - 0.020 + 0.001),
        (1, {"beside": True}, 0.003 + 0.001),
    ],
)
def test_what_a_step_pays(scaling: ModuleType, hosts: int, options: dict[str, float], seconds: float) -> None:
    costs = scaling.Costs(**MODEL, **options)
    assert scaling.pays(BUCKETS, 0.020, 2, hosts, costs) == pytest.approx(seconds)


def test_efficiency(scaling: ModuleType) -> None:
    costs = scaling.Costs(**MODEL)
    assert scaling.efficiency(BUCKETS, 0.010, 0.020, 1, 1, costs) == 1
    assert scaling.efficiency(BUCKETS, 0.010, 0.020, 2, 1, costs) == pytest.approx(30 / 36)
    uneven = scaling.Costs(meeting=0.0, memory=1e18, alpha=0.0, network=1e18, jitter=0.1)
    assert scaling.efficiency(BUCKETS, 0.010, 0.020, 8, 128, uneven) == pytest.approx(1 / (1 + 0.1 * 3.24), rel=0.01)
