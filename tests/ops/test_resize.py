"""Resized images and means of windows: one value after the other in float64; what their shapes say."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest

from arrayexec import sym
from arrayexec.dims import UNKNOWN
from arrayexec.errors import AttributeValueError, ShapeError
from arrayexec.ops import separable
from arrayexec.registry import make_op
from tests.ops.runs import close, run, shapes_of, uniform

Array = Any
RESIZE, MEANS = "_contrib_BilinearResize2D", "_contrib_AdaptiveAvgPooling2D"


def sources(place: int, size: int, count: int, corners: bool) -> list[tuple[int, float]]:
    """Which places of an axis one place of the output is interpolated from, and their shares."""
    if corners or count == 1:
        position = place * (size - 1) / max(count - 1, 1)
    else:
        position = max(0.0, (place + 0.5) * size / count - 0.5)
    low = min(math.floor(position), size - 1)
    return [(low, 1 - (position - low)), (min(low + 1, size - 1), position - low)]


def resized(x: Array, head: Array, corners: bool) -> tuple[Array, Array]:
    out, dx = np.zeros_like(head), np.zeros_like(x)
    for i, j in product(*(range(size) for size in head.shape[2:])):
        across = sources(i, x.shape[2], head.shape[2], corners), sources(j, x.shape[3], head.shape[3], corners)
        for (a, p), (b, q) in product(*across):
            out[:, :, i, j] += p * q * x[:, :, a, b]
            dx[:, :, a, b] += p * q * head[:, :, i, j]
    return out, dx


@pytest.fixture(params=[None, 60, 9])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The block as it is, one of a few lines, and one of a single line."""
    if request.param:
        monkeypatch.setattr(separable, "BLOCK", request.param)
    separable._chunks.cache_clear()
    yield
    separable._chunks.cache_clear()


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("corners", [True, False])
@pytest.mark.parametrize(
    ("size", "target"),
    [((3, 4), (7, 9)), ((7, 9), (3, 4)), ((5, 5), (5, 5)), ((4, 6), (1, 13)), ((1, 1), (3, 2)), ((8, 3), (4, 6)), ((2, 9), (4, 2))],
)
def test_resize_interpolates_every_place(size: tuple, target: tuple, corners: bool) -> None:
    x, head = uniform((3, 2, *size)), uniform((3, 2, *target), 1)
    out, dx = resized(x, head, corners)
    got = run(RESIZE, {"data": x}, head, height=target[0], width=target[1], align_corners=corners)
    close(got.out, out)
    close(got.gradients["data"], dx)


def test_resize_of_sixteen_bits_sums_in_thirty_two() -> None:
    x, head = uniform((1, 2, 6, 5), 0, np.float16), uniform((1, 2, 40, 40), 1, np.float16)
    out, dx = resized(x.astype(np.float64), head.astype(np.float64), True)
    got = run(RESIZE, {"data": x}, head, height=40, width=40)
    for result, exact in ((got.out, out), (got.gradients["data"], dx)):
        assert result.dtype == np.float16
        np.testing.assert_allclose(result, exact, rtol=2.0**-11 * 1.01, atol=2e-6)


def test_a_nan_and_an_infinity_reach_their_neighbours_only() -> None:
    x = np.zeros((1, 1, 5, 5))
    x[0, 0, 2, 2] = np.inf
    out = run(RESIZE, {"data": x}, height=9, width=9).out[0, 0]
    wanted = np.zeros((9, 9), bool)
    wanted[3:6, 3:6] = True
    np.testing.assert_array_equal(np.isposinf(out), wanted)
    assert not np.isnan(out).any()
    head = np.zeros((1, 1, 9, 9))
    head[0, 0, 4, 4] = np.nan
    dx = run(RESIZE, {"data": x}, head, height=9, width=9).gradients["data"][0, 0]
    np.testing.assert_array_equal(np.argwhere(np.isnan(dx)), [[2, 2]])
    means = run(MEANS, {"data": x}, output_size=(3,)).out[0, 0]  # windows 0-1, 1-3, 3-4
    np.testing.assert_array_equal(np.argwhere(np.isinf(means)), [[1, 1]])


@pytest.mark.parametrize(
    ("size", "attributes", "target"),
    [
        ((4, 5), {"height": 3, "width": 9}, (3, 9)),
        ((4, 5), {"scale_height": 1.5, "scale_width": 0.5}, (6, 2)),
        ((4, 5), {"height": 3, "width": 7, "scale_width": 0.5}, (3, 7)),
        ((4, 5), {"width": 7, "scale_height": 0.5}, (2, 7)),
        ((4, 5), {"scale_height": 2.0, "scale_width": 2.0, "mode": "odd_scale"}, (8, 9)),
        ((4, 5), {"mode": "to_even_down"}, (4, 4)),
        ((4, 5), {"mode": "to_even_up"}, (4, 6)),
        ((4, 5), {"mode": "to_odd_down"}, (3, 5)),
        ((4, 5), {"mode": "to_odd_up"}, (5, 5)),
    ],
)
def test_every_mode_has_its_dims(size: tuple, attributes: dict, target: tuple) -> None:
    assert shapes_of(RESIZE, {"data": (2, 3, *size)}, **attributes)["node_output"] == (2, 3, *target)


def test_like_gives_its_dims_and_gets_no_gradient() -> None:
    x, like = uniform((2, 3, 4, 5)), uniform((1, 7, 6, 3))
    got = run(RESIZE, {"data": x, "like": like}, np.ones((2, 3, 6, 3)), mode="like")
    close(got.out, run(RESIZE, {"data": x}, height=6, width=3).out)
    assert not got.gradients["like"].any()
    found = shapes_of(RESIZE, {"data": (UNKNOWN, 3, 4, 5), "like": (1, 7, UNKNOWN, 3)}, mode="like")
    assert str(found["node_output"]) == "(?, 3, ?, 3)"


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize(("size", "target"), [((5, 7), (3, 2)), ((6, 6), (3, 2)), ((4, 5), (1, 1)), ((3, 2), (5, 5)), ((4, 4), (4, 4))])
def test_means_cover_the_data(size: tuple, target: tuple) -> None:
    x, head = uniform((2, 3, *size)), uniform((2, 3, *target), 1)
    out, dx = np.zeros_like(head), np.zeros_like(x)
    for i, j in product(*(range(count) for count in target)):
        spans = [
            slice(math.floor(k * length / count), math.ceil((k + 1) * length / count))
            for k, length, count in zip((i, j), size, target, strict=True)
        ]
        window = (slice(None), slice(None), *spans)
        area = math.prod(span.stop - span.start for span in spans)
        out[:, :, i, j] = x[window].sum(axis=(2, 3)) / area
        dx[window] += head[:, :, i, j, None, None] / area
    got = run(MEANS, {"data": x}, head, output_size=target)
    close(got.out, out)
    close(got.gradients["data"], dx)


def test_means_say_what_their_shapes_are() -> None:
    assert shapes_of(MEANS, {"data": (2, 3, 8, 8)})["node_output"] == (2, 3, 1, 1)
    assert shapes_of(MEANS, {"data": (2, 3, 8, 8)}, output_size=(4,))["node_output"] == (2, 3, 4, 4)
    assert str(shapes_of(MEANS, {"data": (UNKNOWN, 3, UNKNOWN, 8)}, output_size=(4, 2))["node_output"]) == "(?, 3, 4, 2)"
    net = getattr(sym, MEANS)(sym.Variable("data"), output_size=(4, 2)) + sym.Variable("other")
    assert net.infer_shape_partial(other=(2, 3, 4, 2))[0][0] == (2, 3, 0, 0)


def test_no_images_are_no_fault() -> None:
    empty = np.zeros((0, 2, 3, 3))
    assert run(RESIZE, {"data": empty}, np.zeros((0, 2, 5, 4)), height=5, width=4).gradients["data"].shape == empty.shape
    assert run(MEANS, {"data": empty}, np.zeros((0, 2, 2, 2)), output_size=(2,)).gradients["data"].shape == empty.shape


@pytest.mark.parametrize(
    ("operator", "attributes", "text"),
    [
        (RESIZE, {"height": 0}, "attribute 'height' must be positive, but it is 0"),
        (RESIZE, {"scale_width": -1.0}, "attribute 'scale_width' must be positive, but it is -1.0"),
        (RESIZE, {"mode": "odd_scale", "scale_height": 2}, "mode=odd_scale needs the attributes 'scale_height' and"),
        (MEANS, {"output_size": (1, 2, 3)}, "attribute 'output_size' must hold at most two numbers >= 1"),
        (MEANS, {"output_size": (0,)}, "attribute 'output_size' must hold at most two numbers >= 1"),
    ],
)
def test_attributes_that_mean_nothing_are_refused(operator: str, attributes: dict, text: str) -> None:
    with pytest.raises(AttributeValueError, match=text):
        make_op(operator, attributes)


def test_a_dim_that_becomes_nothing_is_refused() -> None:
    with pytest.raises(ShapeError, match="must have no dim of 0 but the batch"):
        shapes_of(RESIZE, {"data": (1, 1, 3, 3)}, scale_height=0.2, scale_width=1.0)
