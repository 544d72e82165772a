"""Operators that move values without changing them: reshapes, transpositions, slices."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from ..dims import ANY, UNKNOWN, drop, insert, permute, replace, swap
from ..errors import AttributeValueError, format_shape
from ..registry import Many, Op, register_op
from .checks import check_axis, check_rank


def move(xp: Any, source: Any, target: Any) -> None:
    """Write ``source`` into the C-contiguous ``target`` of another shape, in C order and without a temporary."""
    xp.copyto(target.reshape(source.shape), source)


class View(Op):
    """Base of operators whose output is the input's bytes under another shape."""

    inplace: ClassVar[Mapping[str, str]] = {"out": "data", "ddata": "dout"}
    linear = ("data",)

    def is_view(self, train: bool) -> bool:
        return True

    def forward(self, xp: Any, data: Any, out: Any) -> None:
        move(xp, data, out)

    def backward(self, xp: Any, dout: Any, ddata: Any) -> None:
        move(xp, dout, ddata)


# --- reshape ---------------------------------------------------------------------------------------------------

Equation = tuple[tuple[int, ...], tuple[int, ...]]
"""Axes of the input and axes of the output whose dims have the same product."""


def equations(codes: Sequence[tuple[int, ...]], rank: int) -> tuple[list[Equation], dict[int, int]] | None:
    """What ``codes`` say of a shape of ``rank`` dims: equal products, and the output's dims that are given.

    None if they speak of axes that are not there. The last equation is that of all axes no code copies.
    """
    found: list[Equation] = []
    fixed: dict[int, int] = {}
    copied: set[int] = set()
    free: list[int] = []
    place = position = 0  # where the codes stand in the input and in the output
    for code, *parts in codes:
        taken = {-2: max(rank - place, 0), -3: 2}.get(code, 1)
        made = {-2: taken, -4: 2}.get(code, 1)
        source, target = range(place, place + taken), range(position, position + made)
        if code > 0 or code == -1:
            free += target
            if code > 0:
                fixed[position] = code
        else:
            if place + taken > rank and code != -2:  # -2 takes what is left, be it nothing
                return None
            copied.update(source)
            if code == -2:
                found += [((i,), (j,)) for i, j in zip(source, target, strict=True)]
            else:
                found.append((tuple(source), tuple(target)))
            fixed.update((j, part) for j, part in zip(target, parts, strict=False) if part > 0)
        place, position = place + taken, position + made
    found.append((tuple(i for i in range(rank) if i not in copied), tuple(free)))
    return found, fixed


def balance(data: list[Any], out: list[Any], equation: Equation) -> bool:
    """Fill the one unknown dim of an equation; False if its two products cannot be equal."""
    left, right = equation
    sides = [(data, left), (out, right)]
    unknown = [(dims, i) for dims, axes in sides for i in axes if dims[i] is UNKNOWN]
    products = [math.prod(dims[i] for i in axes if dims[i] is not UNKNOWN) for dims, axes in sides]
    if not unknown:
        return bool(products[0] == products[1])
    dims, i = unknown[0]
    whole, part = products if dims is out else products[::-1]
    if len(unknown) > 1 or part == 0:
        return True  # undecided: more than one unknown, or 0 · ? = 0
    dims[i] = whole // part
    return bool(whole % part == 0)


def solve(s: Any, found: Sequence[Equation], whose: str, turn: int = 1, hint: str = "") -> None:
    """Make all equations true, of shapes read backwards if ``turn`` is -1; refuse ``data`` if they cannot be."""
    data, out = list(s.data[::turn]), list(s.out[::turn])
    for equation in found:
        if not balance(data, out, equation):
            s.fail("data", f"must have as many values as {whose}, but it is {format_shape(s.data)}{hint}")
    s.data, s.out = tuple(data[::turn]), tuple(out[::turn])


@register_op(aliases=("reshape",))
class Reshape(View):
    """``out`` = ``data`` in C order under another shape, of as many values.

    ``shape`` holds dims and codes: 0 copies the dim here, -1 takes what is left (once), -2 copies all dims that
    remain, -3 merges two dims, -4 splits one into the two that follow it (one of them may be -1). ``reverse``
    counts from the right. ``target_shape`` and ``keep_highest`` are an older spelling: there 0 takes what is left.
    """

    shape: tuple[int, ...] = ()
    reverse: bool = False
    target_shape: tuple[int, ...] = ()
    keep_highest: bool = False
    examples = (
        {"data": (2, 3, 4), "shape": (0, -1)},
        {"data": (2, 3, 4), "shape": (-4, 1, -1, -3)},
        {"data": (2, 3, 4), "shape": (-2, 1)},
        {"data": (4, 3, 2), "shape": (-1, 0), "reverse": True},
        {"data": (2, 3, 4), "target_shape": (6, 0)},
        {"data": (2, 3, 4), "target_shape": (5, 0, 2), "keep_highest": True},
    )

    def __post_init__(self) -> None:
        codes = self.codes()
        splits = [group[1:] for group in codes if group[0] == -4]
        wrong = any(len(two) < 2 or min(two) < -1 or max(two) < 1 or 0 in two for two in splits)
        if not codes or wrong or min(codes)[0] < -4 or codes.count((-1,)) > 1:
            raise AttributeValueError(
                "Reshape: attribute 'shape' must hold dims and codes 0 to -4, at most one -1, behind -4 two dims "
                f"of which one may be -1; but it is {self.shape or self.target_shape}"
            )

    def codes(self) -> list[tuple[int, ...]]:
        """The codes in the order in which they are read, a split with its two dims."""
        codes = list(self.shape)
        if not codes:
            codes = [dim or -1 for dim in self.target_shape]
            codes[:1] = [0] if self.keep_highest and codes else codes[:1]
        groups: list[tuple[int, ...]] = []
        while codes:
            count = 3 if codes[0] == -4 else 1
            groups.append(tuple(codes[:count]))
            del codes[:count]
        if self.reverse and self.shape:
            groups = [(group[0], *group[:0:-1]) for group in reversed(groups)]
        return groups

    def infer(self, s: Any) -> None:
        codes, turn = self.codes(), -1 if self.reverse and self.shape else 1
        if s.data is ANY:
            if all(group[0] != -2 for group in codes):  # the rank at least is known
                dims = [dim for group in codes for dim in (group[1:] if group[0] == -4 else group)]
                s.out = tuple(dim if dim > 0 else UNKNOWN for dim in dims)[::turn]
            return
        said, wanted = equations(codes, len(s.data)), self.shape or self.target_shape
        if said is None:
            s.fail("data", f"must have the dims that shape {wanted} speaks of, but it is {format_shape(s.data)}")
        found, fixed = said  # type: ignore[misc]
        count = sum(len(right) for _, right in found)
        s.out = tuple(fixed.get(i, UNKNOWN) for i in range(count))[::turn]
        positive = self.shape and min(self.shape) > 0
        hint = "; in a shape 0 copies a dim of data, -1 takes what is left" if positive else ""
        solve(s, found, f"shape {wanted} makes", turn, hint)


@register_op(aliases=("flatten",))
class Flatten(View):
    """``out`` (n, rest) = ``data`` (n, …) with all dims but the first made one."""

    examples = ({"data": (2, 3, 4)}, {"data": (3,)})
    rows = "parallel"

    def infer(self, s: Any) -> None:
        s.out = (UNKNOWN, UNKNOWN)
        if not s.data:
            s.fail("data", "must have at least one dim")
        solve(s, [((0,), (0,)), (tuple(range(1, len(s.data))), (1,))], format_shape(s.out))


@register_op
class expand_dims(View):
    """``out`` = ``data`` with a new dim of 1 that becomes dim ``axis`` of the result."""

    axis: int
    examples = ({"data": (2, 3), "axis": 1}, {"data": (2, 3), "axis": -1})

    def infer(self, s: Any) -> None:
        check_rank(s, "data", max(self.axis, -self.axis - 1))
        check_axis(s, "out", self.axis)
        s.out = insert(s.data, self.axis, 1)
        s.out = replace(s.out, self.axis, 1)
        s.data = drop(s.out, self.axis)


@register_op
class squeeze(View):
    """``out`` = ``data`` without the dims of 1 at ``axis`` (default: all of them; one is left if all are 1)."""

    axis: tuple[int, ...] | None = None
    examples = ({"data": (2, 1, 3, 1)}, {"data": (2, 1, 3, 1), "axis": (1,)}, {"data": (1, 1)})

    def infer(self, s: Any) -> None:
        if self.axis is None:
            s.out = tuple(dim for dim in s.data if dim != 1) or (1,)
            return
        if s.data is ANY and (len(s.out) > 1 or s.out[0] != 1):  # (1,) may stand for no dim at all
            s.data = (UNKNOWN,) * (len(s.out) + len(set(self.axis)))
        for axis in self.axis:
            check_axis(s, "data", axis)
        axes = {axis % len(s.data) for axis in self.axis}
        s.data = tuple(1 if i in axes else UNKNOWN for i in range(len(s.data)))
        if len(axes) == len(s.data):
            s.out = (1,)
            return
        s.out = tuple(dim for i, dim in enumerate(s.data) if i not in axes)
        rest = iter(s.out)
        s.data = tuple(1 if i in axes else next(rest) for i in range(len(s.data)))


# --- order of axes ---------------------------------------------------------------------------------------------


@register_op
class transpose(Op):
    """``out`` = ``data`` with its axes in the order ``axes`` (default: reversed)."""

    axes: tuple[int, ...] = ()
    linear = ("data",)
    examples = ({"data": (2, 3, 4)}, {"data": (2, 3, 4), "axes": (1, 2, 0)})

    def __post_init__(self) -> None:
        rank = len(self.axes)
        if sorted(axis + rank if axis < 0 else axis for axis in self.axes) != list(range(rank)):
            raise AttributeValueError(f"transpose: attribute 'axes' must name every axis once, but it is {self.axes}")

    def infer(self, s: Any) -> None:
        rank = len(self.axes)
        for name in ("data", "out") if rank else ():
            shape = getattr(s, name)
            if shape is not ANY and len(shape) != rank:
                s.fail(name, f"must have {rank} dims for axes {self.axes}, but it is {format_shape(shape)}")
        if rank:
            s.data = s.out = (UNKNOWN,) * rank
            s.out = permute(s.data, self.axes)
            s.data = permute(s.out, np.argsort([axis % rank for axis in self.axes]).tolist())
        else:
            s.out, s.data = s.data[::-1], s.out[::-1]

    def forward(self, xp: Any, data: Any, out: Any) -> None:
        xp.copyto(out, data.transpose(self.axes or None))

    def backward(self, xp: Any, dout: Any, ddata: Any) -> None:
        xp.copyto(ddata.transpose(self.axes or None), dout)


@register_op(aliases=("swapaxes",))
class SwapAxis(Op):
    """``out`` = ``data`` with the axes dim1 and dim2 exchanged."""

    dim1: int = 0
    dim2: int = 0
    linear = ("data",)
    examples = ({"data": (2, 3, 4), "dim1": 0, "dim2": 2}, {"data": (2, 3, 4), "dim1": 1})

    def infer(self, s: Any) -> None:
        for name in ("data", "out"):
            check_axis(s, name, self.dim1)
            check_axis(s, name, self.dim2)
        s.out = swap(s.data, self.dim1, self.dim2)
        s.data = swap(s.out, self.dim1, self.dim2)

    def forward(self, xp: Any, data: Any, out: Any) -> None:
        xp.copyto(out, data.swapaxes(self.dim1, self.dim2))

    def backward(self, xp: Any, dout: Any, ddata: Any) -> None:
        xp.copyto(ddata, dout.swapaxes(self.dim1, self.dim2))


# --- slices ----------------------------------------------------------------------------------------------------


def _length(part: slice, dim: Any) -> Any:
    if part == slice(None):
        return dim
    return UNKNOWN if dim is UNKNOWN else len(range(*part.indices(dim)))


def _bounds(part: slice) -> str:
    """A slice as Python writes it."""
    numbers = [part.start, part.stop] if part.step is None else [part.start, part.stop, part.step]
    return ":".join("" if number is None else str(number) for number in numbers)


class Sliced(Op):
    """Base of operators whose output is a slice of ``data``; the gradient of the rest is zero."""

    linear: ClassVar[tuple[str, ...]] = ("data",)
    parts: ClassVar[Any]
    """Method: the slice of each axis, for a number of axes."""

    def said(self, s: Any, whole: str = "data", piece: str = "out") -> None:
        """Both directions: a sliced axis has the slice's length, the others are the same."""
        data = getattr(s, whole)
        parts = self.parts(len(data))
        setattr(s, piece, tuple(_length(part, dim) for part, dim in zip(parts, data, strict=True)))
        out = getattr(s, piece)
        if any(dim is not UNKNOWN and dim == 0 and length != 0 for dim, length in zip(out, data, strict=True)):
            shown = ", ".join(map(_bounds, parts))
            s.fail(whole, f"must hold something at [{shown}], but it is {format_shape(data)}")
        setattr(s, whole, tuple(dim if part == slice(None) else UNKNOWN for part, dim in zip(parts, out, strict=True)))

    def forward(self, xp: Any, data: Any, out: Any) -> None:
        xp.copyto(out, data[self.parts(data.ndim)])

    def backward(self, xp: Any, dout: Any, ddata: Any) -> None:
        ddata.fill(0)
        xp.copyto(ddata[self.parts(ddata.ndim)], dout)


@register_op
class slice_axis(Sliced):
    """``out`` = ``data`` from ``begin`` up to ``end`` along ``axis``; negative: from the end; None: the end.

    A slice of nothing is refused, for a dim of 0 is one that is not known.
    """

    axis: int
    begin: int
    end: int | None
    examples = (
        {"data": (2, 5), "axis": 1, "begin": 1, "end": -1},
        {"data": (4, 2), "axis": -2, "begin": -2, "end": None},
    )

    @property
    def rows(self) -> str | None:  # type: ignore[override]
        return "parallel" if self.axis > 0 else None

    def parts(self, rank: int) -> tuple[slice, ...]:
        parts = [slice(None)] * rank
        if (self.begin, self.end) != (0, None):
            parts[self.axis] = slice(self.begin, self.end)
        return tuple(parts)

    def infer(self, s: Any) -> None:
        check_axis(s, "data", self.axis)
        check_axis(s, "out", self.axis)
        s.data = replace(s.out, self.axis, s.data[self.axis])
        self.said(s)


@register_op(name="slice", aliases=("crop",))
class Slice(Sliced):
    """``out`` = ``data[begin[0]:end[0]:step[0], …]`` with Python's meaning of negative and missing (None) bounds.

    A slice of nothing is refused, for a dim of 0 is one that is not known.
    """

    begin: tuple[int | None, ...]
    end: tuple[int | None, ...]
    step: tuple[int | None, ...] = ()
    examples = (
        {"data": (4, 5, 2), "begin": (1, None), "end": (3, 4)},
        {"data": (4, 5), "begin": (None, 4), "end": (None, 0), "step": (2, -2)},
    )

    def __post_init__(self) -> None:
        given = [self.begin, self.end, self.step] if self.step else [self.begin, self.end]
        if len(set(map(len, given))) > 1 or 0 in self.step:
            raise AttributeValueError(
                f"{self.form.name}: attributes 'begin', 'end' and 'step' must have one length and no step 0, "
                f"but they are {self.begin}, {self.end} and {self.step}"
            )

    def parts(self, rank: int) -> tuple[slice, ...]:
        steps = self.step or (None,) * len(self.begin)
        parts = [slice(*bounds) for bounds in zip(self.begin, self.end, steps, strict=True)]
        return tuple(parts) + (slice(None),) * (rank - len(parts))

    def infer(self, s: Any) -> None:
        if s.data is ANY:
            s.data = (UNKNOWN,) * len(s.out)
        check_rank(s, "data", len(self.begin))
        self.said(s)


@register_op
class Crop(Op):
    """``out`` = the window of ``data`` (n, c, h, w) at ``offset`` (y, x), or in the middle if ``center_crop``.

    Its height and width are those of a second input (whose values do not count) or ``h_w``.
    """

    num_args: int
    offset: tuple[int, ...] = (0, 0)
    h_w: tuple[int, ...] = (0, 0)
    center_crop: bool = False
    examples = (
        {"arg0": (2, 1, 5, 4), "arg1": (2, 3, 3, 2), "num_args": 2, "offset": (1, 2)},
        {"arg0": (2, 1, 5, 4), "num_args": 1, "h_w": (3, 2)},
        {"arg0": (2, 1, 5, 4), "num_args": 1, "h_w": (2, 2), "center_crop": True},
    )
    rows = "parallel"

    def __post_init__(self) -> None:
        if (
            self.num_args not in (1, 2)
            or len(self.offset) != 2
            or len(self.h_w) != 2
            or min(self.offset + self.h_w) < 0
        ):
            raise AttributeValueError(
                "Crop: attribute 'num_args' must be 1 or 2, 'offset' and 'h_w' must be two whole numbers >= 0, "
                f"but they are {self.num_args}, {self.offset} and {self.h_w}"
            )

    def infer(self, s: Any) -> None:
        s.out = (UNKNOWN,) * 4
        s.data = ((UNKNOWN,) * 4,) * self.num_args
        window = s.data[1][2:] if self.num_args == 2 else self.h_w
        s.out = (*s.data[0][:2], *window)
        s.data = ((*s.out[:2], UNKNOWN, UNKNOWN), *s.data[1:])
        offset = (0, 0) if self.center_crop else self.offset
        sizes, whole = s.out[2:], s.data[0]
        if any(size < 1 or start + size > dim for start, size, dim in zip(offset, sizes, whole[2:], strict=True)):
            s.fail("arg0", f"must hold a window of {format_shape(sizes)} at {offset}, but it is {format_shape(whole)}")

    def window(self, whole: Any, part: Any) -> Any:
        """The view of ``whole`` that has the height and width of ``part``."""
        y, x = self.offset
        (height, width), (all_y, all_x) = part.shape[2:], whole.shape[2:]
        if self.center_crop:
            y, x = (all_y - height) // 2, (all_x - width) // 2
        return whole[:, :, y : y + height, x : x + width]

    def forward(self, xp: Any, data: Many, out: Any) -> None:
        xp.copyto(out, self.window(data[0], out))

    def backward(self, xp: Any, dout: Any, ddata: Many) -> None:
        for gradient in ddata:
            if gradient is not None:
                gradient.fill(0)
        if ddata[0] is not None:
            xp.copyto(self.window(ddata[0], dout), dout)
