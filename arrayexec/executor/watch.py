"""Monitors: true values of every node, handed out before their bytes are used again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ..plan import Plan
from ..symbol.graph import Graph, Node
from .bound import BoundPlan

MonitorCallback = Callable[[str, Any], None]


def run_watched(
    bound: BoundPlan, graph: Graph, callback: MonitorCallback, forward: bool,
    on_ready: Callable[[str], None] | None = None,
) -> None:  # fmt: skip
    """Run one direction step by step; ``callback(name, copy)`` after the step that writes a value."""
    watched: dict[int, list[tuple[str, int]]] = {}
    for made, name, value in _outputs(bound.plan, graph) if forward else _gradients(bound.plan, graph):
        watched.setdefault(made, []).append((name, value))

    passed: dict[int, list[tuple[str, int]]] = {}
    for number, node, position, value in () if forward else bound.plan.passed:
        passed.setdefault(number, []).append((_gradient_name(graph.nodes[node], position), value))

    def report(made: int, given: Mapping[int, Sequence[tuple[str, int]]] = watched) -> None:
        for name, value in given.get(made, ()):
            callback(name, bound.arrays[value].copy())

    report(-1)
    start = 0 if forward else bound.plan.backward_start
    for number, (call, step) in enumerate(zip(*(bound.forward_part if forward else bound.backward_part), strict=True)):
        report(start + number, passed)
        bound.run([call], [step])
        for value in step.writes:
            report(value)
        for name in step.ready if on_ready is not None else ():
            on_ready(name)  # type: ignore[misc]


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
