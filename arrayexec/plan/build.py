"""Symbol graph + shapes + wants → draft: forward steps, the backward graph, sums of gradients. No memory yet."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ..registry import Op, Signature, gradient_positions
from ..symbol.graph import Graph, Node
from .record import Draft, Step
from .rewrite import operator_step


def flow(graph: Graph, wants: Mapping[str, str]) -> tuple[set[int], dict[int, list[int]]]:
    """Entries that need a gradient so that wanted arguments get theirs, and the nodes whose backward runs, in order.

    A node runs if the flow from the heads reaches it and one of its inputs leads to a wanted argument; the positions of
    all such inputs stand with it. The outputs of a loss head need no gradient: its backward does not read them.
    """
    gives = [gradient_positions(node.op) if node.op is not None else [] for node in graph.nodes]
    reached = set(graph.heads)
    for number in range(len(graph.nodes) - 1, -1, -1):
        if gives[number] and any(entry in reached for entry in graph.outputs(number)):
            reached.update(graph.inputs[number][p] for p in gives[number])
    wanted = {graph.first[i] for i in graph.arguments if wants.get(graph.nodes[i].name, "null") != "null"}
    needs, runs = wanted & reached, {}
    for number, node in enumerate(graph.nodes):
        positions = [p for p in gives[number] if graph.inputs[number][p] in needs]
        outputs = [entry for entry in graph.outputs(number) if entry in reached]
        if positions and outputs:
            runs[number] = positions
            if node.signature is not None and node.signature.head_gradient:
                needs.update(outputs)
    return needs, runs


class _Builder:
    def __init__(
        self, graph: Graph, shapes: Sequence[Any], types: Sequence[Any], wants: Mapping[str, str], is_train: bool,
        backward: bool, indirect: frozenset[str], strided: frozenset[str],
    ) -> None:  # fmt: skip
        self.graph, self.shapes, self.types, self.is_train = graph, shapes, types, is_train
        self.wants = {name: request for name, request in wants.items() if request != "null"} if backward else {}
        self.indirect, self.strided = indirect, strided
        self.draft = Draft([], [], [], [], {}, {}, {}, is_train)
        self.value_of: list[int] = [-1] * len(graph.owner)

    # --- shared ------------------------------------------------------------------------------------------------

    def operator(self, number: int, body: str, gradients: dict[str, int] | None = None) -> None:
        """Append the step that runs a body of node ``number``; ``gradients`` stand under ``d<name>``."""
        node = self.graph.nodes[number]
        signature, op = _applied(node)
        names = (*signature.arguments, *signature.outputs, *signature.hidden)
        values = dict(zip(names, (self.value_of[entry] for entry in self.graph.values(number)), strict=True))
        step = operator_step(self.draft, op, body, values | (gradients or {}), node.where, node=number)
        self.draft.steps.append(step)

    def emit(self, kind: str, phase: str, name: str, node: int, target: int, *sources: int) -> None:
        """Append a step of the engine's own: ``zero``, ``copy``, ``add`` (two sources, or one to what is there)."""
        reads = tuple(source for source in dict.fromkeys(sources) if source != target)
        self.draft.steps.append(Step(kind, phase, name, None, (target, *sources), reads, (target,), node))

    def is_view(self, number: int) -> bool:
        """Whether node ``number`` only gives its input's bytes another shape, and those bytes are in one piece."""
        op = self.graph.nodes[number].op
        if op is None or not op.is_view(self.is_train):
            return False
        entry = self.graph.inputs[number][0]
        if self.types[self.graph.first[number]] != self.types[entry]:
            return False
        root = self.draft.values[self.draft.root(self.value_of[entry])]
        return not (root.role == "argument" and root.name in self.strided)

    # --- forward -----------------------------------------------------------------------------------------------

    def forward(self) -> None:
        graph, draft = self.graph, self.draft
        auxiliary = set(graph.auxiliary)
        for number, node in enumerate(graph.nodes):
            first = graph.first[number]
            if node.op is None or node.signature is None:
                role = "aux" if number in auxiliary else "argument"
                self.value_of[first] = draft.add(node.name, self.shapes[first], self.types[first], role)
                (draft.aux if role == "aux" else draft.arguments)[node.name] = self.value_of[first]
            elif self.is_view(number):
                base = self.value_of[graph.inputs[number][0]]
                self.value_of[first] = draft.add(
                    graph.entry_name(first), self.shapes[first], self.types[first], base=base
                )
                for entry in graph.values(number)[len(node.inputs) + 1 :]:  # hidden values of a view are never made
                    self.value_of[entry] = draft.add(graph.entry_name(entry), (0,), self.types[entry])
            else:
                self.forward_step(number)
        for position, head in enumerate(graph.heads):
            value = self.value_of[head]
            if draft.root(value) != value or not draft.values[value].in_arena:
                copy = draft.add(graph.entry_name(head), self.shapes[head], self.types[head], "output")
                self.emit("copy", "forward", f"output {position}", graph.owner[head], copy, value)
                value = copy
            else:
                draft.values[value] = dataclasses.replace(draft.values[value], role="output")
            draft.outputs.append(value)

    def forward_step(self, number: int) -> None:
        graph, draft, node = self.graph, self.draft, self.graph.nodes[number]
        for entry in graph.values(number)[len(node.inputs) :]:
            self.value_of[entry] = draft.add(graph.entry_name(entry), self.shapes[entry], self.types[entry])
        self.operator(number, "forward")
        if self.is_train and node.signature is not None and node.signature.update is not None:
            self.operator(number, "update")

    # --- backward ----------------------------------------------------------------------------------------------

    def backward(self) -> None:
        graph, draft = self.graph, self.draft
        needs, runs = flow(graph, self.wants)
        self.sums: dict[int, int] = {}  # entry: the value in which its gradient is summed
        self.holders: dict[int, set[int]] = {}  # root of such a value: the entries for which it is still needed
        self.awaited = Counter(head for head in graph.heads if head in needs)  # contributions still to come
        self.awaited.update(graph.inputs[number][p] for number, positions in runs.items() for p in positions)
        for name in self.wants:
            value = draft.values[draft.arguments[name]]
            draft.gradients[name] = draft.add(f"d {name}", value.shape, value.dtype, "gradient")
        self.direct = {
            graph.first[i]: draft.gradients[graph.nodes[i].name]
            for i in graph.arguments
            if self.wants.get(graph.nodes[i].name) == "write" and graph.nodes[i].name not in self.indirect
        }
        for head in graph.heads:
            if head not in needs:
                draft.head_gradients.append(None)
                continue
            name = f"head gradient of {graph.entry_name(head)}"
            gradient = draft.add(name, self.shapes[head], self.types[head], "head_gradient")
            draft.head_gradients.append(gradient)
            self.contribute(head, gradient)
        for number in reversed(runs):
            self.backward_step(number, runs[number])
        for number in graph.arguments:
            name = graph.nodes[number].name
            if name in self.wants and graph.first[number] not in self.sums:  # nothing contributed to it
                if self.wants[name] == "write":
                    self.emit("zero", "backward", f"gradient of {name}", number, draft.gradients[name])
                self.ready(name)

    def contribute(self, entry: int, value: int) -> None:
        """Count ``value`` as a contribution to an entry's gradient: the first is the sum, later ones are added."""
        name, total = f"gradient of {self.graph.entry_name(entry)}", self.sums.get(entry)
        number = self.graph.owner[entry]
        node = self.graph.nodes[number]
        if total is None:
            target = self.direct.get(entry, value)
            if target != value:
                self.emit("copy", "backward", name, number, target, value)
        else:  # into the bytes of one of the two that no other entry needs
            free = [v for v in (total, value) if not self.holders.get(self.draft.root(v), set()) - {entry}]
            target = free[0] if free else self.internal(entry)
            self.emit("add", "backward", name, number, target, total, value)
        self.sums[entry] = target
        self.holders.setdefault(self.draft.root(target), set()).add(entry)
        self.awaited[entry] -= 1
        if node.op is None and not self.awaited[entry]:  # from the arena to the user's array at once, to free it early
            if entry not in self.direct:
                kind = "add" if self.wants[node.name] == "add" else "copy"
                self.emit(kind, "backward", name, number, self.draft.gradients[node.name], target)
            self.ready(node.name)

    def ready(self, name: str) -> None:
        """The last step finishes the gradient of an argument."""
        steps, own = self.draft.steps, self.draft.gradients[name]
        if not steps or steps[-1].phase != "backward":  # nothing to add, and no step yet with which to say so
            self.emit("copy", "backward", f"gradient of {name}", -1, own, own)
        steps[-1] = dataclasses.replace(steps[-1], ready=(*steps[-1].ready, name))

    def internal(self, entry: int, base: int | None = None) -> int:
        """A new value for a gradient of an entry."""
        name = f"d {self.graph.entry_name(entry)}"
        return self.draft.add(name, self.shapes[entry], self.types[entry], base=base)

    def backward_step(self, number: int, wanted: Sequence[int]) -> None:
        """Contribute to the gradients of the ``wanted`` inputs of a node."""
        node, inputs, outputs = self.graph.nodes[number], self.graph.inputs[number], self.graph.outputs(number)
        signature, op = _applied(node)
        written: list[int] = []
        if self.is_view(number) and wanted == [0]:
            found = {0: self.internal(inputs[0], base=self.sums[outputs[0]])}
        else:
            gradients: dict[str, int] = {}
            places = [place for kind, place in signature.backward or () if kind == "doutput"]
            for position in sorted({position for place in places for position in _flat(place)}):
                entry = outputs[position]
                if entry not in self.sums:  # nobody used this output: its gradient is zero
                    self.sums[entry] = self.internal(entry)
                    self.emit("zero", "backward", node.where, number, self.sums[entry])
                gradients["d" + signature.outputs[position]] = self.sums[entry]
            found = {p: self.sums[outputs[0]] for p in wanted if signature.inputs[p] in op.passes}
            written = [p for p in wanted if p not in found]
            first = {inputs[p]: p for p in reversed(wanted)}  # of several uses only one may go to the user's array
            for position in written:
                entry = inputs[position]
                direct = entry in self.direct and entry not in self.sums and first[entry] == position
                found[position] = self.direct[entry] if direct else self.internal(entry)
                gradients["d" + signature.inputs[position]] = found[position]
            if written:
                self.operator(number, "backward", gradients)
        self.draft.passed += [
            (len(self.draft.steps), number, position, value)
            for position, value in found.items()
            if position not in written
        ]
        for position in wanted:
            self.contribute(inputs[position], found[position])
        for entry in outputs:  # their gradients have been read by all who read them
            if entry in self.sums:
                self.holders.get(self.draft.root(self.sums[entry]), set()).discard(entry)


def _flat(position: Any) -> tuple[int, ...]:
    return position if isinstance(position, tuple) else (position,)


def _applied(node: Node) -> tuple[Signature, Op]:
    """Signature and operator of a node that is no variable."""
    return node.signature, node.op  # type: ignore[return-value]


def build(
    graph: Graph, shapes: Sequence[Any], types: Sequence[Any], wants: Mapping[str, str], *, is_train: bool,
    backward: bool = True, indirect: frozenset[str] = frozenset(), strided: frozenset[str] = frozenset(),
) -> Draft:  # fmt: skip
    """Draft of one mode of a graph whose entries have known ``shapes`` and ``types``.

    ``wants``: argument name → write, add or null. ``indirect``: arguments whose gradient array cannot be written
    directly (not contiguous): it is computed in the arena and copied. ``strided``: those whose array is not contiguous.
    """
    builder = _Builder(graph, shapes, types, wants, is_train, backward, indirect, strided)
    builder.forward()
    builder.draft.entries = builder.value_of
    if builder.wants:
        builder.backward()
    else:
        builder.draft.head_gradients = [None] * len(graph.heads)
    return builder.draft
