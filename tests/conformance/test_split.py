"""Recorded cuts of a batch over devices."""

from __future__ import annotations

import pytest

from arrayexec.errors import DeviceError
from arrayexec.parallel.executor_manager import _split_input_slice, split_input_slice
from tests.conformance.golden import Case, cases


@pytest.mark.parametrize("case", cases("split_slice"), ids=lambda case: case["name"])
def test_split(case: Case) -> None:
    assert _split_input_slice is split_input_slice
    if case["expect"]["result"] == "error":
        with pytest.raises(DeviceError):
            split_input_slice(case["batch_size"], case["work_load_list"])
        return
    slices = split_input_slice(case["batch_size"], case["work_load_list"])
    assert [[one.start, one.stop] for one in slices] == case["expect"]["slices"]
