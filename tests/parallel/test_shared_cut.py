"""The first gradient bucket is small; what accumulates stays until the last backward; 16 bits round to nearest."""

from __future__ import annotations

import numpy as np
import pytest

from arrayexec.comm import GradientBuckets
from arrayexec.comm.buckets import FIRST_BYTES, MAX_BYTES, cut
from arrayexec.comm.local import LocalCommunicator
from arrayexec.comm.stages import add_up, narrow, widen

MB = 1 << 20


def test_the_first_bucket_is_small() -> None:
    sizes = [MB // 4] * 8 + [3 * MB] * 20
    buckets = cut((f"g{i}", size, "f4") for i, size in enumerate(sizes))
    assert buckets[0].nbytes == FIRST_BYTES
    assert [piece.name for piece in buckets[0].pieces] == ["g0", "g1", "g2", "g3"]
    assert all(MAX_BYTES // 4 < bucket.nbytes <= MAX_BYTES for bucket in buckets[2:])
    assert sum(bucket.nbytes for bucket in buckets) == sum(sizes)


def test_a_first_gradient_that_is_larger_is_not_cut_for_it() -> None:
    buckets = cut([("large", 3 * MB, "f4"), ("next", MB, "f4"), *((f"g{i}", 4 * MB, "f4") for i in range(8))])
    assert [(piece.name, piece.stop) for piece in buckets[0].pieces] == [("large", 3 * MB // 4)]


def test_nothing_starts_inside_no_sync() -> None:
    gradients = {name: np.ones(1000, "f4") for name in "abcd"}
    buckets = GradientBuckets(LocalCommunicator(), gradients, max_bytes=4000)
    with buckets.no_sync():
        for name in "abcd":
            buckets.ready(name)
        for name in "abc":
            buckets.ready(name)  # as often as wanted
    assert buckets.events == []
    buckets.ready("a")
    assert [what for _, what, _ in buckets.events] == ["start"]
    assert buckets.finish() == list("abcd")  # what was ready only before counts
    assert all(array.all() for array in gradients.values())
    assert buckets.finish() == []  # the next step knows nothing of it
    assert not any(array.any() for array in gradients.values())


@pytest.mark.parametrize("ranks", [1, 2, 5])
@pytest.mark.parametrize("size", [0, 1, 100_003])
def test_rows_are_added_in_their_order(ranks: int, size: int) -> None:
    random = np.random.default_rng(size)
    rows = [random.standard_normal(size).astype("f4") for _ in range(ranks)]
    total = rows[0].copy()
    for row in rows[1:]:
        total = total + row
    targets = [*rows[1:], np.empty(size, "f4")]
    add_up(rows, targets)
    for found in (rows[0], *targets):
        assert found.tobytes() == total.tobytes()


def test_sixteen_bits_are_the_nearest() -> None:
    random = np.random.default_rng(0)
    numbers = (random.standard_normal(10_000) * 10.0 ** random.integers(-30, 30, 10_000)).astype("f4")
    found = widen(narrow(numbers, "bfloat16"), "bfloat16").astype("f8")
    _, exponent = np.frexp(numbers.astype("f8"))
    assert (np.abs(found - numbers) <= 0.5 * 2.0 ** (exponent - 8)).all()
    ties = np.array([1 + 2**-8, 1 + 3 * 2**-8, -(1 + 2**-8)], "f4")
    assert widen(narrow(ties, "bfloat16"), "bfloat16").tolist() == [1.0, 1 + 2**-6, -1.0]
    small = np.array([1.0, 65504.0, 70000.0, 2.0**-24, np.nan], "f4")
    np.testing.assert_array_equal(widen(narrow(small, "float16"), "float16"), [1, 65504, np.inf, 2.0**-24, np.nan])
