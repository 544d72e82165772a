"""Products of attention on projections that lie interleaved: heads, then queries, keys and values of each head.

Projections are (steps, rows, heads · parts · d): the last axis is split into heads, then parts (query, key, value),
then the d values of a head. Scores are (rows · heads, queries, keys).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

from ..dims import UNKNOWN
from ..errors import format_shape
from ..registry import Op, register_op
from .checks import check_floating, check_least
from .dot import turned
from .precision import wide

Array = Any


@register_op(name="_contrib_div_sqrt_dim")
class DivSqrtDim(Op):
    """``out = data / sqrt(n)``, n the length of the last axis: data (…, n), out as data."""

    inplace = {"out": "data", "ddata": "dout"}  # noqa: RUF012
    linear = ("data",)
    examples = ({"data": (3, 4)}, {"data": (2, 3, 5)})

    def infer(self, s: Any) -> None:
        s.out = s.data
        s.data = s.out

    def types(self, t: Any) -> None:
        t.same()
        check_floating(t, "data")

    def forward(self, xp: Any, data: Array, out: Array) -> None:
        xp.multiply(data, 1 / math.sqrt(max(data.shape[-1], 1)), out=out)

    def backward(self, xp: Any, dout: Array, ddata: Array) -> None:
        self.forward(xp, dout, ddata)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attention(Op):
    """Base: the number of heads, and views of interleaved projections as stacks of matrices."""

    heads: int
    rows = None
    batch_axis = 1

    def __post_init__(self) -> None:
        check_least(self, "heads")

    def types(self, t: Any) -> None:
        t.same()
        check_floating(t, "out")

    def _divides(self, s: Any, name: str, parts: int) -> None:
        shape, whole = getattr(s, name), self.heads * parts
        if shape[2] % whole:
            fact = f"must have a multiple of {whole} (heads times parts) in dim 2"
            s.fail(name, f"{fact}, but it is {format_shape(shape)}")

    def _part(self, array: Array, parts: int, part: int) -> Array:
        """One part of a projection as (rows, heads, steps, d)."""
        steps, rows, values = array.shape
        split = array.reshape(steps, rows, self.heads, parts, values // (self.heads * parts))
        return split[:, :, :, part].transpose(1, 2, 0, 3)

    def _scores(self, array: Array) -> Array:
        """Scores as (rows, heads, queries, keys)."""
        return array.reshape(array.shape[0] // self.heads, self.heads, *array.shape[1:])


def _product(xp: Any, left: Array, right: Array, out: Array, scale: float = 1.0) -> None:
    """``out`` = scale · left · right for stacks of matrices; 16-bit ones are multiplied in 32 bits, row by row."""
    if wide(out.dtype) is out.dtype:
        xp.matmul(left, right, out=out)
        if scale != 1:
            xp.multiply(out, scale, out=out)
        return
    for row in range(len(out)):
        made = xp.matmul(left[row].astype("float32"), right[row].astype("float32"))
        xp.multiply(made, scale, out=out[row], casting="same_kind")


def _scale(array: Array) -> float:
    """One over the root of the d of queries (rows, heads, steps, d)."""
    return 1 / math.sqrt(max(array.shape[-1], 1))


@register_op(name="_contrib_interleaved_matmul_selfatt_qk")
class SelfScores(Attention):
    """``out`` = scores q · kᵀ / sqrt(d) of each head.

    queries_keys_values (t, n, heads · 3 · d), out (n · heads, t, t).
    """

    examples = ({"queries_keys_values": (2, 4, 24), "heads": 2},)

    def infer(self, s: Any) -> None:
        s.queries_keys_values = (UNKNOWN,) * 3
        s.out = (s.queries_keys_values[1] * self.heads, s.queries_keys_values[0], s.queries_keys_values[0])
        s.queries_keys_values = (s.out[1], UNKNOWN, UNKNOWN)
        s.queries_keys_values = (s.out[2], s.out[0] // self.heads, UNKNOWN)
        self._divides(s, "queries_keys_values", 3)

    def forward(self, xp: Any, queries_keys_values: Array, out: Array) -> None:
        q, k = (self._part(queries_keys_values, 3, part) for part in (0, 1))
        _product(xp, q, turned(k), self._scores(out), _scale(q))

    def backward(self, xp: Any, dout: Array, queries_keys_values: Array, dqueries_keys_values: Array) -> None:
        q, k = (self._part(queries_keys_values, 3, part) for part in (0, 1))
        dq, dk, dv = (self._part(dqueries_keys_values, 3, part) for part in (0, 1, 2))
        arriving = self._scores(dout)
        _product(xp, arriving, k, dq, _scale(q))
        _product(xp, turned(arriving), q, dk, _scale(q))
        xp.copyto(dv, 0)


@register_op(name="_contrib_interleaved_matmul_selfatt_valatt")
class SelfValues(Attention):
    """``out`` = attention · v of each head.

    queries_keys_values (t, n, heads · 3 · d), attention (n · heads, t, t), out (t, n, heads · d).
    """

    linear = ("queries_keys_values", "attention")
    examples = ({"queries_keys_values": (2, 4, 24), "heads": 2},)

    def infer(self, s: Any) -> None:
        s.queries_keys_values = (UNKNOWN,) * 3
        steps, rows, values = s.queries_keys_values
        s.attention, s.out = (rows * self.heads, steps, steps), (steps, rows, values // 3)
        s.queries_keys_values = (s.out[0], s.out[1], s.out[2] * 3)
        s.queries_keys_values = (s.attention[1], s.attention[0] // self.heads, UNKNOWN)
        self._divides(s, "queries_keys_values", 3)

    def keeps(self, want: frozenset[str]) -> Iterable[str]:
        other = {"queries_keys_values": "attention", "attention": "queries_keys_values"}
        return [other[name] for name in sorted(want)]

    def forward(self, xp: Any, queries_keys_values: Array, attention: Array, out: Array) -> None:
        _product(xp, self._scores(attention), self._part(queries_keys_values, 3, 2), self._part(out, 1, 0))

    def backward(
        self, xp: Any, dout: Array, queries_keys_values: Array, attention: Array, dqueries_keys_values: Array,
        dattention: Array,
    ) -> None:  # fmt: skip
        arriving = self._part(dout, 1, 0)
        if dqueries_keys_values is not None:
            dq, dk, dv = (self._part(dqueries_keys_values, 3, part) for part in (0, 1, 2))
            xp.copyto(dq, 0)
            xp.copyto(dk, 0)
            _product(xp, turned(self._scores(attention)), arriving, dv)
        if dattention is not None:
            values = self._part(queries_keys_values, 3, 2)
            _product(xp, arriving, turned(values), self._scores(dattention))


@register_op(name="_contrib_interleaved_matmul_encdec_qk")
class CrossScores(Attention):
    """``out`` = scores q · kᵀ / sqrt(d) of each head.

    queries (t, n, heads · d), keys_values (u, n, heads · 2 · d), out (n · heads, t, u).
    """

    linear = ("queries", "keys_values")
    examples = (
        {"queries": (3, 2, 4), "keys_values": (2, 2, 8), "heads": 2},
        {"queries": (2, 1, 3), "keys_values": (2, 1, 6), "heads": 1},
    )

    def infer(self, s: Any) -> None:
        s.queries = s.keys_values = (UNKNOWN,) * 3
        s.keys_values = (UNKNOWN, s.queries[1], s.queries[2] * 2)
        s.queries = (UNKNOWN, s.keys_values[1], s.keys_values[2] // 2)
        s.out = (s.queries[1] * self.heads, s.queries[0], s.keys_values[0])
        rows = s.out[0] // self.heads
        s.queries, s.keys_values = (s.out[1], rows, UNKNOWN), (s.out[2], rows, UNKNOWN)
        self._divides(s, "queries", 1)

    def keeps(self, want: frozenset[str]) -> Iterable[str]:
        return [{"queries": "keys_values", "keys_values": "queries"}[name] for name in sorted(want)]

    def forward(self, xp: Any, queries: Array, keys_values: Array, out: Array) -> None:
        q = self._part(queries, 1, 0)
        _product(xp, q, turned(self._part(keys_values, 2, 0)), self._scores(out), _scale(q))

    def backward(
        self, xp: Any, dout: Array, queries: Array, keys_values: Array, dqueries: Array, dkeys_values: Array
    ) -> None:
        arriving = self._scores(dout)
        if dqueries is not None:
            dq = self._part(dqueries, 1, 0)
            _product(xp, arriving, self._part(keys_values, 2, 0), dq, _scale(dq))
        if dkeys_values is not None:
            dk, dv = (self._part(dkeys_values, 2, part) for part in (0, 1))
            _product(xp, turned(arriving), self._part(queries, 1, 0), dk, _scale(dk))
            xp.copyto(dv, 0)


@register_op(name="_contrib_interleaved_matmul_encdec_valatt")
class CrossValues(Attention):
    """``out`` = attention · v of each head.

    keys_values (u, n, heads · 2 · d), attention (n · heads, t, u), out (t, n, heads · d).
    """

    linear = ("keys_values", "attention")
    examples = (
        {"keys_values": (2, 2, 8), "attention": (4, 3, 2), "heads": 2},
        {"keys_values": (2, 1, 6), "attention": (1, 2, 2), "heads": 1},
    )

    def infer(self, s: Any) -> None:
        s.keys_values = s.attention = (UNKNOWN,) * 3
        s.attention = (s.keys_values[1] * self.heads, UNKNOWN, s.keys_values[0])
        s.keys_values = (s.attention[2], s.attention[0] // self.heads, UNKNOWN)
        s.out = (s.attention[1], s.keys_values[1], s.keys_values[2] // 2)
        s.keys_values = (UNKNOWN, s.out[1], s.out[2] * 2)
        s.attention = (s.out[1] * self.heads, s.out[0], UNKNOWN)
        self._divides(s, "keys_values", 2)

    def keeps(self, want: frozenset[str]) -> Iterable[str]:
        return [{"attention": "keys_values", "keys_values": "attention"}[name] for name in sorted(want)]

    def forward(self, xp: Any, keys_values: Array, attention: Array, out: Array) -> None:
        _product(xp, self._scores(attention), self._part(keys_values, 2, 1), self._part(out, 1, 0))

    def backward(
        self, xp: Any, dout: Array, keys_values: Array, attention: Array, dkeys_values: Array, dattention: Array
    ) -> None:
        arriving = self._part(dout, 1, 0)
        if dkeys_values is not None:
            dk, dv = (self._part(dkeys_values, 2, part) for part in (0, 1))
            xp.copyto(dk, 0)
            _product(xp, turned(self._scores(attention)), arriving, dv)
        if dattention is not None:
            _product(xp, arriving, turned(self._part(keys_values, 2, 1)), self._scores(dattention))
