"""Histograms, closeness, sums of squares and Fourier transforms: numbers of MXNet 1.9.1, and NumPy's transforms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.runs import run, uniform

VALUES = np.array([[0, 1], [2, 2], [3, 4], [5, 6], [-1, np.nan]], np.float32)
NAN, INF = np.nan, np.inf


@pytest.mark.parametrize(
    ("count", "ends", "counts", "edges"),
    [(5, (0, 5), [1, 1, 2, 1, 2], [0, 1, 2, 3, 4, 5]), (3, (0, 4), [2, 2, 2], [0, 4 / 3, 8 / 3, 4])],
)
def test_equal_bins_as_recorded(count: int, ends: Any, counts: list[int], edges: list[float]) -> None:
    found = run("_histogram", {"data": VALUES}, bin_cnt=count, range=ends)
    assert found.outputs[0].dtype == np.int64
    np.testing.assert_array_equal(found.outputs[0], counts)
    np.testing.assert_allclose(found.outputs[1], np.array(edges, np.float32), rtol=1e-6)


def test_given_edges_as_recorded() -> None:
    bins = np.array([0, 2.1, 3], np.float32)
    found = run("_histogram", {"data": VALUES[:3], "bins": bins})
    np.testing.assert_array_equal(found.outputs[0], [4, 1])
    np.testing.assert_array_equal(found.outputs[1], bins)


def test_edges_of_whole_numbers_as_recorded() -> None:
    found = run("_histogram", {"data": VALUES[:3].astype(np.int32)}, bin_cnt=3, range=(0, 4))
    np.testing.assert_array_equal(found.outputs[0], [1, 1, 4])
    np.testing.assert_array_equal(found.outputs[1], np.array([0, 1, 2, 4], np.int32))


@pytest.mark.parametrize("size", [0, 1, 5000, 20000])
def test_counts_of_many_values(size: int) -> None:
    data = uniform((size, 1)).astype(np.float32)
    found = run("_histogram", {"data": data}, bin_cnt=16, range=(-0.5, 0.5))
    np.testing.assert_array_equal(found.outputs[0], np.histogram(data, found.outputs[1])[0])


@pytest.mark.parametrize(
    ("a", "b", "close", "apart"),
    [
        ([1e10, 1e-7], [1.00001e10, 1e-8], 0, 0), ([1, 2], [1, 2], 1, 1), ([NAN, INF], [NAN, INF], 1, 0),
        ([1], [INF], 1, 1), ([INF], [1], 0, 0), ([INF], [-INF], 1, 1), ([NAN], [1], 0, 0), ([1], [NAN], 0, 0),
    ],
)  # fmt: skip
def test_closeness_as_recorded(a: list[float], b: list[float], close: int, apart: int) -> None:
    """With ``equal_nan`` and without."""
    arrays = {"a": np.array(a, np.float32), "b": np.array(b, np.float32)}
    for equal_nan, wanted in ((True, close), (False, apart)):
        found = run("_contrib_allclose", arrays, equal_nan=equal_nan).out
        assert found.dtype == np.uint8
        np.testing.assert_array_equal(found, [wanted])


def test_sums_of_squares_as_recorded() -> None:
    arrays = {"array_0": np.array([1, 2], np.float32), "array_1": np.array([[3, 4]], np.float32)}
    np.testing.assert_array_equal(run("multi_sum_sq", arrays, num_arrays=2).out, np.array([5, 25], np.float32))


@pytest.mark.parametrize("shape", [(3, 5), (2, 3, 1, 4), (1, 3000), (7, 1), (7, 2), (40, 1001)])
def test_transforms(shape: tuple[int, ...]) -> None:
    """fft is NumPy's; ifft of it, divided by the length, is what went in; the gradients are the transposes."""
    data, head = uniform(shape), uniform((*shape[:-1], 2 * shape[-1]), 1)
    found = run("_contrib_fft", {"data": data}, [head])
    wanted = np.fft.fft(data.astype(float))
    np.testing.assert_allclose(found.out[..., 0::2], wanted.real, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(found.out[..., 1::2], wanted.imag, rtol=1e-4, atol=1e-3)
    back = run("_contrib_ifft", {"data": found.out}, [data])
    np.testing.assert_allclose(back.out / shape[-1], data, rtol=1e-4, atol=1e-4)
    inner = np.sum(found.out.astype(float) * head), np.sum(found.gradients["data"].astype(float) * data)
    np.testing.assert_allclose(*inner, rtol=1e-3)
    inner = np.sum(back.out.astype(float) * data), np.sum(back.gradients["data"].astype(float) * found.out)
    np.testing.assert_allclose(*inner, rtol=1e-3)
