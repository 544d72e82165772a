"""Values from nothing: constants of a given shape, and of another value's shape."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

import numpy as np

from ..dims import from_user
from ..errors import AttributeValueError, format_shape
from ..registry import Op, Temp, register_op

FLOAT32 = np.dtype("float32")


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Filled(Op):
    """Base of _zeros, _ones and _full. A dim of 0 (or no shape at all) is unknown: the users of the value say it.

    They say the type, too, where none is given; float32 if they do not.
    """

    shape: tuple[int, ...] = ()
    dtype: np.dtype[Any] | None = None
    ctx: str = ""
    hints = ("ctx",)
    number: ClassVar[float] = 0

    def infer(self, s: Any) -> None:
        s.out = from_user(self.shape)

    def types(self, t: Any) -> None:
        if self.dtype is not None:
            t.out = self.dtype

    def forward(self, xp: Any, out: Any) -> None:
        out.fill(self.number)


@register_op
class _zeros(_Filled):
    """``out`` = 0 everywhere; dims of 0 in ``shape`` are filled in by inference."""

    examples = ({"shape": (2, 3), "dtype": "float64"},)


@register_op
class _ones(_Filled):
    """``out`` = 1 everywhere; dims of 0 in ``shape`` are filled in by inference."""

    number = 1
    examples = ({"shape": (2, 3), "dtype": "float64"},)


@register_op
class _full(_Filled):
    """``out`` = ``value`` everywhere; dims of 0 in ``shape`` are filled in by inference."""

    value: float
    examples = ({"shape": (2, 3), "value": 2.5, "dtype": "float64"},)

    def forward(self, xp: Any, out: Any) -> None:
        out.fill(self.value)


@register_op
class _arange(Op):
    """``out`` (n,) = start, start + step, … before ``stop``, each ``repeat`` times in a row.

    Without ``stop`` the values are 0 … start, or, with ``infer_range``, start and as many as the users of ``out`` say.
    """

    start: float
    stop: float | None = None
    step: float = 1.0
    repeat: int = 1
    infer_range: bool = False
    dtype: np.dtype[Any] = FLOAT32
    ctx: str = ""
    hints = ("ctx", "infer_range")  # infer_range shows only where another node says the shape: tests/ops has it
    examples = (
        {"start": 1.0, "stop": 7.5, "step": 2.0, "dtype": "float64"},
        {"start": 3.0, "repeat": 2, "dtype": "int32"},
    )

    def __post_init__(self) -> None:
        start, stop = self.bounds()
        if self.repeat < 1 or self.step == 0 or (stop is not None and (stop - start) / self.step <= 0):
            raise AttributeValueError(
                "_arange: there must be a value: 'step' leads from 'start' to 'stop' and 'repeat' is at least 1, "
                f"but start={start}, stop={stop}, step={self.step}, repeat={self.repeat}"
            )

    def bounds(self) -> tuple[float, float | None]:
        """Where the values start and stop; None where inference says it."""
        if self.stop is None and not self.infer_range:
            return 0.0, self.start
        return self.start, self.stop

    def infer(self, s: Any) -> None:
        start, stop = self.bounds()
        if stop is not None:
            s.out = (math.ceil((stop - start) / self.step) * self.repeat,)
        elif len(s.out) != 1 or s.out[0] % self.repeat:
            s.fail("out", f"must have one dim, a multiple of repeat={self.repeat}, but it is {format_shape(s.out)}")

    def types(self, t: Any) -> None:
        t.out = self.dtype

    def temps(self, s: Any) -> dict[str, Any]:
        count = (s.out[0] // self.repeat, 1)
        return {"ones": (count, "int64"), "places": (count, "int64"), "values": (count, "float64")}

    def forward(self, xp: Any, out: Any, ones: Temp, places: Temp, values: Temp) -> None:
        ones.fill(1)
        xp.cumsum(ones, axis=0, out=places)  # a running sum: unlike arange it needs no new memory
        xp.subtract(places, 1, out=places)
        xp.multiply(places, self.step, out=values)
        xp.add(values, self.bounds()[0], out=values)
        xp.copyto(out.reshape(ones.shape[0], self.repeat), values, casting="unsafe")


class _Like(Op):
    """Base of zeros_like and ones_like."""

    rows = "parallel"
    examples = ({"data": (2, 3)},)
    number: ClassVar[float] = 0

    def inputs(self) -> tuple[str, ...]:
        return ("data",)

    def infer(self, s: Any) -> None:
        s.out = s.data
        s.data = s.out

    def forward(self, xp: Any, out: Any) -> None:
        out.fill(self.number)


@register_op
class zeros_like(_Like):
    """``out`` = 0 in the shape and type of ``data``, whose values do not count."""


@register_op
class ones_like(_Like):
    """``out`` = 1 in the shape and type of ``data``, whose values do not count."""

    number = 1
