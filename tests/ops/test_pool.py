"""Pooling against one window after the other in float64; ties, NaN, padding and overhang; what its shapes say."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest

from arrayexec import sym
from arrayexec.dims import UNKNOWN
from arrayexec.errors import AttributeValueError, ShapeError
from arrayexec.ops import pool
from arrayexec.registry import make_op
from tests.ops.runs import close, run, shapes_of, uniform

Array = Any


def length(size: int, kernel: int, stride: int, pad: int, convention: str) -> int:
    room = (size + 2 * pad - kernel) / stride
    if convention == "same":
        return math.ceil((size + 2 * pad) / stride)
    return (math.floor(room) if convention == "valid" else math.ceil(room)) + 1


def reference(
    x: Array, head: Array, kernel: tuple, stride: tuple, pad: tuple, kind: str, p: int, include: bool
) -> tuple:
    """Output and gradient of the data, one window after the other."""
    out, dx = np.zeros_like(head), np.zeros_like(x)
    for n, c in product(range(x.shape[0]), range(x.shape[1])):
        for place in product(*(range(size) for size in head.shape[2:])):
            starts = [i * s - q for i, s, q in zip(place, stride, pad, strict=True)]
            spans = [
                range(max(start, 0), min(start + k, size))
                for start, k, size in zip(starts, kernel, x.shape[2:], strict=True)
            ]
            border = pad if include else (0,) * len(pad)
            count = math.prod(
                min(start + k, size + q) - max(start, -q)
                for start, k, size, q in zip(starts, kernel, x.shape[2:], border, strict=True)
            )
            cells = [(n, c, *cell) for cell in product(*spans)]
            values, given = np.array([x[cell] for cell in cells]), head[(n, c, *place)]
            if kind == "max":
                out[(n, c, *place)] = values.max()
                dx[cells[int(values.argmax())]] += given
                continue
            total = (values**p).sum() if kind == "lp" else values.sum()
            result = {"sum": total, "avg": total / count, "lp": np.abs(total) ** (1 / p) * np.sign(total)}[kind]
            out[(n, c, *place)] = result
            for cell, value in zip(cells, values, strict=True):
                dx[cell] += given * {"sum": 1, "avg": 1 / count, "lp": (value / result) ** (p - 1)}[kind]
    return out, dx


CASES = [
    # data, kernel, stride, pad, convention
    ((2, 2, 7), (3,), (2,), (0,), "valid"),
    ((2, 2, 8), (3,), (2,), (1,), "full"),
    ((2, 1, 5), (2,), (2,), (0,), "same"),
    ((2, 2, 6, 6), (2, 2), (2, 2), (0, 0), "valid"),
    ((1, 2, 6, 5), (3, 2), (2, 1), (1, 0), "valid"),
    ((1, 2, 6, 7), (3, 3), (2, 2), (1, 1), "full"),
    ((2, 1, 5, 5), (2, 3), (2, 2), (0, 2), "full"),
    ((1, 2, 4, 5), (4, 5), (1, 1), (0, 0), "valid"),
    ((1, 1, 4, 3, 5), (2, 2, 3), (1, 2, 2), (1, 0, 1), "valid"),
    ((0, 2, 6, 6), (2, 2), (2, 2), (0, 0), "valid"),
]
KINDS = [("max", None, None), ("sum", None, None), ("avg", None, None), ("avg", None, False), ("avg", None, True),
         ("lp", 1, None), ("lp", 2, None), ("lp", 3, None)]  # fmt: skip


@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize(("kind", "p", "include"), KINDS)
@pytest.mark.parametrize(("shape", "kernel", "stride", "pad", "convention"), CASES)
def test_pooling_of_every_window(
    shape: tuple, kernel: tuple, stride: tuple, pad: tuple, convention: str, kind: str, p: Any, include: Any, last: bool
) -> None:
    x = uniform(shape) + (2 if kind == "lp" else 0)
    sizes = [length(*item, convention) for item in zip(shape[2:], kernel, stride, pad, strict=True)]
    head = uniform((*shape[:2], *sizes), 1)
    out, dx = reference(x, head, kernel, stride, pad, kind, p or 1, include is not False)
    layout = {1: ("NCW", "NWC"), 2: (None, "NHWC"), 3: ("NCDHW", "NDHWC")}[len(kernel)][last]
    if last:
        x, head = (np.ascontiguousarray(np.moveaxis(array, 1, -1)) for array in (x, head))
    got = run(
        "Pooling", {"data": x}, head, kernel=kernel, stride=stride, pad=pad, pooling_convention=convention,
        pool_type=kind, p_value=p, count_include_pad=include, layout=layout,
    )  # fmt: skip
    close(np.moveaxis(got.out, -1, 1) if last else got.out, out)
    close(np.moveaxis(got.gradients["data"], -1, 1) if last else got.gradients["data"], dx)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(("kind", "p"), [("max", None), ("sum", None), ("avg", None), ("lp", 2)])
def test_global_pooling_takes_all_places_whatever_kernel_stride_and_pad(kind: str, p: Any, layout: str) -> None:
    x, head = uniform((2, 3, 4, 5)) + 2, uniform((2, 3, 1, 1), 1)
    out, dx = reference(x, head, (4, 5), (1, 1), (0, 0), kind, p or 1, True)
    axes = (0, 1, 2, 3) if layout == "NCHW" else (0, 2, 3, 1)
    got = run(
        "Pooling", {"data": np.ascontiguousarray(x.transpose(axes))}, head.transpose(axes), kernel=(2, 2), stride=(3, 3),
        pad=(1, 1), global_pool=True, pool_type=kind, p_value=p, layout=layout,
    )  # fmt: skip
    close(got.out, out.transpose(axes))
    close(got.gradients["data"], dx.transpose(axes))


@pytest.mark.parametrize("whole", [False, True])
def test_the_first_of_several_maxima_gets_the_gradient(whole: bool) -> None:
    x = np.ones((1, 1, 2, 2)) if whole else np.ones((1, 1, 3, 3))
    got = run("Pooling", {"data": x}, np.ones((1, 1, 1, 1)) if whole else np.ones((1, 1, 2, 2)), kernel=(2, 2))
    wanted = np.zeros_like(x)
    wanted[..., :1, :1] = 1
    if not whole:
        wanted[..., :2, :2] = 1
    np.testing.assert_array_equal(got.gradients["data"], wanted)


@pytest.mark.parametrize("whole", [False, True])
def test_a_nan_gives_nan_and_passes_no_gradient(whole: bool) -> None:
    x = np.array([[[1.0, np.nan, 2.0, 3.0]]])
    head = np.ones((1, 1, 1 if whole else 3))
    got = run("Pooling", {"data": x}, head, kernel=(4 if whole else 2,))
    np.testing.assert_array_equal(got.out, [[[np.nan]]] if whole else [[[np.nan, np.nan, 3]]])
    np.testing.assert_array_equal(got.gradients["data"], [[[0, 0, 0, 0]]] if whole else [[[0, 0, 0, 1]]])


def test_windows_outside_of_the_data() -> None:
    x = np.ones((1, 1, 1))
    options = {"kernel": (1,), "pad": (1,)}
    head = np.ones((1, 1, 3))
    most = run("Pooling", {"data": x}, head, **options)
    np.testing.assert_array_equal(most.out, [[[-np.inf, 1, -np.inf]]])
    np.testing.assert_array_equal(most.gradients["data"], [[[1]]])
    mean = run("Pooling", {"data": x}, head, pool_type="avg", count_include_pad=False, **options)
    np.testing.assert_array_equal(mean.out, [[[0, 1, 0]]])


def test_lp_of_zeros_has_a_zero_gradient() -> None:
    got = run("Pooling", {"data": np.zeros((1, 1, 4))}, np.ones((1, 1, 3)), kernel=(2,), pool_type="lp", p_value=2)
    assert not got.out.any()
    assert not got.gradients["data"].any()


def test_the_mean_of_sixteen_bits_sums_in_thirty_two() -> None:
    x = np.full((1, 1, 64, 64), 100, np.float16)  # the sum is past the largest 16-bit float
    for options in ({"global_pool": True}, {"kernel": (64, 64)}, {"kernel": (64, 64), "pad": (1, 0)}):
        got = run("Pooling", {"data": x}, pool_type="avg", count_include_pad=False, **options)
        assert got.out.dtype == np.float16
        np.testing.assert_array_equal(got.out, np.full(got.out.shape, 100))


def test_max_of_whole_numbers() -> None:
    x = np.array([[[-5, -3, -9]]], np.int32)
    np.testing.assert_array_equal(run("Pooling", {"data": x}, kernel=(2,), pad=(1,)).out, [[[-5, -3, -3, -9]]])


def test_pooling_infers_what_follows() -> None:
    found = shapes_of("Pooling", {"data": (UNKNOWN, 3, 8, UNKNOWN)}, kernel=(2, 2), stride=(2, 2))
    assert str(found["node_output"]) == "(?, 3, 4, ?)"
    found = shapes_of("Pooling", {"node_output": (2, 3, 4, 4)}, kernel=(2, 2), stride=(2, 2))
    found = shapes_of("Pooling", {"data": (2, UNKNOWN, UNKNOWN, 3)}, global_pool=True, layout="NHWC")
    assert found["node_output"] == (2, 1, 1, 3)


def test_pooling_infers_data_from_the_output_where_one_size_has_it() -> None:
    def backwards(**options: Any) -> Any:
        net = sym.Pooling(sym.Variable("data"), **options) + sym.Variable("other")
        return net.infer_shape_partial(other=(2, 3, 4, 5))[0][0]

    assert backwards(kernel=(3, 2), pad=(1, 0)) == (2, 3, 4, 6)
    assert backwards(kernel=(3, 2), pooling_convention="same") == (2, 3, 4, 5)
    assert backwards(kernel=(3, 2), stride=(2, 1)) == (2, 3, 0, 6)


@pytest.mark.parametrize(
    ("shape", "attributes", "text"),
    [
        (
            (1, 1, 3, 3),
            {"kernel": (5, 1)},
            "data 'data' must be at least 5 long on spatial axis 0 for a kernel of 5, but it is 3",
        ),
        ((1, 1, 3), {"kernel": (2, 2)}, r"data 'data' must be \(\?, \?, \?, \?\), but it is \(1, 1, 3\)"),
        ((3, 3), {"global_pool": True}, "data 'data' must have 3 to 5 dims, but it has 2"),
        ((2, 3, 4, 0), {"global_pool": True}, "data 'data' must have a place to pool on spatial axis 1, but its dim is 0"),
    ],
)
def test_pooling_refuses_data_that_do_not_fit(shape: tuple, attributes: dict, text: str) -> None:
    with pytest.raises(ShapeError, match=text):
        shapes_of("Pooling", {"data": shape}, **attributes)


@pytest.mark.parametrize(
    ("attributes", "text"),
    [
        ({}, "'kernel' must hold one to three numbers >= 1 unless global_pool=True"),
        ({"kernel": (2, 2), "pad": (1,)}, "'pad' must hold 2 numbers"),
        ({"kernel": (2,), "pool_type": "lp"}, "'p_value' must be 1, 2 or 3 with pool_type=lp, but it is None"),
    ],
)
def test_pooling_refuses_attributes_that_mean_nothing(attributes: dict, text: str) -> None:
    with pytest.raises(AttributeValueError, match=text):
        make_op("Pooling", attributes)


def test_pooling_keeps_nothing_for_sums_and_means() -> None:
    for kind, kept in (("sum", ()), ("avg", ()), ("max", ("data", "out"))):
        assert tuple(make_op("Pooling", {"kernel": (2,), "pool_type": kind}).keeps(frozenset({"data"}))) == kept


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_the_gradient_of_max_is_the_same_whatever_is_gone_through_at_once(
    layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = ((2, 5, 5, 7), (2, 5, 2, 3)) if layout == "NCHW" else ((2, 5, 7, 5), (2, 2, 3, 5))
    x, head = np.round(uniform(shapes[0]), 1), uniform(shapes[1], 1)  # rounded: there are ties
    options = {"kernel": (3, 3), "stride": (2, 2), "layout": layout}
    whole = run("Pooling", {"data": x}, head, **options).gradients["data"]
    for block in ((1, 1), (2, 3), (1, 2)):
        monkeypatch.setattr(pool, "_block", lambda images, channels, sizes, block=block: block)
        np.testing.assert_array_equal(run("Pooling", {"data": x}, head, **options).gradients["data"], whole)


def first_pooling(x: Array, head: Array, kernel: tuple, stride: tuple, pad: tuple, kind: str) -> tuple[Array, Array]:
    """Pooling_v1, one window after the other: padding is zeros, a mean is over the kernel, all maxima get the gradient."""
    padded = np.pad(x, ((0, 0), (0, 0), (pad[0],) * 2, (pad[1],) * 2))
    out, dpadded = np.zeros_like(head), np.zeros_like(padded)
    for n, c, i, j in product(*(range(size) for size in head.shape)):
        window = (n, c, slice(i * stride[0], i * stride[0] + kernel[0]), slice(j * stride[1], j * stride[1] + kernel[1]))
        values = padded[window]
        area = math.prod(kernel)
        out[n, c, i, j] = {"max": values.max(), "sum": values.sum(), "avg": values.sum() / area}[kind]
        share = {"max": values == values.max(), "sum": 1, "avg": 1 / area}[kind]
        dpadded[window] += head[n, c, i, j] * share
    return out, dpadded[:, :, pad[0] : pad[0] + x.shape[2], pad[1] : pad[1] + x.shape[3]]


@pytest.mark.parametrize("kind", ["max", "avg", "sum"])
@pytest.mark.parametrize("convention", ["valid", "full"])
@pytest.mark.parametrize("dtype", [np.float64, np.float16])
@pytest.mark.parametrize(
    ("kernel", "stride", "pad"), [((2, 2), (2, 2), (0, 0)), ((3, 2), (2, 1), (1, 1)), ((3, 3), (2, 2), (2, 1))]
)
def test_first_pooling_of_every_window(
    kernel: tuple, stride: tuple, pad: tuple, dtype: Any, convention: str, kind: str
) -> None:
    x = (np.round(uniform((2, 2, 6, 5)) * 4) / 4 - 0.5).astype(dtype)  # ties, and windows below zero
    sizes = [length(*item, convention) for item in zip((6, 5), kernel, stride, pad, strict=True)]
    head = uniform((2, 2, *sizes), 1, dtype)
    out, dx = first_pooling(x.astype(np.float64), head.astype(np.float64), kernel, stride, pad, kind)
    got = run("Pooling_v1", {"data": x}, head, kernel=kernel, stride=stride, pad=pad, pool_type=kind,
              pooling_convention=convention)  # fmt: skip
    for result, exact in ((got.out, out), (got.gradients["data"], dx)):
        assert result.dtype == dtype
        np.testing.assert_allclose(result, exact, rtol=2.0**-10 if dtype == np.float16 else 1e-13, atol=2e-6)


def test_first_pooling_of_all_places_and_of_a_nan() -> None:
    x, head = uniform((2, 3, 4, 5)), uniform((2, 3, 1, 1), 1)
    for kind in ("max", "avg", "sum"):
        out, dx = first_pooling(x, head, (4, 5), (1, 1), (0, 0), kind)
        got = run("Pooling_v1", {"data": x}, head, global_pool=True, pool_type=kind, pad=(3, 3), kernel=(2, 2))
        close(got.out, out)
        close(got.gradients["data"], dx)
    x = np.array([[[[1.0, np.nan, 2.0, 3.0]]]])
    got = run("Pooling_v1", {"data": x}, np.ones((1, 1, 1, 3)), kernel=(1, 2))
    np.testing.assert_array_equal(got.out, [[[[np.nan, np.nan, 3]]]])
    np.testing.assert_array_equal(got.gradients["data"], [[[[0, 0, 0, 1]]]])


def test_first_pooling_refuses_what_pooling_refuses_under_its_own_name() -> None:
    for attributes, text in (
        ({"kernel": (2,)}, "Pooling_v1: attribute 'kernel' must hold two numbers"),
        ({"kernel": (2, 2), "stride": (0, 1)}, "Pooling_v1: attribute 'stride' must be at least 1"),
    ):
        with pytest.raises(AttributeValueError, match=text):
            make_op("Pooling_v1", attributes)
