"""The inverse of Concat: gradients as Symbols need it, where lengths are not known."""

from __future__ import annotations

import itertools
from typing import Any

from ..registry import Many, Op, register_op
from .shape import Concat
from .transposed import Inner


@register_op
class _unconcat(Op):
    """The outputs are the pieces of ``head`` along axis ``dim``, in the shapes of the args, whose values do not count."""

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
        ends = list(itertools.accumulate((shape[self.dim] for shape in known.out), initial=0))
        return [slice(start, end) for start, end in itertools.pairwise(ends)]

    def forward(self, xp: Any, prepared: list[slice], head: Any, data: Many, out: Many) -> None:
        lined = head.swapaxes(0, self.dim)
        for piece, part in zip(out, prepared, strict=True):
            xp.copyto(piece.swapaxes(0, self.dim), lined[part])

    def backward(self, xp: Any, dout: Many, dhead: Any) -> None:
        xp.concatenate(dout, self.dim, out=dhead)

    def gradient(self, sym: Any, dout: Any) -> dict[str, Any]:
        """What arrives, joined."""
        return {"head": sym.Concat(*dout, dim=self.dim)}
