"""Looking into a run: true values of every node, handed out or checked before their bytes are used again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from ..context import Context
from ..errors import ArgumentError, UnknownNameError, near_miss
from ..plan import Plan
from ..symbol.graph import Graph, Node
from .bound import BoundPlan, Meeting
from .finite import check_finite

Array = Any
MonitorCallback = Callable[[str, Any], None]


def copy_of(array: Array, context: Context) -> Array:
    """A new array of a context with the same values."""
    with context.enter():
        return array.copy()


@dataclasses.dataclass
class Watch:
    """What is looked at while a plan runs step by step.

    ``monitor(name, copy)`` is called after the step that makes a value; copies of values whose names are ``wanted`` are
    put into ``found``; ``finite`` is the title of an executor all of whose values must be finite (empty: no matter).
    """

    graph: Graph
    monitor: MonitorCallback | None = None
    wanted: Collection[str] = ()
    finite: str = ""
    found: dict[str, Array] = dataclasses.field(default_factory=dict)

    def report(self, bound: BoundPlan, name: str, value: int) -> None:
        """Hand out one value."""
        if self.monitor is not None:
            self.monitor(name, copy_of(bound.arrays[value], bound.context(value)))
        if name in self.wanted:
            self.found[name] = copy_of(bound.arrays[value], bound.context(value))

    def run(self, bound: BoundPlan, forward: bool, on_ready: Callable[[str], None] | None = None) -> None:
        """Run one direction of a plan. Raises NonFiniteError for the first value that must be finite and is not."""
        for _ in self.stages(bound, forward, on_ready, meets=False):
            pass

    def stages(
        self, bound: BoundPlan, forward: bool, on_ready: Callable[[str], None] | None = None, meets: bool = True
    ) -> Iterator[Meeting]:
        """As `run`; at each step at which devices meet, if they do, the caller does what the step would do."""
        graph, plan = self.graph, bound.plan
        watched: dict[int, list[tuple[str, int]]] = {}
        for made, name, value in _outputs(plan, graph) if forward else _gradients(plan, graph):
            watched.setdefault(made, []).append((name, value))
        passed: dict[int, list[tuple[str, int]]] = {}
        for number, node, position, value in () if forward else plan.passed:
            passed.setdefault(number, []).append((_gradient_name(graph.nodes[node], position), value))

        start = 0 if forward else plan.backward_start
        calls, steps = bound.forward_part if forward else bound.backward_part
        for name, value in watched.get(-1, ()):
            self.report(bound, name, value)
        for number, (call, step) in enumerate(zip(calls, steps, strict=True)):
            for name, value in passed.get(start + number, ()):
                self.report(bound, name, value)
            if meets and "comm" in step.bindings:
                yield bound.meeting(step)
            else:
                with bound.enter():
                    bound.run([call], [step])
            if self.finite:
                check_finite(bound, step, self.finite)
            made_now = [item for made in step.writes for item in watched.pop(made, ())]  # sums come later
            for name, value in made_now:
                self.report(bound, name, value)
            for name in step.ready if on_ready is not None else ():
                on_ready(name)  # type: ignore[misc]


def watch_for(
    executor: Any, monitor: MonitorCallback | None, check: str | None, internals: Iterable[str] | None = None
) -> Watch | None:
    """What a run of an executor looks at (None: nothing). Raises ArgumentError and UnknownNameError."""
    if check is None and internals is None and monitor is None:
        return None
    graph, title = executor.symbol.graph, executor.title
    if check not in (None, "finite"):
        raise ArgumentError(f"{title}: check must be 'finite' or None, but it is {check!r}")
    if isinstance(internals, str) or not isinstance(internals, Iterable | None):
        raise ArgumentError(f"{title}: internals must be a list of names, but they are {internals!r}")
    wanted = tuple(internals or ())
    known = [graph.entry_name(e) for number in range(len(graph.nodes)) for e in graph.outputs(number)] if wanted else []
    for name in wanted:
        if known.count(name) != 1:
            fault = f"several are '{name}'" if name in known else f"none is '{name}'{near_miss(str(name), known)}"
            raise UnknownNameError(f"{title}: internals must name values of the graph, but {fault}")
    return Watch(graph, monitor, wanted, title if check else "")


def _outputs(plan: Plan, graph: Graph) -> Iterator[tuple[int, str, int]]:
    """(value whose writing makes it, name, value) of every visible output; -1 for views of arguments."""
    for number, node in enumerate(graph.nodes):
        for entry in graph.outputs(number) if node.op is not None else ():
            value = made = plan.entries[entry]
            while (base := plan.values[made].base) is not None:
                made = base
            yield made if plan.values[made].in_arena else -1, graph.entry_name(entry), value


def _gradients(plan: Plan, graph: Graph) -> Iterator[tuple[int, str, int]]:
    """(value, name, value) of every gradient that an operator's backward writes: ``<node>_backward_output0`` …"""
    for step in plan.steps[plan.backward_start :]:
        node = graph.nodes[step.node]
        if step.kind != "backward" or node.signature is None:
            continue
        for (kind, place), binding in zip(node.signature.backward or (), step.bindings, strict=True):
            if kind != "dinput":
                continue
            places = place if isinstance(place, tuple) else (place,)
            values = binding if isinstance(binding, tuple) else (binding,)
            for position, value in zip(places, values, strict=True):
                if isinstance(value, int):
                    yield value, _gradient_name(node, position), value


def _gradient_name(node: Node, position: int) -> str:
    """``<node>_backward_output``, with the input's number where there are several."""
    single = node.signature is not None and len(node.signature.inputs) == 1
    return f"{node.name}_backward_output{'' if single else position}"
