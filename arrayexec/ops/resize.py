"""Images of another size: bilinear interpolation, and means over a given number of windows."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any, Literal

from ..dims import UNKNOWN
from ..errors import AttributeValueError
from ..registry import Op, Temp, register_op
from .checks import check_floating
from .pool import Pooling
from .separable import Lines, apply, averages, interpolation, most, scratch, turned
from .windows import check_filled, is_known

Array = Any
FOUR = (UNKNOWN,) * 4


class _Resize(Op):
    """An operator that maps rows and columns of images by ``_lines``: to means, if it does not say otherwise."""

    def _lines(self, size: int, count: int) -> Lines:
        return averages(size, count)

    def _maps(self, sizes: tuple[int, ...], counts: tuple[int, ...]) -> tuple[Lines, Lines]:
        return self._lines(sizes[2], counts[2]), self._lines(sizes[3], counts[3])

    def _turned(self, sizes: tuple[int, ...], counts: tuple[int, ...]) -> tuple[Lines, Lines]:
        rows, columns = self._maps(sizes, counts)
        return turned(rows), turned(columns)

    def types(self, t: Any) -> None:
        t.same()
        check_floating(t, "data")

    def temps(self, s: Any) -> Mapping[str, tuple[tuple[int, ...], Any]]:
        kind, planes = s.dtype("data"), s.data[0] * s.data[1]
        ways = (self._maps(s.data, s.out), self._turned(s.data, s.out))
        return most(*(scratch(planes, rows, columns, kind) for rows, columns in ways))


@register_op(name="_contrib_BilinearResize2D", aliases=("_npx_bilinear_resize2d",))
class BilinearResize2D(_Resize):
    """``out`` = data interpolated bilinearly at H × W places: data (n, c, h, w), out (n, c, H, W).

    ``align_corners``: the first and last places are those of data, else the outer edges are; of a single place, it is
    the first. H, W by ``mode``: size: ``height`` and ``width``, or ``int(scale · dim)`` where a scale is given
    (``scale_width`` counts beside ``scale_height`` only); odd_scale: ``int(scale · dim)`` of an even dim,
    ``int(scale · (dim - 1)) + 1`` of an odd one; like: the dims of a second input ``like`` (n', c', H, W);
    to_even_down, to_even_up, to_odd_down, to_odd_up: the nearest even or odd number below or above the dim of data.
    A NaN reaches the places that are interpolated from it, and no others.
    """

    height: int = 1
    width: int = 1
    scale_height: float | None = None
    scale_width: float | None = None
    mode: Literal["size", "odd_scale", "like", "to_even_down", "to_even_up", "to_odd_down", "to_odd_up"] = "size"
    align_corners: bool = True
    no_gradient = ("like",)
    rows = "parallel"
    examples = (
        {"data": (2, 2, 3, 4), "height": 5, "width": 2},
        {"data": (2, 1, 3, 2), "height": 4, "width": 5, "align_corners": False},
        {"data": (1, 2, 4, 3), "scale_height": 1.5, "scale_width": 0.7},
        {"data": (1, 1, 3, 4), "scale_height": 2.0, "scale_width": 2.0, "mode": "odd_scale"},
        {"data": (1, 2, 3, 3), "like": (2, 3, 2, 4), "mode": "like"},
        {"data": (1, 1, 3, 4), "mode": "to_even_up"},
        {"data": (1, 1, 3, 4), "mode": "to_odd_down"},
    )

    def __post_init__(self) -> None:
        for name in ("height", "width", "scale_height", "scale_width"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise AttributeValueError(
                    f"_contrib_BilinearResize2D: attribute '{name}' must be positive, but it is {value}"
                )
        if self.mode == "odd_scale" and None in (self.scale_height, self.scale_width):
            raise AttributeValueError(
                "_contrib_BilinearResize2D: mode=odd_scale needs the attributes 'scale_height' and 'scale_width', "
                f"but they are {self.scale_height} and {self.scale_width}"
            )

    def inputs(self) -> tuple[str, ...]:
        return ("data", "like") if self.mode == "like" else ("data",)

    def _length(self, size: Any, given: int, scale: float | None) -> Any:
        """Output dim for a dim of data."""
        if self.mode == "size" and (scale is None or self.scale_height is None):
            return given
        if not is_known(size):
            return UNKNOWN
        if self.mode in ("size", "odd_scale"):
            odd = size % 2 if self.mode == "odd_scale" else 0
            return int((size - odd) * (scale or 1)) + odd
        _, parity, way = self.mode.split("_")
        fits = size % 2 == (parity == "odd")
        return size if fits else size + (1 if way == "up" else -1)

    def infer(self, s: Any) -> None:
        s.data = s.out = FOUR
        s.out = (*s.data[:2], UNKNOWN, UNKNOWN)
        s.data = (*s.out[:2], UNKNOWN, UNKNOWN)
        if self.mode == "like":
            s.like = FOUR
            s.out = (UNKNOWN, UNKNOWN, *s.like[2:])
            s.like = (UNKNOWN, UNKNOWN, *s.out[2:])
        else:
            height = self._length(s.data[2], self.height, self.scale_height)
            s.out = (UNKNOWN, UNKNOWN, height, self._length(s.data[3], self.width, self.scale_width))
        check_filled(s, "data")
        check_filled(s, "out")

    def _lines(self, size: int, count: int) -> Lines:
        return interpolation(size, count, self.align_corners)

    def forward(
        self, xp: Any, data: Array, like: Array, out: Array, source: Temp, lines: Temp, item: Temp, total: Temp
    ) -> None:
        apply(xp, data, out, self._maps(data.shape, out.shape), source, lines, item, total)

    def backward(
        self, xp: Any, dout: Array, ddata: Array, source: Temp, lines: Temp, item: Temp, total: Temp
    ) -> None:
        apply(xp, dout, ddata, self._turned(ddata.shape, dout.shape), source, lines, item, total)


@register_op(name="_contrib_AdaptiveAvgPooling2D")
class AdaptiveAvgPooling2D(_Resize):
    """``out`` = means of H × W windows that cover data: data (n, c, h, w), out (n, c, H, W).

    Window i of an axis goes from place ``i·size // count`` to before ``⌈(i + 1)·size / count⌉``, so windows may share
    places. ``output_size``: (H, W), one number for both, or nothing for 1. A NaN makes the windows NaN that hold it.
    """

    output_size: tuple[int, ...] = ()
    rows = "parallel"
    examples = (
        {"data": (2, 2, 5, 3), "output_size": (3, 2)},
        {"data": (1, 2, 4, 4), "output_size": (2,)},
        {"data": (2, 1, 3, 2)},
    )

    def __post_init__(self) -> None:
        if len(self.output_size) > 2 or min(self.output_size, default=1) < 1:
            raise AttributeValueError(
                "_contrib_AdaptiveAvgPooling2D: attribute 'output_size' must hold at most two numbers >= 1, "
                f"but it is {self.output_size}"
            )

    def infer(self, s: Any) -> None:
        height, width = (self.output_size * 2)[:2] or (1, 1)
        s.data = s.out = FOUR
        s.out = (*s.data[:2], height, width)
        s.data = (*s.out[:2], UNKNOWN, UNKNOWN)
        check_filled(s, "data")

    def temps(self, s: Any) -> Mapping[str, tuple[tuple[int, ...], Any]]:
        plain, none = _pooling(s.data[2:], s.out[2:]), ((0,), s.dtype("data"))
        names = ("source", "lines", "item", "total", "sums", "part", "power", "hit", "left", "first")
        return {**dict.fromkeys(names, none), **(plain.temps(s) if plain else super().temps(s))}

    def forward(
        self, xp: Any, data: Array, out: Array, source: Temp, lines: Temp, item: Temp, total: Temp, power: Temp
    ) -> None:
        plain = _pooling(data.shape[2:], out.shape[2:])
        if plain:
            plain.forward(xp, data, out, total, power)
        else:
            apply(xp, data, out, self._maps(data.shape, out.shape), source, lines, item, total)

    def backward(
        self, xp: Any, dout: Array, ddata: Array, source: Temp, lines: Temp, item: Temp, total: Temp,
        sums: Temp, part: Temp, power: Temp, hit: Temp, left: Temp, first: Temp,
    ) -> None:  # fmt: skip
        plain = _pooling(ddata.shape[2:], dout.shape[2:])
        if plain:
            plain.backward(xp, dout, None, None, ddata, sums, part, power, lines, hit, left, first)
        else:
            apply(xp, dout, ddata, self._turned(ddata.shape, dout.shape), source, lines, item, total)


@functools.lru_cache(maxsize=256)
def _pooling(sizes: tuple[int, ...], counts: tuple[int, ...]) -> Pooling | None:
    """The pooling that gives the means where all windows are equal and share no place."""
    if any(size % count for size, count in zip(sizes, counts, strict=True)):
        return None
    kernel = tuple(size // count for size, count in zip(sizes, counts, strict=True))
    return Pooling(kernel=kernel, stride=kernel, pool_type="avg")
