"""Operators of one graph on several contexts: every value gets its place, copies between places become steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from ..symbol.graph import Graph
from .record import Binding, Draft, Passed, Step


class _Spread:
    """Walks the steps of a draft and knows in which places the bytes of every root are right.

    A step runs in the place of its node. What it reads is brought there first, unless it was brought before; what it
    writes is right nowhere else. The user's arrays have a home, to which their last value is brought.
    """

    def __init__(self, draft: Draft, graph: Graph, places: Sequence[int]) -> None:
        self.draft, self.places = draft, places
        self.steps: list[Step] = []
        self.home: dict[int, int] = {}  # root: the place in which it has its own number
        self.right: dict[int, set[int]] = {}  # root: the places in which its bytes are right
        self.copies: dict[tuple[int, int], int] = {}  # (value, another place): its number there
        named = {node.name: place for node, place in zip(graph.nodes, places, strict=True) if node.op is None}
        for numbers in (draft.arguments, draft.aux, draft.gradients):
            self.home |= {value: named[name] for name, value in numbers.items()}
        for head, value in zip(graph.heads, draft.head_gradients, strict=True):
            if value is not None:
                self.home[value] = places[graph.owner[head]]
        self.right = {root: {place} for root, place in self.home.items()}
        self.last_write = {draft.root(v): i for i, step in enumerate(draft.steps) for v in step.writes}

    def number(self, value: int, place: int) -> int:
        """The value that stands for ``value`` in a place."""
        one, root = self.draft.values[value], self.draft.root(value)
        if self.home.setdefault(root, place) == place:
            return value
        if (value, place) not in self.copies:
            base = None if one.base is None else self.number(one.base, place)
            self.copies[value, place] = self.draft.add(one.name, one.shape, one.dtype, "internal", base, one.offset)
            self._put(self.copies[value, place], place)
        return self.copies[value, place]

    def _put(self, value: int, place: int) -> None:
        self.draft.values[value] = dataclasses.replace(self.draft.values[value], place=place)

    def bring(self, values: Iterable[int], place: int, phase: str) -> None:
        """Steps that copy the bytes of ``values`` to a place where they are not right yet."""
        for root in dict.fromkeys(self.draft.root(value) for value in values):
            right = self.right.get(root)
            if right and place not in right:
                source = self.number(root, self.home[root] if self.home[root] in right else min(right))
                target = self.number(root, place)
                name = self.draft.values[root].name
                self.steps.append(Step("transfer", phase, name, None, (target, source), (source,), (target,)))
                right.add(place)

    def place_of(self, step: Step) -> int:
        """The place in which a step runs."""
        if step.node >= 0:
            return self.places[step.node]
        return next((self.home[r] for v in step.writes if (r := self.draft.root(v)) in self.home), 0)  # a rewrite's own

    def run(self) -> Draft:
        """Place all steps and values."""
        draft, count = self.draft, len(self.draft.values)
        passed: dict[int, list[Passed]] = {}
        for entry in draft.passed:
            passed.setdefault(entry[0], []).append(entry)
        moved: list[tuple[int, int, int, list[int]]] = []
        for old, step in enumerate(draft.steps):
            for _, node, position, value in passed.get(old, ()):
                there = sorted(self.right[draft.root(value)])
                moved.append((len(self.steps), node, position, [self.number(value, place) for place in there]))
            self._step(old, step, self.place_of(step))
        for value in range(count):
            self._put(value, self.home.get(draft.root(value), 0))
        used = {draft.root(v): i for i, step in enumerate(self.steps) for v in (*step.reads, *step.writes)}
        draft.steps = self.steps
        draft.passed = [  # where they are still there when they are looked at
            (at, node, place, max(numbers, key=lambda v: used[draft.root(v)])) for at, node, place, numbers in moved
        ]
        return draft

    def _step(self, old: int, step: Step, place: int) -> None:
        draft = self.draft
        changed = [v for v in step.writes if step.kind in ("add", "update") or draft.values[v].base is not None]
        self.bring((*step.reads, *changed), place, "forward" if step.phase == "update" else step.phase)

        def there(binding: Binding) -> Binding:
            if isinstance(binding, tuple):
                return tuple(None if v is None else self.number(v, place) for v in binding)
            return self.number(binding, place) if isinstance(binding, int) else binding

        self.steps.append(
            dataclasses.replace(
                step, bindings=tuple(there(b) for b in step.bindings), ready=(),
                reads=tuple(self.number(v, place) for v in step.reads),
                writes=tuple(self.number(v, place) for v in step.writes),
                inplace=tuple((self.number(w, place), self.number(r, place)) for w, r in step.inplace),
            )
        )  # fmt: skip
        for root in dict.fromkeys(draft.root(v) for v in step.writes):
            self.right[root] = {place}
            if not draft.values[root].in_arena and self.last_write[root] == old:
                self.bring([root], self.home[root], step.phase)
        self.steps[-1] = dataclasses.replace(self.steps[-1], ready=step.ready)


def spread(draft: Draft, graph: Graph, places: Sequence[int]) -> Draft:
    """The draft with each step in the place of its node, ``places[node]``, and steps that copy between places."""
    return _Spread(draft, graph, places).run()
