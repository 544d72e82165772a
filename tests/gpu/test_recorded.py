"""Recorded operators and networks through the executor on the strict device, against MXNet's numbers."""

from __future__ import annotations

import pytest

from tests.conformance import golden
from tests.conformance.test_operators import DIFFERENT, READY, check
from tests.gpu.compare import run_on
from tests.strict_device import strict

CASES = [case for case in READY if case["name"] not in DIFFERENT]
NETWORKS = [case for case in CASES if case["kind"] == "network"]


@pytest.mark.parametrize("case", NETWORKS, ids=lambda case: case["name"])
def test_network(case: golden.Case) -> None:
    check(case, run_on(strict(0)))


@pytest.mark.parametrize("case", [case for case in CASES if case not in NETWORKS], ids=lambda case: case["name"])
def test_operator(case: golden.Case) -> None:
    check(case, run_on(strict(0)))
