"""A plan bound to arrays: a flat list of ready calls, run in order."""

from __future__ import annotations

import functools
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from ..context import Context
from ..errors import format_shape
from ..plan.record import Plan, Step
from ..registry import Op, find_body
from ..streams import Stream

Array = Any
Call = Callable[[], Any]


def _flat(binding: Any) -> tuple[int, ...]:
    if isinstance(binding, tuple):
        return tuple(b for b in binding if b is not None)
    return (binding,) if isinstance(binding, int) else ()


class _Section:
    """Steps that may run side by side: one list of calls a lane, each lane in a thread of the pool."""

    def __init__(self, lanes: Sequence[Sequence[Call]], pool: ThreadPoolExecutor | None) -> None:
        self.lanes, self.pool = lanes, pool

    @staticmethod
    def _lane(calls: Sequence[Call]) -> None:
        with np.errstate(all="ignore"):  # not inherited by threads
            for call in calls:
                call()

    def __call__(self) -> None:
        if self.pool is None:
            for calls in self.lanes:
                self._lane(calls)
            return
        futures = [self.pool.submit(self._lane, calls) for calls in self.lanes]
        for future in futures:
            future.result()


class BoundPlan:
    """Arrays for every value of a plan, and one call a step (a section of lanes is one call).

    ``forward`` runs the steps up to the backward ones, ``backward`` the rest; ``updates=False`` leaves out the steps
    that move auxiliary states (a repeated forward).
    """

    def __init__(
        self, plan: Plan, context: Context, buffer: Array, arguments: Mapping[str, Array],
        gradients: Mapping[str, Array], aux: Mapping[str, Array], streams: Sequence[Stream],
        states: Mapping[int, Any], tier: str, pool: ThreadPoolExecutor | None = None,
    ) -> None:  # fmt: skip
        self.plan = plan
        named = {plan.arguments[n]: arguments[n] for n in plan.arguments}
        named |= {plan.gradients[n]: gradients[n] for n in plan.gradients}
        named |= {plan.aux[n]: aux[n] for n in plan.aux}
        self.arrays: list[Array] = []
        for number, value in enumerate(plan.values):
            offset = plan.offsets[number]
            if number in named:
                self.arrays.append(named[number])
            elif offset is not None:
                self.arrays.append(context.view(buffer, offset, value.shape, value.dtype))
            elif value.base is not None:  # bytes of the user's array, which is in one piece (``strided`` of the plan)
                whole = self.arrays[value.base].reshape(-1).view(np.uint8)
                self.arrays.append(context.view(whole, value.offset, value.shape, value.dtype))
            else:
                self.arrays.append(None)
        self.outputs = [self.arrays[v] for v in plan.outputs]
        self.head_gradients = [None if v is None else self.arrays[v] for v in plan.head_gradients]
        self._xp, self._streams, self._states, self._tier = context.xp, streams, states, tier
        calls = [self._call(step) for step in plan.steps]
        if os.environ.get("ARRAYEXEC_POISON") == "1":
            self._poison(calls, context, buffer)
        self.calls: list[Call] = []
        self.steps: list[Step] = []
        self._fold(calls, pool)
        split = next((i for i, step in enumerate(self.steps) if step.phase == "backward"), len(self.steps))
        self.forward_calls = self.calls[:split]
        self.repeat_calls = [
            c for c, step in zip(self.calls[:split], self.steps, strict=False) if step.phase != "update"
        ]
        self.backward_calls = self.calls[split:]
        self.backward_steps = self.steps[split:]
        self.ready = [(i + 1, step.ready) for i, step in enumerate(self.backward_steps) if step.ready]

    def _call(self, step: Step) -> Call:
        arrays = self.arrays
        if step.kind == "copy":
            target, source = (arrays[b] for b in _flat(step.bindings))
            return functools.partial(self._xp.copyto, target, source)
        if step.kind == "add":
            bound = [arrays[b] for b in _flat(step.bindings)]  # the last two, summed into the first
            return functools.partial(self._xp.add, *bound[-2:], bound[0])
        if step.kind == "zero":
            return functools.partial(arrays[_flat(step.bindings)[0]].fill, 0)
        op: Op = step.op  # type: ignore[assignment]
        special = {"xp": self._xp, "is_train": self.plan.is_train, "comm": None, "state": self._states.get(step.node)}
        bound = []
        for binding in step.bindings:
            if isinstance(binding, int):
                bound.append(arrays[binding])
            elif isinstance(binding, tuple):
                bound.append(tuple(None if b is None else arrays[b] for b in binding))
            elif binding == "rng":
                bound.append(self._streams[step.node])
            else:
                bound.append(special[binding] if binding is not None else None)
        return functools.partial(find_body(op, step.kind, self._tier), *bound)

    def _poison(self, calls: list[Call], context: Context, buffer: Array) -> None:
        """After each step fill the bytes nobody needs any more with NaN, so that a wrong lifetime shows."""
        for number, dead in enumerate(self.plan.dead_after):
            blocks = [
                buffer[offset : offset + self.plan.values[value].nbytes]
                for value in dead
                if (offset := self.plan.offsets[value]) is not None
            ]
            if blocks:

                def poisoned(call: Call = calls[number], blocks: Sequence[Array] = blocks) -> None:
                    call()
                    for block in blocks:
                        block.fill(255)

                calls[number] = poisoned

    def _fold(self, calls: Sequence[Call], pool: ThreadPoolExecutor | None) -> None:
        number, steps = 0, self.plan.steps
        while number < len(steps):
            if steps[number].lane < 0:
                self.calls.append(calls[number])
                self.steps.append(steps[number])
                number += 1
                continue
            lanes: dict[int, list[Call]] = {}
            first = number
            while number < len(steps) and steps[number].lane >= 0 and steps[number].phase == steps[first].phase:
                lanes.setdefault(steps[number].lane, []).append(calls[number])
                number += 1
            self.calls.append(_Section(list(lanes.values()), pool))
            self.steps.append(steps[number - 1])

    def run(self, calls: Sequence[Call], steps: Sequence[Step]) -> None:
        """Run ``calls`` in order; an exception from a body gets a note with node, shapes and the user's line."""
        walk = iter(calls)
        try:
            with np.errstate(all="ignore"):
                for call in walk:
                    call()
        except Exception as error:
            error.add_note(self.describe(steps[len(calls) - operator.length_hint(walk) - 1]))
            raise

    def describe(self, step: Step) -> str:
        """What a step works on, for the note of an exception."""
        lines = [f"while running {step.kind} of {step.name}:"]
        for number in (*step.reads, *step.writes):
            value = self.plan.values[number]
            lines.append(f"    {value.name}  {format_shape(value.shape)}  {value.dtype.name}")
        return "\n".join(lines)

    def forward(self, updates: bool = True) -> None:
        """Run the forward steps."""
        if updates:
            self.run(self.forward_calls, self.steps)
        else:
            kept = [s for s in self.steps if s.phase == "forward"]
            self.run(self.repeat_calls, kept)

    def backward(self, on_ready: Callable[[str], None] | None = None) -> None:
        """Run the backward steps; ``on_ready(argument)`` is called as soon as an argument's gradient is finished."""
        if on_ready is None:
            self.run(self.backward_calls, self.backward_steps)
            return
        start = 0
        for stop, names in self.ready:
            self.run(self.backward_calls[start:stop], self.backward_steps[start:stop])
            start = stop
            for name in names:
                on_ready(name)
        self.run(self.backward_calls[start:], self.backward_steps[start:])
