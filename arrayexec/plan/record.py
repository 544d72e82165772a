"""The plan as data: values, steps, offsets. No arrays in it: it can be printed, compared, pickled and tested alone."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import format_shape
from ..registry import Op

Binding = int | tuple[int | None, ...] | str | None
"""One body parameter: a value's number, several for ``Many``, the name of a special one (xp rng …), or None."""


@dataclasses.dataclass(frozen=True, slots=True)
class Value:
    """One array of the plan.

    ``role``: argument, aux and gradient are the user's arrays; output, head_gradient, internal and scratch lie in the
    arena.
    ``base`` is the value whose bytes this one shares, ``offset`` bytes behind its start (a view).
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    role: str = "internal"
    base: int | None = None
    offset: int = 0
    place: int = 0  # which of the executor's contexts it lies on

    @property
    def nbytes(self) -> int:
        """Bytes that it takes, here or in its base."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def in_arena(self) -> bool:
        """Whether it is the plan's to place; the user's arrays are not."""
        return self.role not in ("argument", "aux", "gradient")


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """One call: an operator's body (``forward update backward``) or the engine's own ``copy add zero transfer``.

    ``node`` is the node whose body, or whose value's gradient, it works on (-1: none); ``transfer`` copies a value to
    another place.
    ``lane``: steps in a row with lanes ≥ 0 form a section whose lanes may run side by side.
    ``ready``: arguments whose gradient is finished when this step is done.
    """

    kind: str
    phase: str
    name: str
    op: Op | None
    bindings: tuple[Binding, ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    node: int = -1
    lane: int = -1
    ready: tuple[str, ...] = ()
    inplace: tuple[tuple[int, int], ...] = ()  # (written value, read value) pairs that may share bytes


Passed = tuple[int, int, int, int]
"""A gradient that an operator passes on without a step of its own: (number of steps before it, node, input, value)."""


@dataclasses.dataclass(slots=True)
class Draft:
    """A plan before memory is laid out: what rewrites (fusion, layouts, shards) take and give."""

    values: list[Value]
    steps: list[Step]
    outputs: list[int]
    head_gradients: list[int | None]
    arguments: dict[str, int]
    aux: dict[str, int]
    gradients: dict[str, int]
    is_train: bool
    passed: list[Passed] = dataclasses.field(default_factory=list)
    entries: list[int] = dataclasses.field(default_factory=list)
    """The value of every entry of the graph."""

    def add(
        self, name: str, shape: tuple[int, ...], dtype: Any, role: str = "internal", base: int | None = None,
        offset: int = 0,
    ) -> int:  # fmt: skip
        """Number of a new value."""
        self.values.append(Value(name, tuple(shape), np.dtype(dtype), role, base, offset))
        return len(self.values) - 1

    def root(self, number: int) -> int:
        """The value whose bytes value ``number`` lies in."""
        while (base := self.values[number].base) is not None:
            number = base
        return number


@dataclasses.dataclass(frozen=True, slots=True)
class Keep:
    """Which values of the arena are still there when a run is done, beside its outputs.

    ``scope``: ``outputs`` nothing more, ``forward`` what forward makes (without scratch), ``all`` everything; ``names``
    are kept in every scope.
    """

    scope: str = "outputs"
    names: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True)
class Plan:
    """What to run, on which bytes. ``offsets`` has a place for every value in the arena, None for the user's arrays."""

    values: tuple[Value, ...]
    steps: tuple[Step, ...]
    backward_start: int
    """Number of the first step of backward."""
    outputs: tuple[int, ...]
    head_gradients: tuple[int | None, ...]
    arguments: Mapping[str, int]
    aux: Mapping[str, int]
    gradients: Mapping[str, int]
    is_train: bool
    offsets: tuple[int | None, ...]
    arenas: tuple[int, ...]
    """Bytes of the arena of every place."""
    live_bytes: int
    """Most bytes of all arenas that are in use at one time: what no layout can go below."""
    peak_step: int
    """The step at which they are."""
    passed: tuple[Passed, ...]
    entries: tuple[int, ...]
    kept: frozenset[int]
    """Values of the arena whose bytes are theirs to the end."""
    dead_after: tuple[tuple[int, ...], ...]
    """For every step, the arena values whose bytes are free when it is done."""

    @property
    def arena_bytes(self) -> int:
        """Bytes of the arenas of all places."""
        return sum(self.arenas)

    def bytes_by_role(self, place: int | None = None) -> dict[str, int]:
        """Bytes of every role (in one place): the user's arrays as they are, the arena as one."""
        found = {"argument": 0, "gradient": 0, "aux": 0}
        for value in self.values:
            if value.base is None and not value.in_arena and place in (None, value.place):
                found[value.role] += value.nbytes
        arena = self.arena_bytes if place is None else self.arenas[place] if place < len(self.arenas) else 0
        return {**found, "arena": arena}

    def gradient_order(self) -> list[str]:
        """Arguments with a gradient, in the order in which backward finishes them."""
        return [name for step in self.steps for name in step.ready]

    def __str__(self) -> str:
        """The plan as a table: one line a step, with values, shapes and places."""

        def show(number: int) -> str:
            value, offset = self.values[number], self.offsets[number]
            place = value.role if offset is None else f"@{offset}"
            other = f" place {value.place}" if len(self.arenas) > 1 else ""
            return f"{value.name} {format_shape(value.shape)} {value.dtype.name} {place}{other}"

        lines = [
            f"plan: {len(self.steps)} steps, arena {self.arena_bytes} bytes "
            f"(live {self.live_bytes} at step {self.peak_step})"
        ]
        for number, step in enumerate(self.steps):
            lane = f" lane {step.lane}" if step.lane >= 0 else ""
            lines.append(f"{number:5d} {step.phase:8s} {step.kind:8s} {step.name}{lane}")
            lines += [f"            -> {show(v)}" for v in step.writes]
        return "\n".join(lines)
