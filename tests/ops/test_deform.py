"""Deformable convolutions: one value of one window after the other in float64; what their shapes say."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest

from arrayexec.dims import UNKNOWN
from arrayexec.errors import AttributeValueError, ShapeError
from arrayexec.ops import deform
from arrayexec.registry import make_op
from tests.ops.runs import close, run, shapes_of, uniform

Array = Any
PLAIN, MASKED = "_contrib_DeformableConvolution", "_contrib_ModulatedDeformableConvolution"


def around(y: float, x: float, height: int, width: int, fades: bool) -> list[tuple[int, int, float, float, float]]:
    """The places around a point that are on the data, with their share and its slopes down and across.

    Unless it ``fades``, nothing lies before the first place, and the last one reaches one place farther.
    """
    if not fades:
        if not (0 <= y < height and 0 <= x < width):
            return []
        beyond, aside = y >= height - 1, x >= width - 1
        near = around(min(y, height - 1), min(x, width - 1), height, width, True)
        return [(a, b, share, down * (not beyond), across * (not aside)) for a, b, share, down, across in near]
    found = []
    for a, b in product((math.floor(y), math.floor(y) + 1), (math.floor(x), math.floor(x) + 1)):
        if 0 <= a < height and 0 <= b < width and abs(a - y) < 1 and abs(b - x) < 1:
            down, across = 1 - abs(a - y), 1 - abs(b - x)
            found.append((a, b, down * across, math.copysign(across, a - y or -1), math.copysign(down, b - x or -1)))
    return found


def reference(a: dict[str, Array], head: Array, o: dict[str, Any], fades: bool) -> tuple[Array, dict[str, Array]]:
    """Output without bias and gradients."""
    x, offset, w = a["data"], a["offset"], a["weight"]
    mask = a.get("mask", np.ones((offset.shape[0], offset.shape[1] // 2, *offset.shape[2:])))
    out, g = np.zeros_like(head), {name: np.zeros_like(array) for name, array in {**a, "mask": mask}.items()}
    per_group, per_moved = x.shape[1] // o["num_group"], x.shape[1] // o["num_deformable_group"]
    filters, taps = w.shape[0] // o["num_group"], w.shape[2] * w.shape[3]
    for n, c, i, j, p, q in product(range(x.shape[0]), range(x.shape[1]), *map(range, (*w.shape[2:], *head.shape[2:]))):
        k = c // per_moved * taps + i * w.shape[3] + j
        y0 = p * o["stride"][0] - o["pad"][0] + i * o["dilate"][0] + offset[n, 2 * k, p, q]
        x0 = q * o["stride"][1] - o["pad"][1] + j * o["dilate"][1] + offset[n, 2 * k + 1, p, q]
        near = around(y0, x0, *x.shape[2:], fades)
        value = sum(x[n, c, yy, xx] * share for yy, xx, share, _, _ in near)
        for f in range(c // per_group * filters, (c // per_group + 1) * filters):
            weight, given, m = w[f, c % per_group, i, j], head[n, f, p, q], mask[n, k, p, q]
            out[n, f, p, q] += value * m * weight
            g["weight"][f, c % per_group, i, j] += given * value * m
            g["mask"][n, k, p, q] += given * value * weight
            for yy, xx, share, down, across in near:
                g["data"][n, c, yy, xx] += given * weight * m * share
                g["offset"][n, 2 * k, p, q] += given * weight * m * x[n, c, yy, xx] * down
                g["offset"][n, 2 * k + 1, p, q] += given * weight * m * x[n, c, yy, xx] * across
    return out, g


CASES = [
    # data, kernel, filters, and attributes
    ((2, 2, 4, 5), (3, 2), 3, {}),
    ((1, 4, 5, 4), (2, 2), 4, {"stride": (2, 1), "dilate": (2, 1), "pad": (1, 2), "num_group": 2, "num_deformable_group": 2}),
    ((2, 6, 3, 3), (1, 1), 3, {"num_group": 3, "num_deformable_group": 2}),
]


def arrays_of(operator: str, shape: tuple, kernel: tuple, filters: int, o: dict, dtype: Any = np.float64) -> dict:
    sizes = [
        (size + 2 * p - d * (k - 1) - 1) // s + 1
        for size, k, s, d, p in zip(shape[2:], kernel, o["stride"], o["dilate"], o["pad"], strict=True)
    ]
    count = o["num_deformable_group"] * math.prod(kernel)
    arrays = {
        "data": uniform(shape),
        "offset": uniform((shape[0], 2 * count, *sizes), 1) * 3,
        "weight": uniform((filters, shape[1] // o["num_group"], *kernel), 2),
    }
    if operator == MASKED:
        arrays["mask"] = uniform((shape[0], count, *sizes), 3)
    return {name: array.astype(dtype) for name, array in arrays.items()}


def options(given: dict) -> dict[str, Any]:
    return {"stride": (1, 1), "dilate": (1, 1), "pad": (0, 0), "num_group": 1, "num_deformable_group": 1, **given}


@pytest.mark.parametrize("block", [6000, 1])
@pytest.mark.parametrize("operator", [PLAIN, MASKED])
@pytest.mark.parametrize(("shape", "kernel", "filters", "given"), CASES)
def test_every_value_comes_from_where_it_was_moved(
    operator: str, shape: tuple, kernel: tuple, filters: int, given: dict, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deform, "BLOCK", block)
    o = options(given)
    arrays = arrays_of(operator, shape, kernel, filters, o)
    head = uniform((shape[0], filters, *arrays["offset"].shape[2:]), 4)
    out, gradients = reference(arrays, head, o, operator == MASKED)
    bias = uniform((filters,), 5)
    got = run(operator, {**arrays, "bias": bias}, head, kernel=kernel, num_filter=filters, **o)
    close(got.out, out + bias[:, None, None], 12)
    close(got.gradients["bias"], head.sum(axis=(0, 2, 3)), 12)
    for name in arrays:
        close(got.gradients[name], gradients[name], 12)


@pytest.mark.parametrize("group", [1, 2])
def test_without_offsets_it_is_a_convolution(group: int) -> None:
    o = {"kernel": (3, 3), "num_filter": 4, "pad": (1, 1), "stride": (2, 1), "num_group": group, "no_bias": True}
    arrays, head = {"data": uniform((2, 4, 6, 5)), "weight": uniform((4, 4 // group, 3, 3), 1)}, uniform((2, 4, 3, 5), 2)
    plain = run("Convolution", arrays, head, **o)
    offset, mask = np.zeros((2, 18, 3, 5)), np.ones((2, 9, 3, 5))
    for got in (
        run(PLAIN, {**arrays, "offset": offset}, head, **o),
        run(MASKED, {**arrays, "offset": offset, "mask": mask}, head, **o),
    ):
        close(got.out, plain.out)
        for name in arrays:
            close(got.gradients[name], plain.gradients[name])


def test_places_far_away_read_zeros_and_a_nan_gives_nan() -> None:
    arrays = {"data": np.ones((1, 1, 3, 3)), "weight": np.ones((1, 1, 1, 1)), "offset": np.zeros((1, 2, 3, 3))}
    arrays["offset"][0, :, 0, 0] = 1e30, -np.inf
    arrays["offset"][0, 0, 1, 1] = np.nan
    arrays["offset"][0, 0, 2, 2] = 0.5  # half of it behind the last line
    arrays["offset"][0, 0, 0, 1] = -0.5  # half of it before the first
    arrays["offset"][0, 1, 0, 2] = 1.0
    got = run(PLAIN, arrays, np.ones((1, 1, 3, 3)), kernel=(1, 1), num_filter=1, no_bias=True)
    np.testing.assert_array_equal(got.out[0, 0], [[0, 0, 0], [1, np.nan, 1], [1, 1, 1]])
    masked = {**arrays, "mask": np.ones((1, 1, 3, 3))}
    got = run(MASKED, masked, np.ones((1, 1, 3, 3)), kernel=(1, 1), num_filter=1, no_bias=True)
    np.testing.assert_array_equal(got.out[0, 0], [[0, 0.5, 0], [1, np.nan, 1], [1, 1, 0.5]])
    assert not got.gradients["offset"][0, :, 0, 0].any()


@pytest.mark.parametrize("operator", [PLAIN, MASKED])
def test_sixteen_bits_sum_in_thirty_two(operator: str) -> None:
    o = options({"pad": (1, 1)})
    arrays = arrays_of(operator, (1, 4, 5, 5), (3, 3), 4, o, np.float16)
    head = uniform((1, 4, 5, 5), 4, np.float16)
    got = run(operator, arrays, head, kernel=(3, 3), num_filter=4, no_bias=True, **o)
    exact = run(operator, {name: array.astype(np.float64) for name, array in arrays.items()}, head.astype(np.float64),
                kernel=(3, 3), num_filter=4, no_bias=True, **o)  # fmt: skip
    for result, wanted in ((got.out, exact.out), *((got.gradients[name], exact.gradients[name]) for name in arrays)):
        assert result.dtype == np.float16
        np.testing.assert_allclose(result, wanted, rtol=2.0**-11 * 1.01, atol=1e-5)


def test_shapes_follow_from_each_other() -> None:
    o = {"kernel": (3, 3), "num_filter": 4, "num_deformable_group": 2}
    found = shapes_of(MASKED, {"data": (UNKNOWN, 6, 8, 9)}, **o)
    assert (found["weight"], found["bias"]) == ((4, 6, 3, 3), (4,))
    assert [str(found[name]) for name in ("offset", "mask", "node_output")] == ["(?, 36, 6, 7)", "(?, 18, 6, 7)", "(?, 4, 6, 7)"]
    found = shapes_of(PLAIN, {"weight": (4, 6, 3, 3), "offset": (5, 36, 6, 7)}, **o)
    assert (str(found["data"]), found["node_output"]) == ("(5, 6, 8, 9)", (5, 4, 6, 7))


def test_no_images_are_no_fault() -> None:
    o = options({})
    arrays = arrays_of(MASKED, (0, 2, 4, 4), (3, 3), 3, o)
    got = run(MASKED, arrays, np.zeros((0, 3, 2, 2)), kernel=(3, 3), num_filter=3, no_bias=True, **o)
    assert not got.gradients["weight"].any()


@pytest.mark.parametrize(
    ("known", "attributes", "text"),
    [
        ({"data": (1, 3, 4, 4)}, {"num_group": 2}, "must have channels that num_group=2 divides, but it has 3"),
        ({"data": (1, 3, 4, 4)}, {"num_deformable_group": 2}, "must have channels that num_deformable_group=2 divides"),
        ({"data": (1, 3, 4, 2)}, {}, "must be at least 3 long on spatial axis 1, but it is 2"),
        ({"data": (1, 3, 4, 4), "offset": (1, 9, 2, 2)}, {}, r"must be \(1, 18, 2, 2\), but it is \(1, 9, 2, 2\)"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(known: dict, attributes: dict, text: str) -> None:
    with pytest.raises(ShapeError, match=text):
        shapes_of(PLAIN, known, kernel=(3, 3), num_filter=4, **attributes)


@pytest.mark.parametrize(
    ("attributes", "text"),
    [
        ({"kernel": (3,)}, "_contrib_ModulatedDeformableConvolution: attribute 'kernel' must hold two numbers >= 1"),
        ({"layout": "NHWC"}, "attribute 'layout' must be NCHW or None, but it is 'NHWC'"),
        ({"num_group": 3}, "attribute 'num_filter' must be a multiple of 'num_group'"),
    ],
)
def test_attributes_that_mean_nothing_are_refused(attributes: dict, text: str) -> None:
    with pytest.raises(AttributeValueError, match=text):
        make_op(MASKED, {"kernel": (3, 3), "num_filter": 4, **attributes})
