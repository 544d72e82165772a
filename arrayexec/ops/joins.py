"""Operators that join values along an axis and split them again."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from ..dims import ANY, UNKNOWN, distinct, drop, insert, replace
from ..errors import format_shape
from ..registry import Many, Op, register_op
from .checks import check_axis, check_least
from .transposed import Inner


def pieces(lengths: Iterable[int]) -> list[slice]:
    """Slices of these lengths, one behind the other."""
    ends = itertools.accumulate(lengths, initial=0)
    return [slice(start, end) for start, end in itertools.pairwise(ends)]


@register_op(aliases=("concat",))
class Concat(Op):
    """``out`` = the inputs one behind the other along axis ``dim``; their other dims are equal."""

    num_args: int
    dim: int = 1
    examples = (
        {"arg0": (2, 3), "arg1": (2, 1), "arg2": (2, 2), "num_args": 3},
        {"arg0": (2, 3), "arg1": (1, 3), "num_args": 2, "dim": -2},
    )

    def __post_init__(self) -> None:
        check_least(self, "num_args")

    @property
    def rows(self) -> str | None:  # type: ignore[override]
        return "parallel" if self.dim > 0 else None

    def infer(self, s: Any) -> None:
        check_axis(s, "out", self.dim)
        for position, shape in enumerate(s.data):
            check_axis(s, f"arg{position}", self.dim, shape)
        for others in distinct(replace(shape, self.dim, UNKNOWN) for shape in (*s.data, s.out)):
            s.data, s.out = (others,) * self.num_args, others
        lengths = [shape[self.dim] for shape in s.data]
        s.out = replace(s.out, self.dim, sum(lengths))
        missing = [i for i, length in enumerate(lengths) if length is UNKNOWN]
        if len(missing) == 1 and s.out[self.dim] is not UNKNOWN:
            least = sum(length for length in lengths if length is not UNKNOWN)
            rest = s.out[self.dim] - least
            if rest < 0:
                s.fail("out", f"must be at least {least} long in dim {self.dim}, but it is {format_shape(s.out)}")
            s.data = tuple(replace(shape, self.dim, rest) if i in missing else shape for i, shape in enumerate(s.data))

    def forward(self, xp: Any, data: Many, out: Any) -> None:
        xp.concatenate(data, self.dim, out=out)

    def prepare(self, known: Any, context: Any) -> list[slice]:
        return pieces(shape[self.dim] for shape in known.data)

    def backward(self, xp: Any, prepared: list[slice], dout: Any, ddata: Many) -> None:
        lined = dout.swapaxes(0, self.dim)
        for gradient, part in zip(ddata, prepared, strict=True):
            if gradient is not None:
                xp.copyto(gradient.swapaxes(0, self.dim), lined[part])

    def gradient(self, sym: Any, dout: Any, data: Any) -> Mapping[str, Any]:
        return {"data": list(sym._unconcat(dout, *data, num_args=self.num_args, dim=self.dim))}


@register_op(aliases=("split",))
class SliceChannel(Op):
    """The outputs are ``num_outputs`` equal pieces of ``data`` along ``axis``; ``squeeze_axis`` drops an axis of 1."""

    num_outputs: int
    axis: int = 1
    squeeze_axis: bool = False
    examples = (
        {"data": (2, 6), "num_outputs": 3},
        {"data": (4, 2), "num_outputs": 2, "axis": 0},
        {"data": (2, 3, 2), "num_outputs": 2, "axis": -1, "squeeze_axis": True},
    )

    def __post_init__(self) -> None:
        check_least(self, "num_outputs")

    @property
    def rows(self) -> str | None:  # type: ignore[override]
        return "parallel" if self.axis > 0 else None

    def outputs(self) -> tuple[str, ...]:
        return tuple(f"out{i}" for i in range(self.num_outputs)) if self.num_outputs > 1 else ("out",)

    def listed(self) -> tuple[str, ...]:
        return tuple(f"output{i}" for i in range(self.num_outputs))

    def infer(self, s: Any) -> None:
        check_axis(s, "data", self.axis)
        for shape in distinct(s.out):
            s.out = (shape,) * self.num_outputs
        piece = s.out[0]
        if self.squeeze_axis:
            least = max(2, self.axis + 1, -self.axis)
            for name, shape, short in (("data", s.data, 0), ("out", piece, 1)):
                if shape is not ANY and len(shape) + short < least:
                    s.fail(name, f"must have at least {least - short} dims, but it is {format_shape(shape)}")
            s.data = insert(piece, self.axis, self.num_outputs)
            s.data = replace(s.data, self.axis, self.num_outputs)
            s.out = (drop(s.data, self.axis),) * self.num_outputs
            return
        check_axis(s, "out", self.axis, piece)
        s.data = replace(piece, self.axis, piece[self.axis] * self.num_outputs)
        whole, count = s.data[self.axis], self.num_outputs
        if whole is not UNKNOWN and whole % count:
            s.fail("data", f"must be a multiple of {count} in dim {self.axis}, but it is {format_shape(s.data)}")
        s.out = (replace(s.data, self.axis, whole // count),) * count

    def _pieces(self, whole: Any) -> list[Any]:
        """Views of ``whole``, one an output."""
        lined = whole.swapaxes(0, self.axis)
        step = lined.shape[0] // self.num_outputs
        views = [lined[i * step : (i + 1) * step].swapaxes(0, self.axis) for i in range(self.num_outputs)]
        return [view.squeeze(self.axis) for view in views] if self.squeeze_axis else views

    def forward(self, xp: Any, data: Any, out: Many) -> None:
        for piece, target in zip(self._pieces(data), out, strict=True):
            xp.copyto(target, piece)

    def backward(self, xp: Any, dout: Many, ddata: Any) -> None:
        for piece, gradient in zip(self._pieces(ddata), dout, strict=True):
            xp.copyto(piece, gradient)

    def gradient(self, sym: Any, dout: Any) -> Mapping[str, Any]:
        pieces = [sym.expand_dims(one, axis=self.axis) for one in dout] if self.squeeze_axis else dout
        return {"data": sym.Concat(*pieces, dim=self.axis)}


@register_op
class _unconcat(Op):
    """The outputs are the pieces of ``head`` along axis ``dim``, shaped as the args, whose values do not count."""

    num_args: int
    dim: int = 1
    examples = (
        {"head": (2, 6), "arg0": (2, 3), "arg1": (2, 1), "arg2": (2, 2), "num_args": 3},
        {"head": (3, 3), "arg0": (2, 3), "arg1": (1, 3), "num_args": 2, "dim": -2},
    )

    def __post_init__(self) -> None:
        Concat(num_args=self.num_args, dim=self.dim)  # refuses what it would refuse

    def inputs(self) -> tuple[str, ...]:
        return ("head", *self.no_gradient)

    def outputs(self) -> tuple[str, ...]:
        return tuple(f"out{i}" for i in range(self.num_args)) if self.num_args > 1 else ("out",)

    @property
    def no_gradient(self) -> tuple[str, ...]:  # type: ignore[override]
        """The args: only their shapes count."""
        return tuple(f"arg{i}" for i in range(self.num_args))

    @property
    def rows(self) -> str | None:  # type: ignore[override]
        return "parallel" if self.dim > 0 else None

    def infer(self, s: Any) -> None:
        s.data = s.out
        s.out = s.data
        Concat(num_args=self.num_args, dim=self.dim).infer(Inner(s))

    def prepare(self, known: Any, context: Any) -> list[slice]:
        return pieces(shape[self.dim] for shape in known.out)

    def forward(self, xp: Any, prepared: list[slice], head: Any, data: Many, out: Many) -> None:
        lined = head.swapaxes(0, self.dim)
        for piece, part in zip(out, prepared, strict=True):
            xp.copyto(piece.swapaxes(0, self.dim), lined[part])

    def backward(self, xp: Any, dout: Many, dhead: Any) -> None:
        xp.concatenate(dout, self.dim, out=dhead)

    def gradient(self, sym: Any, dout: Any) -> dict[str, Any]:
        """What arrives, joined."""
        return {"head": sym.Concat(*dout, dim=self.dim)}
