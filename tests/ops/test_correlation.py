"""Correlation against one square and one displacement after the other in float64; what its shapes say."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest

from arrayexec import sym
from arrayexec.dims import UNKNOWN
from arrayexec.errors import AttributeValueError, ShapeError
from arrayexec.ops import correlation
from arrayexec.registry import make_op
from tests.ops.runs import close, run, shapes_of, uniform

Array = Any


def reference(
    a: Array, b: Array, head: Array, k: int, most: int, s1: int, s2: int, pad: int, multiply: bool
) -> tuple[Array, Array, Array]:
    """Output and both gradients."""
    a, b = (np.pad(array, ((0, 0), (0, 0), (pad, pad), (pad, pad))) for array in (a, b))
    out, da, db = np.zeros_like(head), np.zeros_like(a), np.zeros_like(b)
    radius = most // s2
    for n, d, i, j in product(*(range(size) for size in head.shape)):
        down, across = divmod(d, 2 * radius + 1)
        y, x = i * s1 + most, j * s1 + most
        one = (n, slice(None), slice(y, y + k), slice(x, x + k))
        y, x = y + (down - radius) * s2, x + (across - radius) * s2
        two = (n, slice(None), slice(y, y + k), slice(x, x + k))
        given = head[n, d, i, j] / a[one].size
        out[n, d, i, j] = (a[one] * b[two] if multiply else np.abs(a[one] - b[two])).mean()
        sign = np.where(a[one] >= b[two], 1, -1)
        da[one] += given * (b[two] if multiply else sign)
        db[two] += given * (a[one] if multiply else -sign)
    inner = (slice(None), slice(None), *(slice(pad, size - pad) for size in a.shape[2:]))
    return out, da[inner], db[inner]


CASES = [
    # data, kernel, largest displacement, strides, padding
    ((2, 3, 5, 6), 1, 1, 1, 1, 0),
    ((2, 2, 6, 7), 1, 2, 2, 1, 2),
    ((1, 2, 9, 8), 3, 3, 2, 2, 2),
    ((1, 2, 7, 7), 3, 1, 1, 1, 3),
    ((2, 2, 5, 5), 1, 0, 3, 1, 0),
    ((1, 1, 6, 6), 5, 1, 1, 2, 2),
]


@pytest.mark.parametrize("block", [1 << 16, 1])
@pytest.mark.parametrize("multiply", [True, False])
@pytest.mark.parametrize(("shape", "kernel", "most", "stride1", "stride2", "pad"), CASES)
def test_every_square_is_compared_with_every_displaced_one(
    shape: tuple, kernel: int, most: int, stride1: int, stride2: int, pad: int, multiply: bool, block: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    a, b = uniform(shape), uniform(shape, 1)
    b[..., 2, 2] = a[..., 2, 2]  # equal values
    monkeypatch.setattr(correlation, "BLOCK", block)
    sizes = [math.ceil((size + 2 * pad - 2 * (most + (kernel - 1) // 2)) / stride1) for size in shape[2:]]
    head = uniform((shape[0], (2 * (most // stride2) + 1) ** 2, *sizes), 2)
    out, da, db = reference(a, b, head, kernel, most, stride1, stride2, pad, multiply)
    got = run("Correlation", {"data1": a, "data2": b}, head, kernel_size=kernel, max_displacement=most, stride1=stride1,
              stride2=stride2, pad_size=pad, is_multiply=multiply)  # fmt: skip
    close(got.out, out)
    close(got.gradients["data1"], da)
    close(got.gradients["data2"], db)


def test_sixteen_bits_sum_in_thirty_two() -> None:
    arrays = {name: uniform((1, 32, 6, 6), i, np.float16) for i, name in enumerate(("data1", "data2"))}
    head, options = uniform((1, 25, 6, 6), 2, np.float16), {"max_displacement": 2, "pad_size": 2}
    got = run("Correlation", arrays, head, **options)
    exact = run("Correlation", {name: array.astype(np.float64) for name, array in arrays.items()},
                head.astype(np.float64), **options)  # fmt: skip
    for result, wanted in ((got.out, exact.out), *((got.gradients[name], exact.gradients[name]) for name in arrays)):
        assert result.dtype == np.float16
        np.testing.assert_allclose(result, wanted, rtol=2.0**-11 * 1.01, atol=2e-6)


def test_no_images_are_no_fault() -> None:
    empty = np.zeros((0, 2, 5, 5))
    got = run("Correlation", {"data1": empty, "data2": empty}, np.zeros((0, 9, 3, 3)))
    assert got.gradients["data1"].shape == empty.shape


def test_shapes_follow_from_each_other() -> None:
    found = shapes_of("Correlation", {"data1": (UNKNOWN, 3, 48, UNKNOWN), "data2": (4, UNKNOWN, 48, 64)},
                      max_displacement=20, stride2=2, pad_size=20)  # fmt: skip
    assert found["node_output"] == (4, 441, 48, 64)
    assert found["data1"] == found["data2"] == (4, 3, 48, 64)
    net = sym.Correlation(sym.Variable("a"), sym.Variable("b")) + sym.Variable("other")
    assert net.infer_shape_partial(other=(2, 9, 3, 4))[0][:2] == [(2, 0, 5, 6)] * 2


def test_images_that_are_too_small_are_refused() -> None:
    with pytest.raises(ShapeError, match="must be at least 3 long on spatial axis 1, but it is 2"):
        shapes_of("Correlation", {"data1": (1, 1, 3, 2)})


@pytest.mark.parametrize(
    ("attributes", "text"),
    [
        ({"kernel_size": 2}, "attribute 'kernel_size' must be odd, but it is 2"),
        ({"stride2": 0}, "attribute 'stride2' must be at least 1, but it is 0"),
        ({"pad_size": -1}, "attribute 'pad_size' must be at least 0, but it is -1"),
    ],
)
def test_attributes_that_mean_nothing_are_refused(attributes: dict, text: str) -> None:
    with pytest.raises(AttributeValueError, match=text):
        make_op("Correlation", attributes)
