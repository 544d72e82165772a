"""Monitors: true values of every node, handed out before their bytes are used again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..plan import Plan
from ..symbol.graph import Graph
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

    def report(made: int) -> None:
        for name, value in watched.get(made, ()):
            callback(name, bound.arrays[value].copy())

    report(-1)
    for call, step in zip(*(bound.forward_part if forward else bound.backward_part), strict=True):
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
        single = len(node.signature.inputs) == 1
        for (kind, place), binding in zip(node.signature.backward or (), step.bindings, strict=True):
            if kind != "dinput":
                continue
            places = place if isinstance(place, tuple) else (place,)
            values = binding if isinstance(binding, tuple) else (binding,)
            for position, value in zip(places, values, strict=True):
                if isinstance(value, int):
                    yield value, f"{node.name}_backward_output{'' if single else position}", value
