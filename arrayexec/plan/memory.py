"""Lifetimes and offsets: which bytes of the arena every value has, over forward and backward together."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import NamedTuple

from .record import Draft, Keep, Plan, Step


def times(steps: Sequence[Step]) -> list[int]:
    """When each step runs: steps of one side-by-side section run at one time."""
    found, now = [], -1
    for number, step in enumerate(steps):
        joined = step.lane >= 0 and number > 0 and steps[number - 1].lane >= 0 and step.phase == steps[number - 1].phase
        now += not joined
        found.append(now)
    return found


class _Lives:
    """Storages of the arena (roots with all that shares their bytes) and the time span in which each is needed."""

    def __init__(self, draft: Draft, backward_start: int) -> None:
        self.draft = draft
        self.storage = [draft.root(i) for i in range(len(draft.values))]
        self.time = times(draft.steps)
        self.end_of_time = (self.time[-1] if self.time else 0) + 1
        self.start: dict[int, int] = {}
        self.end: dict[int, int] = {}
        for number, step in enumerate(draft.steps):
            for value in (*step.reads, *step.writes):
                self.touch(self.storage[value], self.time[number])
        for value in draft.outputs:  # outputs lie first and stay: training and inference give the same arrays
            self.start[self.storage[value]], self.end[self.storage[value]] = -1, self.end_of_time
        begin = self.time[backward_start] if backward_start < len(self.time) else self.end_of_time
        for value_or_none in draft.head_gradients:
            if value_or_none is not None:
                self.touch(self.storage[value_or_none], begin)

    def touch(self, storage: int, time: int) -> None:
        self.start[storage] = min(self.start.get(storage, time), time)
        self.end[storage] = max(self.end.get(storage, time), time)

    def keep(self, keep: Keep, begin: int) -> set[int]:
        """Let what ``keep`` names live to the end; backward begins at time ``begin``. Gives these storages."""
        kept = {self.storage[v] for v in self.draft.outputs}
        for value, storage in zip(self.draft.values, self.storage, strict=True):
            early = keep.scope == "forward" and value.role != "scratch" and self.start.get(storage, begin) < begin
            if storage in self.end and (early or keep.scope == "all" or value.name in keep.names):
                self.end[storage] = self.end_of_time
                kept.add(storage)
        return kept

    def share(self) -> None:
        """Let outputs take the bytes of an input that nobody needs afterwards, where the operator allows it."""
        draft = self.draft
        fixed = {self.storage[v] for v in draft.outputs}
        merged: dict[int, int] = {}

        def find(storage: int) -> int:
            while storage in merged:
                storage = merged[storage]
            return storage

        for number, step in enumerate(draft.steps):
            for written, read in step.inplace:
                out, source = find(self.storage[written]), find(self.storage[read])
                if (
                    out != source
                    and draft.values[out].in_arena
                    and draft.values[source].in_arena
                    and out not in fixed
                    and source not in fixed
                    and draft.values[out].nbytes == draft.values[source].nbytes
                    and self.end[source] == self.time[number]
                    and self.start[out] == self.time[number]
                    and sum(find(self.storage[r]) == source for r in step.reads) == 1
                    and step.lane < 0
                ):
                    merged[out] = source
                    self.end[source] = self.end[out]
        self.storage = [find(s) for s in self.storage]


class _Span(NamedTuple):
    """When a storage is needed, and how many bytes; spans are placed in this order."""

    start: int
    rank: int  # outputs come first, in their order
    storage: int
    end: int
    size: int


def _best_fit(spans: Sequence[_Span]) -> tuple[dict[int, int], int]:
    """Offsets of the storages, each in turn put into the smallest hole that holds it, and the bytes in all."""
    offsets: dict[int, int] = {}
    holes: list[tuple[int, int]] = []  # (offset, size), sorted by offset
    ends: dict[int, list[tuple[int, int]]] = {}
    top = 0
    pending: list[int] = []

    def give_back(offset: int, size: int) -> None:
        place = bisect.bisect(holes, (offset, 0))
        if place < len(holes) and offset + size == holes[place][0]:
            size += holes.pop(place)[1]
        if place and holes[place - 1][0] + holes[place - 1][1] == offset:
            offset, before = holes.pop(place - 1)
            size += before
            place -= 1
        holes.insert(place, (offset, size))

    for start, _, storage, end, size in spans:
        while pending and pending[0] < start:
            for block in ends.pop(pending.pop(0)):
                give_back(*block)
        fitting = [(hole, place) for place, (_, hole) in enumerate(holes) if hole >= size]
        if fitting:
            hole, place = min(fitting)
            offset = holes[place][0]
            holes[place : place + 1] = [(offset + size, hole - size)] if hole > size else []
        elif holes and holes[-1][0] + holes[-1][1] == top:  # grow the hole at the end
            offset = holes.pop()[0]
            top = offset + size
        else:
            offset, top = top, top + size
        offsets[storage] = offset
        if end not in ends:
            ends[end] = []
            bisect.insort(pending, end)
        ends[end].append((offset, size))
    return offsets, top


def lay_out(draft: Draft, alignment: int = 64, keep: Keep = Keep(), inplace: bool = True) -> Plan:  # noqa: B008
    """The plan of a draft: offsets of all values in the arenas of their places, ``alignment`` bytes aligned.

    ``keep``: values that are still there when all is done. Without ``inplace`` what a step reads is still there when it
    is done.
    """
    steps = draft.steps
    backward_start = next((i for i, step in enumerate(steps) if step.phase == "backward"), len(steps))
    lives = _Lives(draft, backward_start)
    begin = lives.time[backward_start] if backward_start < len(steps) else lives.end_of_time
    last = lives.keep(keep, begin)
    kept = frozenset(number for number, storage in enumerate(lives.storage) if storage in last)
    if inplace:
        lives.share()
    storages = {s for s in lives.storage if draft.values[s].in_arena and s in lives.start}
    output_rank = {lives.storage[v]: i for i, v in reversed(list(enumerate(draft.outputs)))}
    size = {s: -(-max(draft.values[s].nbytes, 1) // alignment) * alignment for s in storages}
    spans = sorted(
        _Span(lives.start[s], output_rank.get(s, len(draft.outputs)), s, lives.end[s], size[s]) for s in storages
    )
    begins: dict[int, int] = {}
    arenas: list[int] = []
    for place in range(1 + max((value.place for value in draft.values), default=0)):
        found, total = _best_fit([span for span in spans if draft.values[span.storage].place == place])
        begins |= found
        arenas.append(total)
    base_offset = _view_offsets(draft)
    offsets = [
        begins[s] + base_offset[i] if (s := lives.storage[i]) in begins else None for i in range(len(draft.values))
    ]
    live, peak = _peak(spans, lives.end_of_time)
    last_step = {time: number for number, time in enumerate(lives.time)}
    dead: list[list[int]] = [[] for _ in steps]
    for span in spans:
        if span.end in last_step:
            dead[last_step[span.end]].append(span.storage)
    return Plan(
        values=tuple(draft.values), steps=tuple(steps), backward_start=backward_start, outputs=tuple(draft.outputs),
        head_gradients=tuple(draft.head_gradients), arguments=dict(draft.arguments), aux=dict(draft.aux),
        gradients=dict(draft.gradients), is_train=draft.is_train, offsets=tuple(offsets), arenas=tuple(arenas),
        live_bytes=live, entries=tuple(draft.entries), passed=tuple(draft.passed),
        kept=kept, peak_step=last_step.get(peak, 0), dead_after=tuple(map(tuple, dead)),
    )  # fmt: skip


def _view_offsets(draft: Draft) -> list[int]:
    """Bytes between the start of each value's root and the value."""
    found: list[int] = []
    for value in draft.values:
        found.append(0 if value.base is None else found[value.base] + value.offset)
    return found


def _peak(spans: Sequence[_Span], end_of_time: int) -> tuple[int, int]:
    """Most bytes that are live at one time, and that time."""
    change = [0] * (end_of_time + 3)
    for span in spans:
        change[span.start + 1] += span.size
        change[span.end + 2] -= span.size
    live = best = when = 0
    for time, delta in enumerate(change):
        live += delta
        if live > best:
            best, when = live, time - 1
    return best, when
