"""Windows of images laid out as columns, and summed back into images: what convolutions are made of."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from ..dims import UNKNOWN
from ..errors import AttributeValueError
from ..registry import Op, Temp, register_op
from .precision import wide
from .windows import check_kernel, is_known, per_axis

Array = Any


class _Windows(Op):
    """Base of both: images (n, c, spatial…) and columns (n, c · prod(kernel), places)."""

    def __post_init__(self: Any) -> None:
        name = self.form.name
        check_kernel(name, self.kernel)
        for key, default in (("stride", 1), ("dilate", 1), ("pad", 0)):
            per_axis(name, key, getattr(self, key), len(self.kernel), default)

    def _axes(self: Any) -> list[tuple[int, int, int, int]]:
        """Kernel, stride, dilation and padding of each axis."""
        count = len(self.kernel)
        more = (self.stride or (1,) * count, self.dilate or (1,) * count, self.pad or (0,) * count)
        return list(zip(self.kernel, *more, strict=True))

    def _places(self, s: Any, name: str, sizes: tuple[Any, ...]) -> list[Any]:
        """How often the window fits along each axis of images of these sizes."""
        found = []
        for axis, (size, (kernel, stride, dilate, pad)) in enumerate(zip(sizes, self._axes(), strict=True)):
            reach = dilate * (kernel - 1) + 1
            if is_known(size) and size + 2 * pad < reach:
                s.fail(name, f"must be at least {reach - 2 * pad} long on spatial axis {axis}, but it is {size}")
            found.append((size + 2 * pad - reach) // stride + 1)
        return found

    def _taps(self: Any, image: Array, columns: Array) -> Iterator[tuple[Array, Array]]:
        """For every place of the window: views of the columns and of the image, of all windows that have it inside."""
        sizes, axes = image.shape[2:], self._axes()
        outs = [(size + 2 * p - d * (k - 1) - 1) // s + 1 for size, (k, s, d, p) in zip(sizes, axes, strict=True)]
        whole = columns.reshape(*image.shape[:2], *self.kernel, *outs)
        for tap in product(*map(range, self.kernel)):
            there, here = [], []
            for at, size, out, (_, stride, dilate, pad) in zip(tap, sizes, outs, axes, strict=True):
                shift = at * dilate - pad
                first, last = max(0, -(shift // stride)), min(out, (size - 1 - shift) // stride + 1)
                last = max(first, last)
                there.append(slice(first, last))
                here.append(slice(first * stride + shift, max(first, last - 1) * stride + shift + 1, stride))
                if first == last:
                    break
            else:
                yield whole[(slice(None), slice(None), *tap, *there)], image[(slice(None), slice(None), *here)]

    def _unfold(self, xp: Any, image: Array, columns: Array) -> None:
        columns.fill(0)
        for target, source in self._taps(image, columns):
            xp.copyto(target, source)

    def _fold(self, xp: Any, columns: Array, image: Array, sums: Array) -> None:
        total = sums if sums.size else image
        total.fill(0)
        for source, target in self._taps(total, columns):
            xp.add(target, source, out=target)
        if total is not image:
            xp.copyto(image, total)


@register_op
class im2col(_Windows):
    """``out[n, (c, k), o]`` = what lies at place k of the window in its position o: columns for a product.

    data (n, c, spatial…), one to three axes; out (n, c · prod(kernel), prod(positions)), with the positions of
    Convolution. Around the data there are zeros.
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...] = ()
    dilate: tuple[int, ...] = ()
    pad: tuple[int, ...] = ()
    linear = ("data",)
    rows = "parallel"
    examples = (
        {"data": (2, 3, 5, 4), "kernel": (3, 2)},
        {"data": (2, 2, 5, 4), "kernel": (2, 3), "stride": (2, 1), "dilate": (2, 1), "pad": (0, 2)},
        {"data": (1, 2, 6), "kernel": (3,), "stride": (2,), "pad": (1,)},
    )

    def infer(self, s: Any) -> None:
        count = math.prod(self.kernel)
        s.data = (UNKNOWN,) * (2 + len(self.kernel))
        batch, channels, *sizes = s.data
        s.out = (batch, channels * count, math.prod(self._places(s, "data", tuple(sizes))))
        s.data = (s.out[0], s.out[1] // count, *(UNKNOWN for _ in sizes))

    def temps(self, s: Any) -> Mapping[str, tuple[tuple[int, ...], Any]]:
        sums = wide(s.dtype("data"))
        return {"sums": (s.data if sums != s.dtype("data") else (0,), sums)}

    def forward(self, xp: Any, data: Array, out: Array) -> None:
        self._unfold(xp, data, out)

    def backward(self, xp: Any, dout: Array, ddata: Array, sums: Temp) -> None:
        self._fold(xp, dout, ddata, sums)


@register_op
class col2im(_Windows):
    """``out`` = images of which im2col would read these columns, every value the sum of what was read from it.

    data (n, c · prod(kernel), prod(positions)), out (n, c, output_size…).
    """

    output_size: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...] = ()
    dilate: tuple[int, ...] = ()
    pad: tuple[int, ...] = ()
    linear = ("data",)
    rows = "parallel"
    examples = (
        {"data": (2, 18, 9), "output_size": (5, 4), "kernel": (3, 2)},
        {"data": (2, 12, 18), "output_size": (5, 4), "kernel": (2, 3), "stride": (2, 1), "dilate": (2, 1),
         "pad": (1, 2)},
        {"data": (1, 6, 3), "output_size": (6,), "kernel": (3,), "stride": (2,), "pad": (1,)},
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.output_size:
            raise AttributeValueError("col2im: attribute 'output_size' must hold a number for each axis, but it is ()")
        per_axis("col2im", "output_size", self.output_size, len(self.kernel), 1)

    def infer(self, s: Any) -> None:
        count = math.prod(self.kernel)
        s.out = (UNKNOWN, UNKNOWN, *self.output_size)
        places = math.prod(self._places(s, "out", self.output_size))
        s.data = (s.out[0], s.out[1] * count, places)
        s.out = (s.data[0], s.data[1] // count, *self.output_size)
        if is_known(s.data[1]) and s.data[1] % count:
            s.fail("data", f"must have a multiple of {count} (the places of the window) in dim 1, but it is {s.data}")

    def temps(self, s: Any) -> Mapping[str, tuple[tuple[int, ...], Any]]:
        sums = wide(s.dtype("data"))
        return {"sums": (s.out if sums != s.dtype("data") else (0,), sums)}

    def forward(self, xp: Any, data: Array, out: Array, sums: Temp) -> None:
        self._fold(xp, data, out, sums)

    def backward(self, xp: Any, dout: Array, ddata: Array) -> None:
        self._unfold(xp, dout, ddata)
