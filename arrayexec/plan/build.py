"""Symbol graph + shapes + wants → draft: forward steps, the backward graph, sums of gradients. No memory yet."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from ..registry import SPECIAL, Body, Known, Op, Signature, Slot, scratch_of
from ..symbol.graph import Graph
from .record import Binding, Draft, Step


def gradient_positions(signature: Signature, op: Op) -> list[int]:
    """Positions of the inputs to which backward of ``op`` gives a gradient."""
    found: list[int] = []
    for kind, place in signature.backward or ():
        if kind == "dinput":
            found += [p for p in _flat(place) if signature.inputs[p] not in op.no_gradient]
    return found


def flow(graph: Graph, wants: Mapping[str, str]) -> tuple[set[int], list[int]]:
    """Entries that need a gradient so that wanted arguments get theirs, and the nodes whose backward runs, in order.

    A node runs if the flow from the heads reaches it and one of its inputs leads to a wanted argument. The outputs of a
    loss head need none: its backward does not read them.
    """
    gives = [
        gradient_positions(node.signature, node.op) if node.signature is not None and node.op is not None else []
        for node in graph.nodes
    ]
    reached = set(graph.heads)
    for number in range(len(graph.nodes) - 1, -1, -1):
        if gives[number] and any(entry in reached for entry in graph.outputs(number)):
            reached.update(graph.inputs[number][p] for p in gives[number])
    wanted = {graph.first[i] for i in graph.arguments if wants.get(graph.nodes[i].name, "null") != "null"}
    needs, runs = wanted & reached, []
    for number, node in enumerate(graph.nodes):
        if any(graph.inputs[number][p] in needs for p in gives[number]):
            outputs = [entry for entry in graph.outputs(number) if entry in reached]
            if outputs:
                runs.append(number)
                if node.signature is not None and node.signature.head_gradient:
                    needs.update(outputs)
    return needs, runs


def needs_head_gradient(graph: Graph, wants: Mapping[str, str]) -> list[bool]:
    """For every output: whether backward must be given its gradient (no loss head, and something wants it)."""
    needs, _ = flow(graph, wants)
    return [head in needs for head in graph.heads]


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
        self.temps: dict[int, Mapping[str, tuple[tuple[int, ...], Any]]] = {}

    # --- shared ------------------------------------------------------------------------------------------------

    def scratch(self, number: int, name: str) -> int:
        """A value for a ``Temp`` parameter of node ``number``."""
        node = self.graph.nodes[number]
        if number not in self.temps:
            entries = self.graph.values(number)
            known = Known(node.signature, [self.shapes[e] for e in entries], [self.types[e] for e in entries])  # type: ignore[arg-type]
            self.temps[number] = scratch_of(node.op, known) if node.op else {}
        shape, dtype = self.temps[number][name]
        return self.draft.add(f"{node.name}: {name}", shape, dtype, "scratch")

    def emit(
        self, kind: str, phase: str, name: str, bindings: Sequence[Binding], writes: Sequence[int], *, op: Op | None = None,
        node: int = -1, pairs: Sequence[tuple[int, int]] = (),
    ) -> None:  # fmt: skip
        """Append a step; what it binds and does not write, it reads."""
        bound: list[int] = []
        for binding in bindings:
            if isinstance(binding, int):
                bound.append(binding)
            elif isinstance(binding, tuple):
                bound += [b for b in binding if b is not None]
        written = set(writes)
        reads = tuple(dict.fromkeys(b for b in bound if b not in written))
        self.draft.steps.append(
            Step(kind, phase, name, op, tuple(bindings), reads, tuple(writes), node, inplace=tuple(pairs))
        )

    def pairs(self, op: Op, body: Body, bindings: Sequence[Binding], inputs: Sequence[int]) -> list[tuple[int, int]]:
        """Pairs (written, read) that the operator lets share bytes: one fixed value that occurs once in the node."""
        bound = dict(zip(body.parameters, bindings, strict=True))
        found = []
        for written, read in op.inplace.items():
            out, source = bound.get(written), bound.get(read)
            if isinstance(out, int) and isinstance(source, int) and inputs.count(source) <= 1:
                found.append((out, source))
        return found

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
                self.emit("copy", "forward", f"output {position}", (copy, value), (copy,))
                value = copy
            else:
                draft.values[value] = dataclasses.replace(draft.values[value], role="output")
            draft.outputs.append(value)

    def forward_step(self, number: int) -> None:
        graph, draft, node = self.graph, self.draft, self.graph.nodes[number]
        signature: Signature = node.signature  # type: ignore[assignment]
        op: Op = node.op  # type: ignore[assignment]
        produced = graph.values(number)[len(node.inputs) :]
        for entry in produced:
            self.value_of[entry] = draft.add(graph.entry_name(entry), self.shapes[entry], self.types[entry])
        inputs = [self.value_of[e] for e in graph.inputs[number]]
        bindings, temps = self.bind(number, signature.forward, signature, {}, {})
        writes = [self.value_of[e] for e in produced] + temps
        pairs = self.pairs(op, op.form.forward, bindings, inputs)
        self.emit("forward", "forward", node.where, bindings, writes, op=op, node=number, pairs=pairs)
        if self.is_train and signature.update is not None:
            bindings, temps = self.bind(number, signature.update, signature, {}, {})
            states = inputs[len(signature.inputs) :]
            self.emit("update", "update", node.where, bindings, states + temps, op=op, node=number)

    def bind(
        self, number: int, slots: Sequence[Slot], signature: Signature, douts: Mapping[int, int], dins: Mapping[int, int],
        kept: frozenset[str] | None = None, parameters: Sequence[str] = (),
    ) -> tuple[list[Binding], list[int]]:  # fmt: skip
        """Bindings of one body, and the scratch values made for it. ``kept`` limits the forward values that are bound."""
        graph = self.graph
        inputs, first = graph.inputs[number], graph.first[number]
        starts = {"aux": len(signature.inputs), "output": first, "hidden": first + len(signature.outputs)}
        temps: list[int] = []

        def one(kind: str, position: int) -> int | None:
            if kind == "input":
                return self.value_of[inputs[position]]
            if kind == "aux":
                return self.value_of[inputs[starts["aux"] + position]]
            if kind in starts:
                return self.value_of[starts[kind] + position]
            return (douts if kind == "doutput" else dins).get(position)

        bindings: list[Binding] = []
        for place, (kind, position) in enumerate(slots):
            if kind in SPECIAL:
                bindings.append(kind)
            elif kind == "temp":
                temps.append(self.scratch(number, position))
                bindings.append(temps[-1])
            elif kind == "absent" or (
                kept is not None and kind in ("input", "aux", "output", "hidden") and parameters[place] not in kept
            ):
                bindings.append(None)
            elif isinstance(position, tuple):
                bindings.append(tuple(one(kind, p) for p in position))
            else:
                bindings.append(one(kind, position))
        return bindings, temps

    # --- backward ----------------------------------------------------------------------------------------------

    def backward(self) -> None:
        graph, draft = self.graph, self.draft
        self.needs, runs = flow(graph, self.wants)
        self.sums: dict[int, int] = {}  # entry: the value in which its gradient is summed
        self.holders: dict[int, set[int]] = {}  # root of such a value: the entries for which it is still needed
        self.last: dict[str, int] = {}  # argument: the step after which its gradient is finished
        for name in self.wants:
            value = draft.values[draft.arguments[name]]
            draft.gradients[name] = draft.add(f"d {name}", value.shape, value.dtype, "gradient")
        self.direct = {
            graph.first[i]: draft.gradients[graph.nodes[i].name]
            for i in graph.arguments
            if self.wants.get(graph.nodes[i].name) == "write" and graph.nodes[i].name not in self.indirect
        }
        for head in graph.heads:
            if head not in self.needs:
                draft.head_gradients.append(None)
                continue
            name = f"head gradient of {graph.entry_name(head)}"
            gradient = draft.add(name, self.shapes[head], self.types[head], "head_gradient")
            draft.head_gradients.append(gradient)
            self.contribute(head, gradient)
        for number in reversed(runs):
            signature = graph.nodes[number].signature
            if (
                (signature is not None
                and not signature.head_gradient)
                or any(e in self.sums for e in graph.outputs(number))
            ):
                self.backward_step(number)
        self.finish()

    def destination(self, entry: int) -> int:
        """Where the next contribution to an entry's gradient is written: straight into the user's array if it is the first."""
        if entry in self.direct and entry not in self.sums:
            return self.direct[entry]
        return self.internal(entry)

    def contribute(self, entry: int, value: int) -> None:
        """Count ``value`` as a contribution to an entry's gradient: the first is the sum, later ones are added."""
        name, total = f"gradient of {self.graph.entry_name(entry)}", self.sums.get(entry)
        if total is None:
            target = self.direct.get(entry, value)
            if target != value:
                self.emit("copy", "backward", name, (target, value), (target,))
        else:  # into the bytes of one of the two that no other entry needs
            free = [v for v in (total, value) if not self.holders.get(self.draft.root(v), set()) - {entry}]
            target = free[0] if free else self.internal(entry)
            self.emit("add", "backward", name, (target, total, value), (target,))
        self.sums[entry] = target
        self.holders.setdefault(self.draft.root(target), set()).add(entry)
        self.note(entry)

    def internal(self, entry: int, base: int | None = None) -> int:
        """A new value for a gradient of an entry."""
        name = f"d {self.graph.entry_name(entry)}"
        return self.draft.add(name, self.shapes[entry], self.types[entry], base=base)

    def note(self, entry: int) -> None:
        node = self.graph.nodes[self.graph.owner[entry]]
        if node.op is None:
            self.last[node.name] = len(self.draft.steps) - 1

    def backward_step(self, number: int) -> None:
        graph, node, outputs = self.graph, self.graph.nodes[number], self.graph.outputs(number)
        signature: Signature = node.signature  # type: ignore[assignment]
        op: Op = node.op  # type: ignore[assignment]
        body: Body = op.form.backward  # type: ignore[assignment]
        wanted = [p for p in gradient_positions(signature, op) if graph.inputs[number][p] in self.needs]
        if self.is_view(number):
            entry, total = graph.inputs[number][0], self.sums[outputs[0]]
            self.contribute(entry, self.internal(entry, base=total))
            self.release(outputs)
            return
        douts: dict[int, int] = {}
        if signature.head_gradient:
            read = {p for kind, position in signature.backward or () if kind == "doutput" for p in _flat(position)}
            for position in sorted(read):
                entry = outputs[position]
                if entry not in self.sums:  # nobody used this output: its gradient is zero
                    self.sums[entry] = self.internal(entry)
                    self.emit("zero", "backward", node.where, (self.sums[entry],), (self.sums[entry],))
                douts[position] = self.sums[entry]
        passed = {p: douts[0] for p in wanted if signature.inputs[p] in op.passes}
        dins: dict[int, int] = {}
        taken: set[int] = set()
        for position in wanted:
            entry = graph.inputs[number][position]
            if position not in passed:  # of several uses in one node only the first may go straight to the user's array
                dins[position] = self.internal(entry) if entry in taken else self.destination(entry)
            taken.add(entry)
        if dins:
            kept = frozenset(op.keeps(frozenset(signature.inputs[p] for p in dins)))
            bindings, temps = self.bind(number, signature.backward or (), signature, douts, dins, kept, body.parameters)
            given = [*dins.values(), *douts.values(), *passed.values()]
            pairs, writes = self.pairs(op, body, bindings, given), [*dins.values(), *temps]
            self.emit("backward", "backward", node.where, bindings, writes, op=op, node=number, pairs=pairs)
        for position in wanted:
            self.contribute(graph.inputs[number][position], passed.get(position, dins.get(position, -1)))
        self.release(outputs)

    def release(self, outputs: Sequence[int]) -> None:
        """The gradients of these entries have been read by all who read them."""
        for entry in outputs:
            if entry in self.sums:
                self.holders.get(self.draft.root(self.sums[entry]), set()).discard(entry)

    def finish(self) -> None:
        """Gradients that were summed in the arena go to the user's arrays; what nothing contributed to is zero."""
        graph, draft = self.graph, self.draft
        for number in graph.arguments:
            node, entry = graph.nodes[number], graph.first[number]
            if node.name not in self.wants or (entry in self.direct and entry in self.sums):
                continue
            target = draft.gradients[node.name]
            name = f"gradient of {node.name}"
            if entry in self.sums:
                kind = "add" if self.wants[node.name] == "add" else "copy"
                self.insert(self.last[node.name] + 1, kind, name, (target, self.sums[entry]), target, node.name)
            elif self.wants[node.name] == "write":
                self.emit("zero", "backward", name, (target,), (target,))
                self.last[node.name] = len(draft.steps) - 1
            else:
                self.last.setdefault(node.name, len(draft.steps) - 1)
        for name, place in self.last.items():
            if place >= 0:
                step = draft.steps[place]
                draft.steps[place] = dataclasses.replace(step, ready=(*step.ready, name))

    def insert(self, place: int, kind: str, name: str, bindings: tuple[int, int], target: int, argument: str) -> None:
        """Put a step right behind the one that finished a sum, so that its memory is free early."""
        self.emit(kind, "backward", name, bindings, (target,))
        step = self.draft.steps.pop()
        self.draft.steps.insert(place, step)
        for other, position in self.last.items():
            if position >= place:
                self.last[other] = position + 1
        self.last[argument] = place


def _flat(position: Any) -> tuple[int, ...]:
    return position if isinstance(position, tuple) else (position,)


def build(
    graph: Graph, shapes: Sequence[Any], types: Sequence[Any], wants: Mapping[str, str], *, is_train: bool, backward: bool = True,
    indirect: frozenset[str] = frozenset(), strided: frozenset[str] = frozenset(),
) -> Draft:  # fmt: skip
    """Draft of one mode of a graph whose entries have known ``shapes`` and ``types``.

    ``wants``: argument name → write, add or null. ``indirect``: arguments whose gradient array cannot be written directly
    (not contiguous): they are computed in the arena and copied. ``strided``: arguments whose array is not contiguous.
    """
    builder = _Builder(graph, shapes, types, wants, is_train, backward, indirect, strided)
    builder.forward()
    builder.draft.entries = builder.value_of
    if builder.wants:
        builder.backward()
    else:
        builder.draft.head_gradients = [None] * len(graph.heads)
    return builder.draft
