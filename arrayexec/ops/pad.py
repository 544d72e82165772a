"""Pad, and operators that repeat, turn round or stack values: what they make is larger than what they read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

import numpy as np

from ..dims import ANY, UNKNOWN, distinct, drop, insert, product, replace
from ..errors import AttributeValueError, format_shape
from ..registry import Many, Op, Temp, register_op
from .checks import check_axis, check_least
from .precision import wide
from .reduce import Scratch, fold_into, put

_BLOCK = 128 << 10  # bytes of padding that may be made on the way
_MANY = 16  # copies of a value up to which they are gone over one by one


@register_op(aliases=("pad",))
class Pad(Op):
    """``out`` = ``data`` (n, c, [d,] h, w) with ``pad_width`` = (before, after, before, after, …) more values an axis.

    They are ``constant_value``, or copies of the ``edge``, or the values next to it in turn (``reflect``), of which
    there must be enough. The first two axes take no padding.
    """

    mode: Literal["constant", "edge", "reflect"]
    pad_width: tuple[int, ...]
    constant_value: float = 0.0
    rows = "parallel"
    examples = (
        {"data": (1, 2, 3, 3), "mode": "constant", "pad_width": (0, 0, 0, 0, 1, 2, 0, 1), "constant_value": 1.5},
        {"data": (2, 1, 3, 2), "mode": "edge", "pad_width": (0, 0, 0, 0, 1, 1, 2, 0)},
        {"data": (1, 1, 2, 4, 3), "mode": "reflect", "pad_width": (0, 0, 0, 0, 1, 1, 2, 3, 0, 2)},
    )

    def __post_init__(self) -> None:
        if len(self.pad_width) not in (8, 10) or min(self.pad_width) < 0 or any(self.pad_width[:4]):
            raise AttributeValueError(
                "Pad: attribute 'pad_width' must hold two whole numbers >= 0 for each of 4 or 5 axes, "
                f"0 for the first two axes, but it is {self.pad_width}"
            )

    def widths(self) -> list[tuple[int, int]]:
        """Values before and behind, an axis."""
        return list(zip(self.pad_width[::2], self.pad_width[1::2], strict=True))

    def infer(self, s: Any) -> None:
        widths = self.widths()
        s.data = s.out = (UNKNOWN,) * len(widths)
        s.out = tuple(dim + sum(width) for dim, width in zip(s.data, widths, strict=True))
        s.data = tuple(
            dim if dim is UNKNOWN else max(dim - sum(width), 0) for dim, width in zip(s.out, widths, strict=True)
        )
        need = {"constant": 0, "edge": 1, "reflect": 1}[self.mode]
        for axis, (dim, width) in enumerate(zip(s.data, widths, strict=True)):
            least = max(width) + 1 if self.mode == "reflect" else need
            if any(width) and dim is not UNKNOWN and dim < least:
                s.fail(
                    "data", f"must have at least {least} in dim {axis} to pad it with '{self.mode}', "
                    f"but it is {format_shape(s.data)}"
                )  # fmt: skip

    def inner(self, whole: Any) -> tuple[slice, ...]:
        """Where ``whole``, of planes or images, is no padding."""
        widths = self.widths()[2:]
        shape = whole.shape[whole.ndim - len(widths) :]
        return tuple(slice(before, dim - after) for (before, after), dim in zip(widths, shape, strict=True))

    def borders(self, planes: Any) -> list[tuple[int, Any, Any]]:
        """Axis, padding and what it copies, as views of ``planes`` (n, …), in the order in which they can be filled."""
        found = []
        inner = self.inner(planes)
        for axis, (before, after) in enumerate(self.widths()[2:], 1):
            end = planes.shape[axis] - after

            def part(start: int, stop: int | None, step: int = 1, axis: int = axis) -> Any:
                # later axes are padded later, with what is copied here
                return planes[(*(slice(None),) * axis, slice(start, stop, step), *inner[axis:])]

            if self.mode == "edge":
                ends = (part(before, before + 1), part(end - 1, end))
            else:
                stop = end - 2 - after
                ends = (part(2 * before, before, -1), part(end - 2, stop if stop >= 0 else None, -1))
            found += [(axis, part(0, before), ends[0])] if before else []
            found += [(axis, part(end, None), ends[1])] if after else []
        return found

    def blocks(self, xp: Any, whole: Any) -> Iterator[Any]:
        """Views of ``whole`` as planes or images, a few at a time: NumPy copies what shares memory with its target."""
        planes = whole.reshape(whole.shape[0] * whole.shape[1], *whole.shape[2:])
        most = max((padding.nbytes for _, padding, _ in self.borders(planes[:1])), default=0)
        step = max(1, _BLOCK // most) if xp is np and most else max(1, len(planes))
        for start in range(0, len(planes), step):
            yield planes[start : start + step]

    def temps(self, s: Any) -> Scratch:
        return {"folded": ((0,) if self.mode == "constant" else s.out, wide(s.dtype("data")))}

    def forward(self, xp: Any, data: Any, out: Any) -> None:
        if self.mode == "constant":
            out.fill(self.constant_value)
        xp.copyto(out[(..., *self.inner(out))], data)
        for planes in self.blocks(xp, out) if self.mode != "constant" else ():
            for _, padding, source in self.borders(planes):
                xp.copyto(padding, source)

    def backward(self, xp: Any, dout: Any, ddata: Any, folded: Temp) -> None:
        if self.mode == "constant":
            xp.copyto(ddata, dout[(..., *self.inner(dout))])
            return
        xp.copyto(folded, dout)
        for planes in self.blocks(xp, folded):
            for axis, padding, source in reversed(self.borders(planes)):
                if self.mode == "reflect":
                    xp.add(source, padding, out=source)
                    continue
                for i in range(padding.shape[axis]):  # one value was copied that often
                    xp.add(source, padding[(slice(None),) * axis + (slice(i, i + 1),)], out=source)
        xp.copyto(ddata, folded[(..., *self.inner(folded))], casting="unsafe")

    def gradient(self, sym: Any, dout: Any) -> Mapping[str, Any] | None:
        if self.mode != "constant":
            return None
        ends = tuple(-after or None for _, after in self.widths())
        return {"data": sym.slice(dout, begin=tuple(before for before, _ in self.widths()), end=ends)}


class _Repeated(Op):
    """Base of tile and repeat: under another shape the output is data, stretched along new axes."""

    linear = ("data",)

    stretched: ClassVar[Any]
    """Method: data's and the output's shape, with new axes of 1 and of the number of copies, for data's shape."""

    def temps(self, s: Any) -> Scratch:
        kind = wide(s.dtype("data"))
        return {"total": (s.data if kind != s.dtype("data") else (0,), kind)}

    def forward(self, xp: Any, data: Any, out: Any) -> None:
        thin, broad = self.stretched(data.shape)
        xp.copyto(out.reshape(broad), data.reshape(thin))

    def backward(self, xp: Any, dout: Any, ddata: Any, total: Temp) -> None:
        pairs = [pair for pair in zip(*self.stretched(ddata.shape), strict=True) if pair != (1, 1)]  # fewer are faster
        axes = tuple(axis for axis, (few, many) in enumerate(pairs) if few != many)
        put(xp, fold_into(xp.sum, dout.reshape([many for _, many in pairs]), axes, ddata, total), ddata)


@register_op
class tile(_Repeated):
    """``out`` = ``data`` repeated ``reps[i]`` times along axis i; the shorter of shape and reps gets ones in front."""

    reps: tuple[int, ...]
    examples = ({"data": (2, 3), "reps": (2, 3)}, {"data": (3,), "reps": (2, 1)}, {"data": (2, 1, 3), "reps": (2,)})

    def __post_init__(self) -> None:
        if min(self.reps, default=1) < 1:
            raise AttributeValueError(f"tile: attribute 'reps' must hold whole numbers >= 1, but it is {self.reps}")

    def padded(self, shape: Any) -> tuple[list[Any], list[int]]:
        """Dims and numbers of copies, as many of each."""
        rank = max(len(shape), len(self.reps))
        return [1] * (rank - len(shape)) + [*shape], [1] * (rank - len(self.reps)) + [*self.reps]

    def infer(self, s: Any) -> None:
        if s.data is ANY and s.out is not ANY and len(s.out) > len(self.reps):
            s.data = (UNKNOWN,) * len(s.out)  # only data has that many
        dims, reps = self.padded(s.data)
        s.out = tuple(dim * count for dim, count in zip(dims, reps, strict=True))
        for axis, (dim, count) in enumerate(zip(s.out, reps, strict=True)):
            if dim is not UNKNOWN and dim % count:
                s.fail("out", f"must be a multiple of {count} in dim {axis}, but it is {format_shape(s.out)}")
        found = tuple(dim // count for dim, count in zip(s.out, reps, strict=True))
        s.data = found[len(found) - len(s.data) :]

    def stretched(self, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        dims, reps = self.padded(shape)
        pairs = list(zip(reps, dims, strict=True))
        return tuple(n for _, dim in pairs for n in (1, dim)), tuple(n for pair in pairs for n in pair)


@register_op
class repeat(_Repeated):
    """``out`` = ``data`` with each value ``repeats`` times in a row along ``axis`` (default: of data made flat)."""

    repeats: int
    axis: int | None = None
    examples = ({"data": (2, 3), "repeats": 2}, {"data": (2, 3, 2), "repeats": 3, "axis": -2})

    def __post_init__(self) -> None:
        check_least(self, "repeats")

    @property
    def rows(self) -> str | None:  # type: ignore[override]
        return "parallel" if self.axis is not None and self.axis > 0 else None

    def infer(self, s: Any) -> None:
        count = self.repeats
        if self.axis is None:
            s.out = (product(s.data) * count,)
            return
        check_axis(s, "data", self.axis)
        check_axis(s, "out", self.axis)
        s.out = replace(s.data, self.axis, s.data[self.axis] * count)
        dim = s.out[self.axis]
        if dim is not UNKNOWN and dim % count:
            s.fail("out", f"must be a multiple of {count} in dim {self.axis}, but it is {format_shape(s.out)}")
        s.data = replace(s.out, self.axis, dim // count)

    def stretched(self, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        place = len(shape) if self.axis is None else self.axis % len(shape) + 1
        return (*shape[:place], 1, *shape[place:]), (*shape[:place], self.repeats, *shape[place:])

    def copies(self, xp: Any, whole: Any, part: Any) -> Any:
        """View of ``whole`` with the copies of ``part`` along its first axis."""
        place = part.ndim if self.axis is None else self.axis % part.ndim + 1
        return xp.moveaxis(whole.reshape(self.stretched(part.shape)[1]), place, 0)

    def forward(self, xp: Any, data: Any, out: Any) -> None:
        if self.repeats > _MANY:
            super().forward(xp, data, out)
            return
        copies = self.copies(xp, out, data)
        for i in range(self.repeats):
            xp.copyto(copies[i], data)

    def backward(self, xp: Any, dout: Any, ddata: Any, total: Temp) -> None:
        if self.repeats > _MANY:
            super().backward(xp, dout, ddata, total)
            return
        copies, place = self.copies(xp, dout, ddata), ddata if total.dtype == ddata.dtype else total
        xp.copyto(place, copies[0])
        for i in range(1, self.repeats):
            xp.add(place, copies[i], out=place)
        put(xp, place, ddata)


@register_op(aliases=("flip",))
class reverse(Op):
    """``out`` = ``data`` with the order along each axis of ``axis`` turned round."""

    axis: tuple[int, ...]
    linear = ("data",)
    examples = ({"data": (2, 3), "axis": 1}, {"data": (2, 3, 2), "axis": (0, -1)})

    @property
    def rows(self) -> str | None:  # type: ignore[override]
        return "parallel" if all(axis > 0 for axis in self.axis) else None

    def infer(self, s: Any) -> None:
        s.out = s.data
        s.data = s.out
        for axis in self.axis:
            check_axis(s, "data", axis)
        if len({axis % len(s.data) for axis in self.axis}) < len(self.axis):
            s.fail("data", f"must have {len(self.axis)} different axes {self.axis}, but it is {format_shape(s.data)}")

    def forward(self, xp: Any, data: Any, out: Any) -> None:
        xp.copyto(out, xp.flip(data, self.axis))

    def backward(self, xp: Any, dout: Any, ddata: Any) -> None:
        xp.copyto(ddata, xp.flip(dout, self.axis))


@register_op
class stack(Op):
    """``out`` = the inputs, all of one shape, one behind the other along a new dim ``axis``."""

    num_args: int
    axis: int = 0
    examples = (
        {"arg0": (2, 3), "arg1": (2, 3), "num_args": 2},
        {"arg0": (2, 3), "arg1": (2, 3), "arg2": (2, 3), "num_args": 3, "axis": -1},
    )

    def __post_init__(self) -> None:
        check_least(self, "num_args")

    @property
    def rows(self) -> str | None:  # type: ignore[override]
        return "parallel" if self.axis > 0 else None

    def infer(self, s: Any) -> None:
        for shape in distinct(s.data):
            s.data = (shape,) * self.num_args
        least = max(self.axis, -self.axis - 1)
        if s.data[0] is not ANY and len(s.data[0]) < least:
            s.fail("arg0", f"must have at least {least} dims, but it is {format_shape(s.data[0])}")
        check_axis(s, "out", self.axis)
        s.out = insert(s.data[0], self.axis, self.num_args)
        s.out = replace(s.out, self.axis, self.num_args)
        s.data = (drop(s.out, self.axis),) * self.num_args

    def forward(self, xp: Any, data: Many, out: Any) -> None:
        xp.stack(data, self.axis, out=out)

    def backward(self, xp: Any, dout: Any, ddata: Many) -> None:
        lined = xp.moveaxis(dout, self.axis, 0)
        for i, gradient in enumerate(ddata):
            if gradient is not None:
                xp.copyto(gradient, lined[i])

    def gradient(self, sym: Any, dout: Any) -> Mapping[str, Any]:
        pieces = sym.SliceChannel(dout, num_outputs=self.num_args, axis=self.axis, squeeze_axis=True)
        return {"data": list(pieces)}
