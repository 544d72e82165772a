"""Operators whose inputs are stretched to a common shape, axes of length 1 repeating; gradients are summed back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..dims import ANY, UNKNOWN, Shape, through
from ..errors import AttributeValueError, format_shape
from ..registry import Op, Temp, register_op
from .checks import check_axis
from .elemwise import ARITHMETIC, COMPARISONS, mod_samples
from .expression import Pointwise, Row, Table, sum_to, total_for
from .precision import wide


@through
def _ranked(shape: Shape, other: Shape) -> Shape:
    """An unknown shape of the rank of ``shape``, the result's, if ``other`` cannot be what its first dim comes from."""
    return (UNKNOWN,) * len(shape) if len(other) < len(shape) or (other[0] == 1 and shape[0] != 1) else ANY


def _joined(mine: Any, its: Any) -> Any:
    """Dim of the result from the dims of both operands; -1 if they do not fit."""
    if mine is UNKNOWN or its is UNKNOWN:
        sure = its if mine is UNKNOWN else mine
        return UNKNOWN if sure is UNKNOWN or sure == 1 else sure
    if mine == 1 or mine == its:
        return its
    return mine if its == 1 else -1


def _operand(mine: Any, its: Any, result: Any) -> Any:
    """Dim of an operand, as far as the other operand and the result fix it."""
    if mine is not UNKNOWN or result is UNKNOWN:
        return mine
    if result == 1:
        return 1
    return result if its is not UNKNOWN and its == 1 else UNKNOWN


@through
def like(shape: Shape) -> Shape:
    """A shape of unknown dims, of the rank of ``shape``."""
    return (UNKNOWN,) * len(shape)


def axis_in(s: Any, name: str, axis: int, rank: int) -> int:
    """``axis`` counted from the front, refused if ``name`` has no such axis."""
    check_axis(s, name, axis)
    return axis % rank


class Broadcast(Pointwise):
    """Base of the compiled operators of two inputs that broadcast: ranks may differ, then leading axes are added."""

    rows = "sum"
    broadcasts = True

    def infer(self, s: Any) -> None:
        if s.lhs is ANY or s.rhs is ANY:
            s.lhs, s.rhs = _ranked(s.out, s.rhs), _ranked(s.out, s.lhs)
        if s.lhs is ANY or s.rhs is ANY:
            return
        rank = max(len(s.lhs), len(s.rhs))
        lhs, rhs = (1,) * (rank - len(s.lhs)) + s.lhs, (1,) * (rank - len(s.rhs)) + s.rhs
        out = tuple(map(_joined, lhs, rhs))
        for axis, dim in enumerate(out):
            if dim is not UNKNOWN and dim == -1:
                s.fail("rhs", f"must broadcast with lhs, but dim {axis} is {rhs[axis]} and lhs has {lhs[axis]} there")
        s.out = out
        s.lhs = tuple(map(_operand, lhs, rhs, s.out))[rank - len(s.lhs) :]
        s.rhs = tuple(map(_operand, rhs, lhs, s.out))[rank - len(s.rhs) :]

    def temps(self, s: Any) -> Mapping[str, tuple[tuple[int, ...], Any]]:
        kind, level = wide(s.dtype("out")), s.lhs == s.rhs == s.out
        found = {name: (shape, bool if name[0] == "m" else kind) for name, (shape, _) in super().temps(s).items()}
        if "full" in found and level:
            found["full"] = (0,), kind  # nothing is stretched: gradients are written where they belong
        if "again" in found and (level or kind == s.dtype("out")):
            found["again"] = (0,), kind
        if "total" in found:
            found["total"] = total_for(s.dtype("out"), s.out, s.lhs, s.rhs)
        return found


_ALIASES = {"add": "broadcast_plus", "sub": "broadcast_minus"}


def _rows() -> Iterator[Row]:
    for name, forward, backward, note, options in ARITHMETIC:
        values = mod_samples((1, 3)) if name == "mod" else {}
        yield Row(f"broadcast_{name}", forward, backward, _ALIASES.get(name, ""), note, values=values, **options)
    for name, forward in COMPARISONS:
        yield Row(f"broadcast_{name}", forward, (), note="The gradient is zero. True is 1, of the inputs' type.")


ROWS = Table(__name__, _rows(), Broadcast)
__getattr__ = ROWS.attribute


class _Stretch(Op):
    """Base of what repeats ``data`` along axes of length 1."""

    linear = ("data",)

    def forward(self, xp: Any, data: Any, out: Any) -> None:
        xp.copyto(out, data)

    def temps(self, s: Any) -> Mapping[str, tuple[tuple[int, ...], Any]]:
        return {"total": total_for(s.dtype("out"), s.out, s.data)}

    def backward(self, xp: Any, dout: Any, ddata: Any, total: Temp) -> None:
        sum_to(xp, dout, ddata, total)


def _stretch(s: Any, name: str, wanted: Sequence[Any]) -> None:
    """Rule of a stretched input: ``wanted`` has a dim for each axis of the result, None where the input's stays."""
    setattr(s, name, (UNKNOWN,) * len(wanted))
    data = getattr(s, name)
    for axis, (dim, its) in enumerate(zip(data, wanted, strict=True)):
        if its is not None and its is not UNKNOWN and dim is not UNKNOWN and dim not in (1, its):
            s.fail(name, f"must have 1 or {its} in dim {axis}, but it is {dim}")
    s.out = tuple(dim if its is None else its for dim, its in zip(data, wanted, strict=True))
    stays = [its is None or (its is not UNKNOWN and its == 1) for its in wanted]
    setattr(s, name, tuple(o if same else dim for o, dim, same in zip(s.out, data, stays, strict=True)))


@register_op
class broadcast_to(_Stretch):
    """``out`` = data repeated to ``shape``, of the same rank: 0 keeps data's dim, other dims of data are 1 or equal."""

    shape: tuple[int, ...]
    examples = ({"data": (1, 3, 1), "shape": (2, 0, 4)}, {"data": (2, 1), "shape": (2, 2)})

    def __post_init__(self) -> None:
        if min(self.shape, default=0) < 0:
            raise AttributeValueError(
                f"broadcast_to: attribute 'shape' must hold whole numbers >= 0, but it is {self.shape}"
            )

    @property
    def rows(self) -> str | None:  # type: ignore[override]
        """Rows are independent unless the first axis is stretched."""
        return "parallel" if self.shape[:1] == (0,) else None

    def infer(self, s: Any) -> None:
        _stretch(s, "data", [dim or None for dim in self.shape])


@register_op(aliases=("broadcast_axes",))
class broadcast_axis(_Stretch):
    """``out`` = data with each ``axis`` of length 1 repeated ``size`` times; axis may be negative.

    A size of 0 is one that the users of ``out`` say, as in MXNet's shapes.
    """

    axis: tuple[int, ...] = ()
    size: tuple[int, ...] = ()
    examples = ({"data": (1, 3, 1), "axis": (0, 2), "size": (2, 3)}, {"data": (2, 1), "axis": -1, "size": 3})

    @property
    def rows(self) -> str | None:  # type: ignore[override]
        """Rows are independent unless the first axis is, or may be, stretched."""
        return "parallel" if all(axis > 0 for axis in self.axis) else None

    def __post_init__(self) -> None:
        if len(self.axis) != len(self.size) or min(self.size, default=0) < 0:
            raise AttributeValueError(
                "broadcast_axis: attribute 'size' must hold as many numbers >= 0 as 'axis', "
                f"but they are {self.size} and {self.axis}"
            )

    def infer(self, s: Any) -> None:
        s.data, s.out = like(s.out), like(s.data)
        wanted: list[Any] = [None] * len(s.data)
        for axis, size in zip(self.axis, self.size, strict=True):
            place = axis_in(s, "data", axis, len(wanted))
            wanted[place] = size or s.out[place]
        _stretch(s, "data", wanted)


@register_op
class broadcast_like(Op):
    """``out`` = lhs repeated to the shape of rhs, or only ``lhs_axes`` of it to the dims that ``rhs_axes`` of rhs have.

    rhs gives its shape alone: its type is free and its gradient zero.
    """

    lhs_axes: tuple[int, ...] | None = None
    rhs_axes: tuple[int, ...] | None = None
    rows = "sum"
    no_gradient = ("rhs",)
    linear = ("lhs",)
    examples = (
        {"lhs": (1, 3), "rhs": (4, 3)},
        {"lhs": (1, 3, 1), "rhs": (5, 2), "lhs_axes": (0, -1), "rhs_axes": (1, 0)},
    )

    def __post_init__(self) -> None:
        lhs, rhs = self.lhs_axes, self.rhs_axes
        if (lhs is None) != (rhs is None) or len(lhs or ()) != len(rhs or ()):
            raise AttributeValueError(
                "broadcast_like: attribute 'lhs_axes' must name as many axes as 'rhs_axes', "
                f"but they are {lhs} and {rhs}"
            )

    def infer(self, s: Any) -> None:
        if self.lhs_axes is None or self.rhs_axes is None:
            s.out = s.rhs
            s.rhs = s.out
            _stretch(s, "lhs", tuple(s.rhs))
            return
        s.lhs, s.out = like(s.out), like(s.lhs)
        wanted: list[Any] = [None] * len(s.lhs)
        for axis, other in zip(self.lhs_axes, self.rhs_axes, strict=True):
            place = axis_in(s, "lhs", axis, len(wanted))
            wanted[place] = s.rhs[axis_in(s, "rhs", other, len(s.rhs))]
        _stretch(s, "lhs", wanted)

    def forward(self, xp: Any, lhs: Any, rhs: Any, out: Any) -> None:
        xp.copyto(out, lhs)

    def temps(self, s: Any) -> Mapping[str, tuple[tuple[int, ...], Any]]:
        return {"total": total_for(s.dtype("out"), s.out, s.lhs)}

    def backward(self, xp: Any, dout: Any, dlhs: Any, total: Temp) -> None:
        sum_to(xp, dout, dlhs, total)


@register_op
class _sum_like(Op):
    """``out`` = data summed over the axes along which the shape of ``like`` broadcasts to data's shape.

    Symbols use it for gradients of what broadcasts. like gives its shape alone: its type is free, its gradient zero.
    """

    inputs = ("data", "like")
    no_gradient = ("like",)
    linear = ("data",)
    examples = ({"data": (2, 3, 4), "like": (3, 1)}, {"data": (2, 3), "like": (2, 3)})

    def infer(self, s: Any) -> None:
        s.out = s.like
        s.like = s.out
        rank, least = len(s.data), len(s.like)
        wide = (1,) * (rank - least) + s.like
        fits = [mine is UNKNOWN or its is UNKNOWN or mine in (1, its) for mine, its in zip(wide, s.data, strict=False)]
        if least > rank or not all(fits):
            s.fail("like", f"must broadcast to data {format_shape(s.data)}, but it is {format_shape(s.like)}")
        stretched = (UNKNOWN if dim is UNKNOWN or dim == 1 else dim for dim in wide)
        s.data = tuple(stretched)

    def temps(self, s: Any) -> Mapping[str, tuple[tuple[int, ...], Any]]:
        return {"total": total_for(s.dtype("data"), s.data, s.like)}

    def forward(self, xp: Any, data: Any, out: Any, total: Temp) -> None:
        sum_to(xp, data, out, total)

    def backward(self, xp: Any, dout: Any, ddata: Any) -> None:
        xp.copyto(ddata, dout)
