"""Symbol + shapes + wants → :class:`Plan`: pure data, made in three stages: build, rewrite, lay out memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..symbol.graph import Graph
from .build import build
from .memory import lay_out
from .record import Draft, Keep, Plan, Step, Value
from .spread import spread

Rewrite = Callable[[Draft], Draft]

__all__ = ["Draft", "Keep", "Plan", "Rewrite", "Step", "Value", "build", "lay_out", "make_plan", "spread"]


def make_plan(
    graph: Graph, shapes: Sequence[Any], types: Sequence[Any], wants: Mapping[str, str], *, is_train: bool,
    backward: bool = True, indirect: frozenset[str] = frozenset(), strided: frozenset[str] = frozenset(),
    rewrites: Sequence[Rewrite] = (), alignment: int = 64, keep: Keep = Keep(),  # noqa: B008
    places: Sequence[int] = (), inplace: bool = True,
) -> Plan:  # fmt: skip
    """Plan of one mode of a graph; ``rewrites`` (fusion, layouts, shards) see the draft before memory is laid out.

    ``places``: for every node, on which of several contexts it runs (none: all on one). The others: `build`, `lay_out`.
    """
    draft = build(graph, shapes, types, wants, is_train=is_train, backward=backward, indirect=indirect, strided=strided)
    for rewrite in rewrites:
        draft = rewrite(draft)
        draft.passed = []  # they count steps that the rewrite has changed
    if places:
        draft = spread(draft, graph, places)
    return lay_out(draft, alignment, keep, inplace)
