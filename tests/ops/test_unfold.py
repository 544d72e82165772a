"""im2col and col2im against one window after the other; Convolution as a product of columns."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest

from arrayexec.dims import UNKNOWN
from arrayexec.errors import AttributeValueError, ShapeError
from arrayexec.registry import make_op
from tests.ops.runs import close, run, shapes_of, uniform

CASES = [
    ((2, 3, 5, 4), {"kernel": (3, 2)}),
    ((1, 2, 5, 6), {"kernel": (2, 3), "stride": (2, 3), "dilate": (2, 1), "pad": (3, 2)}),
    ((2, 1, 7), {"kernel": (3,), "stride": (2,), "pad": (4,)}),  # windows that lie beside the data
    ((1, 2, 3, 4, 3), {"kernel": (2, 2, 1), "pad": (1, 0, 1)}),
]


def reference(image: np.ndarray, o: dict[str, Any]) -> np.ndarray:
    axes = len(o["kernel"])
    stride, dilate, pad = (o.get(k, (d,) * axes) for k, d in (("stride", 1), ("dilate", 1), ("pad", 0)))
    padded = np.pad(image, [(0, 0), (0, 0), *((p, p) for p in pad)])
    outs = [
        (size - d * (k - 1) - 1) // s + 1
        for size, k, s, d in zip(padded.shape[2:], o["kernel"], stride, dilate, strict=True)
    ]
    lines = []
    for n, c, tap in product(range(image.shape[0]), range(image.shape[1]), product(*map(range, o["kernel"]))):
        for place in product(*map(range, outs)):
            lines.append(padded[(n, c, *(p * s + t * d for p, s, t, d in zip(place, stride, tap, dilate, strict=True)))])
    return np.array(lines).reshape(image.shape[0], image.shape[1] * math.prod(o["kernel"]), math.prod(outs))


@pytest.mark.parametrize(("shape", "o"), CASES)
def test_columns_and_back(shape: tuple[int, ...], o: dict[str, Any]) -> None:
    image = uniform(shape)
    want = reference(image, o)
    columns = uniform(want.shape, 1)
    there = run("im2col", {"data": image}, columns, **o)
    np.testing.assert_array_equal(there.out, want)
    back = run("col2im", {"data": columns}, image, output_size=shape[2:], **o)
    np.testing.assert_array_equal(back.out, there.gradients["data"])
    np.testing.assert_array_equal(back.gradients["data"], want)
    close((back.out * image).sum(), (columns * want).sum())  # one is the transpose of the other


def test_a_convolution_is_a_product_with_columns() -> None:
    x, w = uniform((2, 3, 6, 5)), uniform((4, 3, 3, 2), 1)
    o = {"kernel": (3, 2), "stride": (2, 1), "pad": (1, 0)}
    columns = run("im2col", {"data": x}, **o).out
    plain = run("Convolution", {"data": x, "weight": w}, num_filter=4, no_bias=True, **o).out
    close(np.einsum("fk,nko->nfo", w.reshape(4, -1), columns).reshape(plain.shape), plain, 12)


def test_shapes() -> None:
    found = shapes_of("im2col", {"data": (UNKNOWN, 3, 5, 4)}, kernel=(3, 2))
    assert str(found["node_output"]) == "(?, 18, 9)"
    found = shapes_of("col2im", {"data": (2, 18, UNKNOWN)}, kernel=(3, 2), output_size=(5, 4))
    assert found["node_output"] == (2, 3, 5, 4)
    with pytest.raises(ShapeError, match="must be at least 3 long on spatial axis 0, but it is 2"):
        shapes_of("im2col", {"data": (1, 1, 2, 9)}, kernel=(3, 3))
    with pytest.raises(ShapeError, match="must have a multiple of 6"):
        shapes_of("col2im", {"data": (2, 17, 9)}, kernel=(3, 2), output_size=(5, 4))
    with pytest.raises(AttributeValueError, match="attribute 'kernel' must hold one to three numbers >= 1"):
        make_op("im2col", {"kernel": (0, 1)})
