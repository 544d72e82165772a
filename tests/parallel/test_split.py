"""A batch cut over devices: fair, complete, in order."""

from __future__ import annotations

import math

import pytest

from arrayexec.errors import DeviceError
from arrayexec.parallel.split import split_input_slice, split_sizes


@pytest.mark.parametrize(
    ("rows", "loads", "sizes"),
    [
        (6, [1, 1, 1, 1], [2, 2, 1, 1]),
        (25, [1] * 10, [3, 3, 3, 3, 3, 2, 2, 2, 2, 2]),
        (71, [1] * 8, [9, 9, 9, 9, 9, 9, 9, 8]),
        (15, [1] * 10, [2, 2, 2, 2, 2, 1, 1, 1, 1, 1]),
        (8, [5, 1.5, 5], [3, 1, 4]),
        (5, [1, 1], [2, 3]),
        (9, [2, 1], [6, 3]),
        (10, [1, 0, 1], [5, 0, 5]),
        (4, [100, 1, 1], [2, 1, 1]),
        (3, [0, 1], [0, 3]),
    ],
)
def test_sizes(rows: int, loads: list[float], sizes: list[int]) -> None:
    assert split_sizes(rows, loads) == sizes


@pytest.mark.parametrize(
    ("rows", "loads", "sizes"),
    [(1, [1, 1, 1], [1, 0, 0]), (1, [1, 5], [1, 0]), (2, [0, 1, 9, 9], [0, 1, 1, 0]), (0, [1, 1], [0, 0])],
)
def test_short_batches_go_to_the_first_devices(rows: int, loads: list[float], sizes: list[int]) -> None:
    assert split_sizes(rows, loads, short=True) == sizes


def test_every_split_is_fair() -> None:
    for devices in range(1, 10):
        for rows in range(devices, 60):
            sizes = split_sizes(rows, [1] * devices)
            assert sum(sizes) == rows
            assert max(sizes) - min(sizes) <= 1
            loads = [1 + i % 3 for i in range(devices)]
            sizes = split_sizes(rows, loads)
            assert sum(sizes) == rows
            assert min(sizes) >= 1
            if rows >= 3 * sum(loads):
                for size, load in zip(sizes, loads, strict=True):
                    share = rows * load / sum(loads)
                    assert math.floor(share) <= size <= math.ceil(share)


def test_slices_follow_each_other() -> None:
    assert split_input_slice(7, (1, 2, 4)) == [slice(0, 1), slice(1, 3), slice(3, 7)]


@pytest.mark.parametrize(
    ("rows", "loads", "text"),
    [
        (2, [1, 1, 1], "every device needs a row, so the batch must have at least 3 rows"),
        (4, [], "there must be at least one device"),
        (4, [0, 0], "loads must be finite, not negative and not all zero"),
        (4, [1, -1], "loads must be finite, not negative and not all zero"),
        (4, [1, math.inf], "loads must be finite, not negative and not all zero"),
        (4, [1, math.nan], "loads must be finite, not negative and not all zero"),
    ],
)
def test_refusals(rows: int, loads: list[float], text: str) -> None:
    with pytest.raises(DeviceError) as caught:
        split_input_slice(rows, loads)
    floats = [float(load) for load in loads]
    assert str(caught.value) == f"split of {rows} rows over {len(loads)} devices with loads {floats}: {text}"
