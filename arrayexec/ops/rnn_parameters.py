"""The parameters of a fused RNN as one vector, from what unrolled weights are called."""

from __future__ import annotations

from typing import Any

from ..dims import UNKNOWN, replace
from ..errors import format_shape
from ..registry import register_op
from .joins import Concat


@register_op
class _rnn_param_concat(Concat):
    """Concat; inputs whose length along ``dim`` nobody says share equally what the others leave of ``out``.

    They are the input weights of the first layer, of one size in both directions.
    """

    examples = (
        {"arg0": (2, 3), "arg1": (2, 3), "num_args": 2},
        {"arg0": (2, 3), "arg1": (2, 3), "num_args": 2, "dim": 0},
    )

    def infer(self, s: Any) -> None:
        super().infer(s)
        lengths = [shape[self.dim] for shape in s.data]
        open_ones = [i for i, length in enumerate(lengths) if length is UNKNOWN]
        whole = s.out[self.dim]
        if len(open_ones) < 2 or whole is UNKNOWN:
            return
        rest = whole - sum(length for length in lengths if length is not UNKNOWN)
        if rest < 0 or rest % len(open_ones):
            s.fail("out", f"must leave {len(open_ones)} equal parts in dim {self.dim}, but it is {format_shape(s.out)}")
        share = rest // len(open_ones)
        s.data = tuple(replace(shape, self.dim, share) if i in open_ones else shape for i, shape in enumerate(s.data))
