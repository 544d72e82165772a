"""Convolution against sums over every window in float64, in one tile and in many; what its shapes say."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest

from arrayexec.dims import ANY, UNKNOWN
from arrayexec.errors import AttributeValueError, ShapeError
from arrayexec.ops import columns, conv, convolve
from arrayexec.registry import get_op, make_op
from tests.ops.runs import close, run, shapes_of, uniform

Array = Any


def reference(x: Array, w: Array, head: Array, stride: Any, dilate: Any, pad: Any, group: int) -> tuple[Array, ...]:
    """Output without bias, and the gradients of data and weight: one window, one image, one filter at a time."""
    axes, filters, channels = w.ndim - 2, w.shape[0] // group, w.shape[1]
    padded = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in pad)])
    out, dw, dpadded = np.zeros_like(head), np.zeros_like(w), np.zeros_like(padded)
    for place in product(*(range(size) for size in head.shape[2:])):
        window = tuple(
            slice(place[a] * stride[a], place[a] * stride[a] + dilate[a] * (w.shape[2 + a] - 1) + 1, dilate[a])
            for a in range(axes)
        )
        for n, f in product(range(x.shape[0]), range(w.shape[0])):
            part = slice(f // filters * channels, (f // filters + 1) * channels)
            at = (n, part, *window)
            out[(n, f, *place)] = (padded[at] * w[f]).sum()
            dw[f] += head[(n, f, *place)] * padded[at]
            dpadded[at] += head[(n, f, *place)] * w[f]
    inside = tuple(slice(p, p + size) for p, size in zip(pad, x.shape[2:], strict=True))
    return out, dpadded[(slice(None), slice(None), *inside)], dw


CASES = [
    # data (n, c, …), kernel, filters, stride, dilate, pad, groups
    ((3, 2, 9), (3,), 4, (1,), (1,), (0,), 1),
    ((3, 2, 9), (3,), 4, (2,), (2,), (3,), 2),
    ((2, 3, 6, 7), (3, 2), 5, (1, 1), (1, 1), (1, 0), 1),
    ((2, 4, 7, 6), (3, 3), 6, (2, 1), (1, 2), (1, 2), 2),
    ((2, 4, 5, 5), (3, 3), 4, (1, 1), (1, 1), (1, 1), 4),
    ((2, 4, 5, 5), (1, 1), 6, (1, 1), (1, 1), (0, 0), 2),
    ((2, 4, 5, 5), (1, 1), 6, (2, 2), (1, 1), (0, 0), 1),
    ((2, 3, 4, 4), (2, 2), 2, (1, 1), (1, 1), (3, 2), 1),  # more padding than the kernel reaches
    ((2, 1, 8, 8), (5, 5), 20, (1, 1), (1, 1), (0, 0), 1),  # the gradient of the data by adding back
    ((2, 8, 6, 6), (3, 3), 8, (1, 1), (1, 1), (1, 1), 1),  # the gradient of the data as a convolution
    ((3, 8, 6, 6), (3, 3), 16, (1, 1), (1, 1), (1, 1), 1),  # tiles of the two ways differ
    ((3, 16, 6, 6), (3, 3), 8, (1, 1), (1, 1), (1, 1), 1),
    ((2, 2, 3, 4, 5), (2, 3, 2), 3, (1, 2, 1), (2, 1, 1), (1, 1, 0), 1),
    ((2, 6, 3, 3, 3), (2, 2, 2), 6, (1, 1, 1), (1, 1, 1), (1, 0, 1), 3),
]


@pytest.fixture(params=[None, 5500, 96, 1])
def tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The tile as it is, one of an image or two, one of a few lines, and one of a single line."""
    if request.param is not None:
        monkeypatch.setattr(columns, "TILE", request.param)
    conv._columns.cache_clear()
    convolve.mirror_of.cache_clear()
    yield
    conv._columns.cache_clear()
    convolve.mirror_of.cache_clear()


@pytest.mark.usefixtures("tiles")
@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize(("shape", "kernel", "filters", "stride", "dilate", "pad", "group"), CASES)
def test_convolution_sums_every_window(
    shape: tuple, kernel: tuple, filters: int, stride: tuple, dilate: tuple, pad: tuple, group: int, last: bool
) -> None:
    x, w = uniform(shape), uniform((filters, shape[1] // group, *kernel), 1)
    b = uniform((filters,), 2)
    sizes = [
        (size + 2 * p - d * (k - 1) - 1) // s + 1
        for size, k, s, d, p in zip(shape[2:], kernel, stride, dilate, pad, strict=True)
    ]
    head = uniform((shape[0], filters, *sizes), 3)
    out, dx, dw = reference(x, w, head, stride, dilate, pad, group)

    def to(array: Array) -> Array:
        return np.ascontiguousarray(np.moveaxis(array, 1, -1)) if last else array

    def back(array: Array) -> Array:
        return np.moveaxis(array, -1, 1) if last else array

    layout = {1: ("NCW", "NWC"), 2: (None, "NHWC"), 3: ("NCDHW", "NDHWC")}[len(kernel)][last]
    got = run(
        "Convolution", {"data": to(x), "weight": to(w), "bias": b}, to(head), kernel=kernel, num_filter=filters,
        stride=stride, dilate=dilate, pad=pad, num_group=group, layout=layout,
    )  # fmt: skip
    close(back(got.out), out + b.reshape(-1, *(1,) * len(kernel)))
    close(back(got.gradients["data"]), dx)
    close(back(got.gradients["weight"]), dw)
    close(got.gradients["bias"], head.sum(axis=(0, *range(2, head.ndim))))


def test_convolution_takes_both_ways_to_the_gradient_of_the_data() -> None:
    def mirrored(channels: int, filters: int, stride: int) -> bool:
        op = make_op("Convolution", {"kernel": (3, 3), "num_filter": filters, "pad": (1, 1), "stride": (stride,) * 2})
        return convolve.mirror_of(conv._columns(op, (2, channels, 8, 8), np.dtype(np.float32))) is not None

    assert mirrored(16, 16, 1)
    assert not mirrored(1, 20, 1)
    assert not mirrored(16, 16, 2)


@pytest.mark.usefixtures("tiles")
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("kernel", [1, 3])
def test_convolution_of_sixteen_bits_sums_in_thirty_two(layout: str, kernel: int) -> None:
    shape, wshape = (
        ((2, 4, 6, 6), (4, 4, kernel, kernel)) if layout == "NCHW" else ((2, 6, 6, 4), (4, kernel, kernel, 4))
    )
    x, w, b = (uniform(s, i, np.float16) for i, s in enumerate((shape, wshape, (4,))))
    head = uniform(shape, 3, np.float16)
    options = {"kernel": (kernel,) * 2, "num_filter": 4, "pad": (kernel // 2,) * 2, "layout": layout}
    got = run("Convolution", {"data": x, "weight": w, "bias": b}, head, **options)
    exact = run(
        "Convolution", {"data": x.astype(np.float64), "weight": w.astype(np.float64), "bias": b.astype(np.float64)},
        head.astype(np.float64), **options,
    )  # fmt: skip
    assert got.out.dtype == got.gradients["weight"].dtype == np.float16
    # One rounding to 16 bits and no more: half a unit in the last of 11 bits.
    np.testing.assert_allclose(got.out, exact.out, rtol=2.0**-11 * 1.01, atol=2e-6)
    for name, gradient in exact.gradients.items():
        np.testing.assert_allclose(got.gradients[name], gradient, rtol=2.0**-11 * 1.01, atol=2e-6)


def test_convolution_without_images_has_zero_gradients() -> None:
    empty = np.zeros((0, 2, 5, 5))
    got = run("Convolution", {"data": empty, "weight": uniform((3, 2, 3, 3)), "bias": uniform((3,))},
              np.zeros((0, 3, 3, 3)), kernel=(3, 3), num_filter=3)  # fmt: skip
    assert got.out.shape == (0, 3, 3, 3)
    assert not got.gradients["weight"].any()
    assert not got.gradients["bias"].any()


def test_convolution_scratch_does_not_grow_with_the_batch() -> None:
    from arrayexec.registry import Known, signature_of

    def scratch(images: int) -> int:
        op = make_op("Convolution", {"kernel": (3, 3), "num_filter": 16, "pad": (1, 1), "no_bias": True})
        shapes = [(images, 16, 32, 32), (16, 16, 3, 3), (images, 16, 32, 32)]
        known = Known(signature_of(op), shapes, [np.dtype(np.float32)] * 3)
        return sum(int(np.prod(shape)) * np.dtype(kind).itemsize for shape, kind in op.temps(known).values())

    assert scratch(32) == scratch(4096) <= 4 << 20


def test_convolution_infers_what_follows() -> None:
    options = {"kernel": (3, 3), "num_filter": 4}
    found = shapes_of("Convolution", {"data": (UNKNOWN, 3, 8, 8)}, **options)
    assert (found["weight"], found["bias"], str(found["node_output"])) == ((4, 3, 3, 3), (4,), "(?, 4, 6, 6)")
    found = shapes_of("Convolution", {"weight": (4, 5, 3, 3)}, num_group=2, **options)
    assert str(found["data"]) == "(?, 10, ?, ?)"
    found = shapes_of("Convolution", {"data": (2, 3, UNKNOWN, 7)}, layout="NHWC", **options)
    assert (str(found["node_output"]), found["weight"]) == ("(2, 1, ?, 4)", (4, 3, 3, 7))
    assert found["bias"] is not ANY


@pytest.mark.parametrize(
    ("shape", "attributes", "text"),
    [
        ((2, 3, 8), {}, r"data 'data' must be \(\?, \?, \?, \?\), but it is \(2, 3, 8\) \(3 dims instead of 4\)"),
        (
            (2, 3, 8, 2),
            {},
            "data 'data' must be at least 3 long on spatial axis 1, where the kernel reaches over 3, but it is 2",
        ),
        ((2, 3, 8, 8), {"num_group": 2}, "data 'data' must have channels that num_group=2 divides, but it has 3"),
    ],
)
def test_convolution_refuses_data_that_do_not_fit(shape: tuple, attributes: dict, text: str) -> None:
    with pytest.raises(ShapeError, match=text):
        shapes_of("Convolution", {"data": shape}, kernel=(3, 3), num_filter=4, **attributes)


@pytest.mark.parametrize(
    ("attributes", "text"),
    [
        (
            {"kernel": (3, 3), "stride": (2,)},
            "'stride' must hold 2 numbers, one for each axis of 'kernel', but it is",
        ),
        ({"kernel": (3, 3), "dilate": (0, 1)}, "'dilate' must be at least 1 on every axis, but it is"),
        ({"kernel": (3, 3, 3, 3)}, "'kernel' must hold one to three numbers >= 1"),
        ({"kernel": (3,), "layout": "NHWC"}, "attribute 'layout' must have as many spatial axes as 'kernel', which has 1, but it is 'NHWC'"),
        ({"kernel": (3,), "num_group": 3}, "'num_filter' must be a multiple of 'num_group'"),
    ],
)
def test_convolution_refuses_attributes_that_mean_nothing(attributes: dict, text: str) -> None:
    with pytest.raises(AttributeValueError, match=text):
        make_op("Convolution", {"num_filter": 4, **attributes})


def test_the_legacy_name_is_the_same_operator() -> None:
    assert get_op("Convolution_v1") is get_op("Convolution")
