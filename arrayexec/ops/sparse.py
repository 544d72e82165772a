"""Operators that MXNet has for sparse arrays, on dense ones: files of factorization machines hold them.

Reading such a file is what they are for; all arrays here are dense, so a storage type says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from ..registry import Op, Temp, register_op
from .checks import check_numbers
from .precision import wide
from .reduce import _EXAMPLES, Scratch, _Reduction, fold_into, put, total_of


@register_op(name="_square_sum")
class SquareSum(_Reduction):
    """``out = sum of data²`` over the axes."""

    examples = _EXAMPLES

    def types(self, t: Any) -> None:
        t.same()
        check_numbers(t, "data")

    def temps(self, s: Any) -> Scratch:
        kind = wide(s.dtype("data"))  # the squares of large 16-bit numbers are none
        return {"squares": (s.data, kind), "total": total_of(s, kind)}

    def forward(self, xp: Any, data: Any, out: Any, squares: Temp, total: Temp) -> None:
        xp.multiply(data, data, out=squares, dtype=squares.dtype)
        put(xp, fold_into(xp.sum, squares, self.axes(data), out, total), out)

    def backward(self, xp: Any, dout: Any, data: Any, ddata: Any) -> None:
        xp.multiply(data, 2, out=ddata)
        xp.multiply(ddata, dout.reshape(self.over(data)[1]), out=ddata)

    def gradient(self, sym: Any, dout: Any, data: Any) -> Mapping[str, Any]:
        return {"data": 2 * data * self.spread(sym, dout, data)}


@register_op
class cast_storage(Op):
    """``out = data``: (…), whatever the storage type."""

    stype: Literal["default", "row_sparse", "csr"]
    hints = ("stype",)
    inplace: ClassVar[Mapping[str, str]] = {"out": "data"}
    passes = ("data",)
    linear = ("data",)
    rows = "parallel"
    examples = ({"data": (2, 3), "stype": "default"},)

    def infer(self, s: Any) -> None:
        s.out = s.data
        s.data = s.out

    def is_view(self, train: bool) -> bool:
        return True

    def forward(self, xp: Any, data: Any, out: Any) -> None:
        xp.copyto(out, data)

    def backward(self, xp: Any, dout: Any, ddata: Any) -> None:
        xp.copyto(ddata, dout)
