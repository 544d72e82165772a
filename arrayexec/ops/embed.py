"""Embedding: rows of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from ..registry import Op, Sample, Temp, register_op
from .checks import check_least
from .index import gather, scatter_add, scatter_temps, whole


@register_op
class Embedding(Op):
    """``out[…] = weight[data[…]]``: data (…) any numeric type, weight (input_dim, output_dim), out (…, output_dim).

    Indices are truncated toward zero and clipped into the table, a NaN to row 0; gradients of one row are summed in the
    order of the indices. ``dtype`` is the table's type where nothing else says one.
    """

    input_dim: int
    output_dim: int
    dtype: np.dtype[Any] = np.dtype("float32")
    sparse_grad: bool = False
    hints: ClassVar[tuple[str, ...]] = ("sparse_grad", "dtype")
    linear = ("weight",)
    no_gradient = ("data",)
    rows = "sum"
    examples: ClassVar[Sequence[Mapping[str, Any]]] = (
        {"data": Sample((3, 2), -1, 6, True), "input_dim": 4, "output_dim": 3},
        {"data": Sample((5,), -0.9, 3.9), "input_dim": 3, "output_dim": 2},
    )

    def __post_init__(self) -> None:
        check_least(self, "input_dim", "output_dim")

    def infer(self, s: Any) -> None:
        s.weight = (self.input_dim, self.output_dim)
        s.data = s.out[:-1]
        s.out = (*s.data, self.output_dim)

    def types(self, t: Any) -> None:
        t.same()
        if t.weight is None:
            t.weight = t.out = self.dtype

    def temps(self, s: Any) -> dict[str, Any]:
        return {"index": (s.data, "int64"), **scatter_temps(s.weight, s.out, s.dtype("weight"))}

    def forward(self, xp: Any, data: Any, weight: Any, out: Any, index: Temp) -> None:
        whole(xp, data, index, self.input_dim)
        gather(xp, weight, index, 0, out)

    def backward(self, xp: Any, dout: Any, data: Any, dweight: Any, index: Temp, flat: Temp, wide: Temp) -> None:
        whole(xp, data, index, self.input_dim)
        scatter_add(xp, dweight, index, dout, flat, wide)


@register_op
class _contrib_SparseEmbedding(Embedding):
    """Embedding, by its former name; ``deterministic`` says nothing, sums are always made in order."""

    deterministic: bool = False
    hints = (*Embedding.hints, "deterministic")
    examples = ({"data": Sample((3, 2), -1, 6, True), "input_dim": 4, "output_dim": 3},)
