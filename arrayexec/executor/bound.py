"""A plan bound to arrays: a flat list of ready calls, run in order."""

from __future__ import annotations

import functools
import itertools
import math
import operator
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np

from ..context import Context, Device, copyto
from ..errors import format_shape
from ..plan.memory import times
from ..plan.record import Plan, Step
from ..registry import find_body
from ..streams import RunPosition, Stream
from ..threads import one_thread_for
from .parts import Binding

Array = Any
Call = Callable[[], Any]


def _lane(calls: Sequence[Call]) -> None:
    with np.errstate(all="ignore"):  # not inherited by threads
        for call in calls:
            call()


def _side_by_side(lanes: Sequence[Sequence[Call]], threads: ThreadPoolExecutor | None) -> None:
    """Run a section: one list of calls a lane, each lane in a thread if there are any."""
    if threads is None:
        for calls in lanes:
            _lane(calls)
    else:
        for future in [threads.submit(_lane, calls) for calls in lanes]:
            future.result()


def _inside(context: Context, call: Call) -> None:
    """Run a call on one of several contexts."""
    with context.enter():
        call()


def _poisoned(call: Call, blocks: Sequence[Array]) -> None:
    for block in blocks:
        block.fill(255)
    call()


class Meeting(NamedTuple):
    """A step at which devices and ranks meet: its operator, which body, and the arrays by the body's parameters."""

    op: Any
    kind: str
    arrays: Mapping[str, Any]


class BoundPlan:
    """Arrays for every value of a plan, and one call a step (a section of lanes is one call).

    ``states`` are those of nodes by number; what is missing is made here.
    """

    def __init__(
        self, plan: Plan, binding: Binding, blocks: Mapping[Context, Array], arguments: Mapping[str, Array],
        aux: Mapping[str, Array], states: dict[int, Any], position: RunPosition,
    ) -> None:  # fmt: skip
        self.plan = plan
        self._binding, self._states, self._position = binding, states, position
        held = ((plan.arguments, arguments), (plan.gradients, binding.gradients), (plan.aux, aux))
        named = {number: arrays.get(name) for numbers, arrays in held for name, number in numbers.items()}
        self.arrays: list[Array] = []
        contexts = binding.placement.contexts
        buffers = [blocks[context] for context, _ in zip(contexts, plan.arenas, strict=False)]
        for number, (value, offset) in enumerate(zip(plan.values, plan.offsets, strict=True)):
            array = named.get(number)
            if offset is not None:
                array = contexts[value.place].view(buffers[value.place], offset, value.shape, value.dtype)
            elif value.base is not None:  # bytes of the user's array, which is in one piece (``strided`` of the plan)
                whole = self.arrays[value.base].reshape(-1).view(np.uint8)
                array = contexts[value.place].view(whole, value.offset, value.shape, value.dtype)
            self.arrays.append(array)
        self.outputs = [self.arrays[v] for v in plan.outputs]
        self.head_gradients = [None if v is None else self.arrays[v] for v in plan.head_gradients]
        calls = [self._call(step) for step in plan.steps]
        poison = os.environ.get("ARRAYEXEC_POISON") == "1"  # NaN in bytes that nobody needs any more
        freed: list[Array] = []
        self._all: list[tuple[Call, Step]] = []
        timed = zip(times(plan.steps), calls, plan.steps, plan.dead_after, strict=True)
        for _, section in itertools.groupby(timed, lambda item: item[0]):
            lanes: dict[int, list[Call]] = {}
            dead: list[int] = []
            for _, call, step, ended in section:
                lanes.setdefault(step.lane, []).append(call)
                dead += ended
            if step.lane >= 0:
                call = functools.partial(_side_by_side, list(lanes.values()), binding.threads)
            if poison:  # before the next step, so that a watcher sees what this one has made
                turns = bool(self._all) and self._all[-1][1].phase != step.phase == "backward"  # head gradients are in
                call = functools.partial(_poisoned, call, [] if turns else freed)
                spans = [(plan.values[value], plan.offsets[value] or 0) for value in dead]
                freed = [buffers[value.place][offset : offset + value.nbytes] for value, offset in spans]
            self._all.append((call, step))
        self.forward_part = self._part("forward", "update")
        self._repeated_part = self._part("forward")
        self.backward_part = self._part("backward")
        self._largest = self._largest_product()
        self._ready = [(i + 1, step.ready) for i, step in enumerate(self.backward_part[1]) if step.ready]

    def value(self, name: str) -> Array | None:
        """The array of a kept value by name: of several parts of one gradient, their sum."""
        plan = self.plan
        found = [w for step in plan.steps for w in step.writes if plan.values[w].name == name]
        found += [number for number, value in enumerate(plan.values) if value.name == name and not found]
        return self.arrays[found[-1]] if found and (found[-1] in plan.kept or plan.offsets[found[-1]] is None) else None

    def stages(self, forward: bool, on_ready: Callable[[str], None] | None = None) -> Iterator[Meeting]:
        """Run one direction; at each step at which devices meet the caller does what the step would do, then goes on.

        ``on_ready(argument)``: as in `backward`.
        """
        calls, steps = self.forward_part if forward else self.backward_part
        start = 0
        for stop, step in enumerate(steps, 1):
            meets = "comm" in step.bindings and step.op is not None
            if not (meets or step.ready):
                continue
            with self.enter():
                self.run(calls[start : stop - meets], steps[start : stop - meets])
            start = stop
            if meets:
                yield self.meeting(step)
            for name in step.ready if on_ready is not None else ():
                on_ready(name)  # type: ignore[misc]
        with self.enter():
            self.run(calls[start:], steps[start:])

    def meeting(self, step: Step) -> Meeting:
        """What devices need to know of a step at which they meet."""
        op: Any = step.op
        context = self.context(step.writes[0])
        bound = (self._bound(binding, step.node, context) for binding in step.bindings)
        return Meeting(op, step.kind, dict(zip(getattr(op.form, step.kind).parameters, bound, strict=True)))

    def _largest_product(self) -> float:
        """About how many multiplications and additions the largest product of two matrices takes."""
        found = [0.0]
        for step in self.plan.steps:
            op = step.op
            if op is None or not (len(op.linear) > 1 if op.multiplies is None else op.multiplies):
                continue
            arrays = [self.arrays[number] for number in (*step.reads, *step.writes)]
            largest = sorted(array.size for array in arrays)[-3:]  # m·k, k·n and m·n
            found.append(2 * math.prod(largest) ** 0.5)
            channels = [array.shape[1] for array in arrays if array.ndim > 2]
            if op.tile and channels:
                found[-1] = min(found[-1], 2.0 * op.tile * max(channels))
        return max(found)

    def _part(self, *phases: str) -> tuple[list[Call], list[Step]]:
        part = [item for item in self._all if item[1].phase in phases]
        return [call for call, _ in part], [step for _, step in part]

    def enter(self) -> AbstractContextManager[object]:
        """Let the device of the plan be the current one inside."""
        return self._binding.placement.enter()

    def context(self, value: int) -> Context:
        """Where a value lies."""
        return self._binding.placement.contexts[self.plan.values[value].place]

    def _call(self, step: Step) -> Call:
        context = self.context(next(iter((*step.writes, *step.reads)), 0))  # all it works on is in one place
        call = self._body_call(step, context)
        alone = len(self._binding.placement.contexts) == 1 or type(context.device).enter is Device.enter  # host memory
        return call if alone or step.kind == "transfer" else functools.partial(_inside, context, call)

    def _body_call(self, step: Step, context: Context) -> Call:
        bound = (self._bound(binding, step.node, context) for binding in step.bindings)
        if step.op is not None:
            return functools.partial(find_body(step.op, step.kind, self._binding.tier), *bound)
        target, *sources = bound
        if step.kind == "zero":
            return functools.partial(target.fill, 0)
        if step.kind == "transfer" and not context.owns(sources[0]):
            return functools.partial(copyto, target, *sources)
        if step.kind in ("copy", "transfer"):
            return functools.partial(context.xp.copyto, target, *sources)
        return functools.partial(context.xp.add, *[target, *sources][-2:], target)

    def _bound(self, binding: Any, node: int, context: Context) -> Any:
        """What a body of a node gets for one parameter."""
        graph = self._binding.inferred.graph
        if isinstance(binding, int):
            return self.arrays[binding]
        if isinstance(binding, tuple):
            return tuple(None if number is None else self.arrays[number] for number in binding)
        if binding == "rng":
            return Stream(graph.nodes[node].name, self._position, graph.twins[node])
        if binding == "prepared":
            if node not in self._states:
                op: Any = graph.nodes[node].op
                self._states[node] = op.prepare(self._binding.inferred.known(node), context)
            return self._states[node]
        return {"xp": context.xp, "is_train": self.plan.is_train}.get(binding)

    def run(self, calls: Sequence[Call], steps: Sequence[Step]) -> None:
        """Run ``calls`` in order; an exception from a body gets a note with node, shapes and the user's line."""
        walk = iter(calls)
        try:
            with np.errstate(all="ignore"), one_thread_for(self._largest):
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
        """Run the forward steps; ``updates=False`` leaves out those that move auxiliary states (a repeated forward)."""
        self.run(*(self.forward_part if updates else self._repeated_part))

    def backward(self, on_ready: Callable[[str], None] | None = None) -> None:
        """Run the backward steps; ``on_ready(argument)`` is called as soon as an argument's gradient is finished."""
        calls, steps = self.backward_part
        start = 0
        for stop, names in self._ready if on_ready is not None else ():
            self.run(calls[start:stop], steps[start:stop])
            start = stop
            for name in names:
                on_ready(name)  # type: ignore[misc]
        self.run(calls[start:], steps[start:])
