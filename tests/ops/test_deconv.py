"""Deconvolution against every product put where it belongs, in float64, in one tile and in many; what its shapes say."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest

from arrayexec.dims import UNKNOWN
from arrayexec.errors import AttributeValueError, ShapeError
from arrayexec.ops import columns, convolve, deconv
from arrayexec.registry import make_op
from tests.ops.runs import close, run, shapes_of, uniform

Array = Any


def reference(
    x: Array, w: Array, head: Array, stride: tuple, dilate: tuple, pad: tuple, group: int
) -> tuple[Array, Array, Array]:
    """Output without bias, and the gradients of data and weight: one value of data, one tap of the kernel at a time."""
    out, dx, dw = np.zeros_like(head), np.zeros_like(x), np.zeros_like(w)
    channels, filters = x.shape[1] // group, w.shape[1]
    for place in product(*(range(size) for size in x.shape[2:])):
        for tap in product(*(range(size) for size in w.shape[2:])):
            target = tuple(i * s - p + k * d for i, s, p, k, d in zip(place, stride, pad, tap, dilate, strict=True))
            if not all(0 <= t < size for t, size in zip(target, head.shape[2:], strict=True)):
                continue
            for n, c, f in product(range(x.shape[0]), range(x.shape[1]), range(filters)):
                to = (n, c // channels * filters + f, *target)
                out[to] += x[(n, c, *place)] * w[(c, f, *tap)]
                dx[(n, c, *place)] += head[to] * w[(c, f, *tap)]
                dw[(c, f, *tap)] += head[to] * x[(n, c, *place)]
    return out, dx, dw


CASES = [
    # data (n, c, …), kernel, filters, stride, dilate, pad, adj, groups
    ((3, 2, 5), (3,), 4, (1,), (1,), (0,), (0,), 1),
    ((3, 4, 4), (3,), 2, (2,), (2,), (3,), (1,), 2),
    ((2, 3, 3, 4), (3, 2), 5, (1, 1), (1, 1), (1, 0), (0, 0), 1),
    ((2, 4, 4, 3), (3, 3), 6, (2, 3), (1, 2), (1, 2), (1, 2), 2),
    ((2, 4, 3, 3), (4, 4), 4, (2, 2), (1, 1), (1, 1), (0, 0), 4),
    ((2, 4, 3, 3), (1, 1), 6, (1, 1), (1, 1), (0, 0), (0, 0), 2),
    ((2, 4, 3, 3), (1, 1), 6, (2, 2), (1, 1), (0, 0), (1, 1), 1),
    ((2, 8, 4, 4), (3, 3), 8, (1, 1), (1, 1), (1, 1), (0, 0), 1),  # as a convolution of the turned weight
    ((2, 2, 4, 4), (2, 2), 2, (1, 1), (1, 1), (2, 1), (0, 0), 1),
    ((2, 2, 2, 3, 2), (2, 3, 2), 3, (1, 2, 1), (2, 1, 1), (1, 1, 0), (0, 1, 0), 1),
]


@pytest.fixture(params=[None, 96, 1])
def tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The tile as it is, one of a few lines, and one of a single line."""
    if request.param is not None:
        monkeypatch.setattr(columns, "TILE", request.param)
    for cached in (deconv._columns, convolve.mirror_of):
        cached.cache_clear()
    yield
    for cached in (deconv._columns, convolve.mirror_of):
        cached.cache_clear()


def check(x: Array, w: Array, b: Array, head: Array, cut: tuple, last: bool, **attributes: Any) -> None:
    group, axes = attributes["num_group"], len(cut)
    out, dx, dw = reference(x, w, head, attributes["stride"], attributes["dilate"], cut, group)

    def to(array: Array) -> Array:
        return np.ascontiguousarray(np.moveaxis(array, 1, -1)) if last else array

    def back(array: Array) -> Array:
        return np.moveaxis(array, -1, 1) if last else array

    layout = {1: ("NCW", "NWC"), 2: (None, "NHWC"), 3: ("NCDHW", "NDHWC")}[axes][last]
    inputs = {"data": to(x), "weight": to(w), "bias": b}
    got = run("Deconvolution", inputs, to(head), no_bias=False, layout=layout, **attributes)
    close(back(got.out), out + b.reshape(-1, *(1,) * axes))
    close(back(got.gradients["data"]), dx)
    close(back(got.gradients["weight"]), dw)
    close(got.gradients["bias"], head.sum(axis=(0, *range(2, head.ndim))))


@pytest.mark.usefixtures("tiles")
@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize(("shape", "kernel", "filters", "stride", "dilate", "pad", "adj", "group"), CASES)
def test_deconvolution_adds_every_product_to_its_place(
    shape: tuple, kernel: tuple, filters: int, stride: tuple, dilate: tuple, pad: tuple, adj: tuple, group: int,
    last: bool,
) -> None:  # fmt: skip
    x, w, b = uniform(shape), uniform((shape[1], filters // group, *kernel), 1), uniform((filters,), 2)
    sizes = [
        s * (size - 1) + d * (k - 1) + 1 - 2 * p + a
        for size, k, s, d, p, a in zip(shape[2:], kernel, stride, dilate, pad, adj, strict=True)
    ]
    check(
        x, w, b, uniform((shape[0], filters, *sizes), 3), pad, last, kernel=kernel, num_filter=filters, stride=stride,
        dilate=dilate, pad=pad, adj=adj, num_group=group,
    )  # fmt: skip


@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize(
    ("stride", "target"), [((1, 1), (5, 4)), ((1, 1), (3, 6)), ((2, 2), (7, 8)), ((2, 3), (6, 11)), ((1, 1), (1, 1))]
)
def test_target_shape_cuts_more_off_at_the_start(stride: tuple, target: tuple, last: bool) -> None:
    x, w = uniform((2, 4, 3, 4)), uniform((4, 3, 4, 3), 1)
    surplus = [s * (size - 1) + k - t for s, size, k, t in zip(stride, x.shape[2:], w.shape[2:], target, strict=True)]
    check(
        x, w, uniform((3,), 2), uniform((2, 3, *target), 3), tuple((n + 1) // 2 for n in surplus), last, kernel=(4, 3),
        num_filter=3, stride=stride, dilate=(1, 1), num_group=1, target_shape=target, pad=(9, 9),
        adj=tuple(s - 1 for s in stride),
    )  # fmt: skip


def test_beside_a_target_shape_adj_says_nothing() -> None:
    x, w = uniform((1, 1, 3)), uniform((1, 1, 3), 1)
    options = {"kernel": (3,), "num_filter": 1, "target_shape": (4,)}
    plain = run("Deconvolution", {"data": x, "weight": w}, **options)
    np.testing.assert_array_equal(run("Deconvolution", {"data": x, "weight": w}, adj=(2,), **options).out, plain.out)


def test_zeros_are_no_target_shape() -> None:
    x, w = uniform((1, 1, 3)), uniform((1, 1, 3), 1)
    options = {"kernel": (3,), "num_filter": 1, "pad": (1,)}
    plain = run("Deconvolution", {"data": x, "weight": w}, **options)
    np.testing.assert_array_equal(run("Deconvolution", {"data": x, "weight": w}, target_shape=(0,), **options).out, plain.out)


@pytest.mark.usefixtures("tiles")
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_deconvolution_of_sixteen_bits_sums_in_thirty_two(layout: str, stride: int) -> None:
    shape, wshape = ((2, 16, 4, 4), (16, 4, 3, 3)) if layout == "NCHW" else ((2, 4, 4, 16), (16, 3, 3, 4))
    size = stride * 3 + 1
    head = uniform((2, 4, size, size) if layout == "NCHW" else (2, size, size, 4), 3, np.float16)
    x, w = uniform(shape, 0, np.float16), uniform(wshape, 1, np.float16)
    options = {"kernel": (3, 3), "num_filter": 4, "pad": (1, 1), "stride": (stride,) * 2, "layout": layout}
    got = run("Deconvolution", {"data": x, "weight": w}, head, **options)
    exact = run(
        "Deconvolution", {"data": x.astype(np.float64), "weight": w.astype(np.float64)}, head.astype(np.float64), **options
    )
    assert got.out.dtype == got.gradients["weight"].dtype == np.float16
    # One rounding to 16 bits and no more: half a unit in the last of 11 bits.
    np.testing.assert_allclose(got.out, exact.out, rtol=2.0**-11 * 1.01, atol=2e-6)
    for name, gradient in exact.gradients.items():
        np.testing.assert_allclose(got.gradients[name], gradient, rtol=2.0**-11 * 1.01, atol=2e-6)


def test_deconvolution_without_images_has_zero_gradients() -> None:
    got = run("Deconvolution", {"data": np.zeros((0, 2, 5, 5)), "weight": uniform((2, 3, 3, 3)), "bias": uniform((3,))},
              np.zeros((0, 3, 7, 7)), kernel=(3, 3), num_filter=3, no_bias=False)  # fmt: skip
    assert got.out.shape == (0, 3, 7, 7)
    assert not got.gradients["weight"].any()
    assert not got.gradients["bias"].any()


def test_deconvolution_infers_what_follows() -> None:
    options = {"kernel": (4, 4), "num_filter": 6, "stride": (2, 2), "pad": (1, 1)}
    found = shapes_of("Deconvolution", {"data": (UNKNOWN, 3, 8, UNKNOWN)}, num_group=3, no_bias=False, **options)
    assert (found["weight"], found["bias"], str(found["node_output"])) == ((3, 2, 4, 4), (6,), "(?, 6, 16, ?)")
    found = shapes_of("Deconvolution", {"weight": (5, 6, 4, 4)}, **options)
    assert str(found["data"]) == "(?, 5, ?, ?)"
    found = shapes_of("Deconvolution", {"data": (2, 7, UNKNOWN, 3)}, layout="NHWC", **options)
    assert (str(found["node_output"]), found["weight"]) == ("(2, 14, ?, 6)", (3, 4, 4, 6))
    found = shapes_of("Deconvolution", {"data": (UNKNOWN, 3, UNKNOWN, 5)}, target_shape=(9, 10), **options)
    assert str(found["node_output"]) == "(?, 6, 9, 10)"
    assert shapes_of("Deconvolution", {"data": (1 << 20, 4, 1 << 15, 1 << 15)}, **options)["node_output"] == (
        1 << 20, 6, 1 << 16, 1 << 16,
    )  # fmt: skip


def test_deconvolution_infers_data_from_the_output() -> None:
    from arrayexec import sym

    def backwards(**options: Any) -> Any:
        net = sym.Deconvolution(sym.Variable("data"), name="d", num_filter=6, kernel=(4, 4), stride=(2, 2), **options)
        shapes, _, _ = (net + sym.Variable("other")).infer_shape_partial(other=(2, 6, 10, 16))
        return dict(zip((net + sym.Variable("other")).list_arguments(), shapes, strict=True))["data"]

    assert backwards(pad=(1, 1)) == (2, 0, 5, 8)
    assert backwards(pad=(2, 1), adj=(0, 0)) == (2, 0, 6, 8)
    assert backwards(target_shape=(10, 16)) == (2, 0, 0, 0)  # several sizes have this output


@pytest.mark.parametrize(
    ("shape", "attributes", "text"),
    [
        ((2, 3, 8), {}, r"data 'data' must be \(\?, \?, \?, \?\), but it is \(2, 3, 8\) \(3 dims instead of 4\)"),
        ((2, 3, 8, 1), {"pad": (0, 2)}, "must be longer on spatial axis 1: after pad, a dim of 1 leaves -1"),
        ((2, 3, 8, 8), {"num_group": 2}, "data 'data' must have channels that num_group=2 divides, but it has 3"),
        (
            (2, 3, 8, 8),
            {"target_shape": (10, 11)},
            "must be longer on spatial axis 1: a dim of 8 gives at most 10, but target_shape asks for 11",
        ),
    ],
)
def test_deconvolution_refuses_data_that_do_not_fit(shape: tuple, attributes: dict, text: str) -> None:
    with pytest.raises(ShapeError, match=text):
        shapes_of("Deconvolution", {"data": shape}, kernel=(3, 3), num_filter=4, **attributes)


@pytest.mark.parametrize(
    ("attributes", "text"),
    [
        ({"kernel": (3, 3), "stride": (2,)}, "'stride' must hold 2 numbers"),
        ({"kernel": (3, 3, 3, 3)}, "'kernel' must hold one to three numbers >= 1"),
        ({"kernel": (3,), "adj": (1,)}, r"'adj' must be smaller than 'stride' on every axis, but they are \(1,\) and \(1,\)"),
        ({"kernel": (3, 3), "target_shape": (4, 0)}, "'target_shape' must be at least 1 on every axis"),
        ({"kernel": (3,), "layout": "NHWC"}, "'layout' must have as many spatial axes as 'kernel'"),
        ({"kernel": (3,), "num_group": 3}, "'num_filter' must be a multiple of 'num_group'"),
    ],
)
def test_deconvolution_refuses_attributes_that_mean_nothing(attributes: dict, text: str) -> None:
    with pytest.raises(AttributeValueError, match=text):
        make_op("Deconvolution", {"num_filter": 4, **attributes})
