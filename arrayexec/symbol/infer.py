"""Inference of shapes and types: a work list of operator rules, run both ways until nothing changes.

A rule assigns to the values of its node; assigning unifies, that is it fills what is unknown and checks what is known.
Who said a dim is kept, so that a conflict can name both sides.
"""

from __future__ import annotations

import abc
import operator
from collections import deque
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from ..attribute_text import read_dtype, read_shape
from ..dims import ANY, UNKNOWN, Deferred, Shape, from_user
from ..errors import ArrayExecError, OperatorDefinitionError, ShapeError, TypeInferenceError, format_shape, message
from .graph import Graph

Said = int | str  # the node whose rule fixed it, or the caller's words


class _Refused(Exception):
    """The node whose rule runs cannot have a value: the whole message."""


class Frame:
    """What a rule sees: the shapes (or types) of one node's values under their names; assigning unifies.

    Names of absent optional inputs read as unknown and may be assigned without effect.
    """

    __slots__ = ("_entries", "_map", "_table")
    _table: _Table
    _map: Mapping[str, Any]
    _entries: tuple[int, ...]

    def __init__(self, table: _Table) -> None:
        object.__setattr__(self, "_table", table)

    def _at(self, names: Mapping[str, Any], entries: tuple[int, ...]) -> None:
        object.__setattr__(self, "_map", names)
        object.__setattr__(self, "_entries", entries)

    def _slot(self, name: str) -> Any:
        try:
            return self._map[name]
        except KeyError:
            raise OperatorDefinitionError(
                f"a rule of inference speaks of '{name}'; there are: {', '.join(self._map)}"
            ) from None

    def __getattr__(self, name: str) -> Any:
        slot = self._slot(name)
        if slot is None:
            return self._table.unknown
        if isinstance(slot, tuple):
            return tuple(self._table.values[self._entries[i]] for i in slot)
        return self._table.values[self._entries[slot]]

    def __setattr__(self, name: str, value: Any) -> None:
        slot = self._slot(name)
        if slot is None:
            return
        if isinstance(slot, tuple):
            for i, item in zip(slot, value, strict=True):
                self._table.unify(self._entries[i], item)
        else:
            self._table.unify(self._entries[slot], value)

    def assume(self, name: str, value: Any) -> None:
        """What ``name`` is if it is still unknown when all rules have said what follows from what was given."""
        slot = self._slot(name)
        if slot is not None:
            self._table.assumed[self._table.current, self._entries[slot]] = value

    def fail(self, argument: str, text: str) -> None:
        """Refuse: ``argument`` must hold what ``text`` says ("must have 4 dims, but it is (3, 2)")."""
        slot = self._slot(argument)
        entry = None if slot is None else self._entries[slot[0] if isinstance(slot, tuple) else slot]
        raise self._table.refused(argument, entry, text)

    def same(self) -> None:
        """Default rule of types: inputs, outputs and auxiliaries are of one type, save ``no_gradient`` inputs."""
        self._table.same(self._entries)  # type: ignore[attr-defined]


class _Table(abc.ABC):
    """Values of all entries, who said them, and the work list."""

    unknown: ClassVar[Any]
    error: ClassVar[type[ArrayExecError]]
    noun: ClassVar[str]
    rule: ClassVar[str]  # the method of operators that is run
    key: ClassVar[str]  # the attribute of a variable that is a default, as a text

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.values: list[Any] = [self.unknown] * len(graph.owner)
        self.said: list[Any] = [None] * len(graph.owner)
        self.users: list[list[int]] = [[] for _ in graph.owner]
        for number, inputs in enumerate(graph.inputs):
            for entry in inputs:
                self.users[entry].append(number)
        self.current: Any = None  # who speaks: the node whose rule runs, or the caller's words
        self.changed_input = False
        self.assumed: dict[tuple[int, int], Any] = {}  # by node and entry: what it says if nobody says more
        self.queue = deque(number for number, node in enumerate(graph.nodes) if node.op is not None)
        self.queued = bytearray(node.op is not None for node in graph.nodes)

    @abc.abstractmethod
    def unify(self, entry: int, value: Any) -> None:
        """Fill what is unknown of ``entry``, raise _Refused where ``value`` contradicts it."""

    @abc.abstractmethod
    def read(self, text: str, where: str) -> Any:
        """The value that the default of a variable says."""

    @abc.abstractmethod
    def show(self, value: Any) -> str:
        """A value in words."""

    def changed(self, entry: int) -> None:
        """Queue every node that may learn from ``entry``, other than the one whose rule is running."""
        owner = self.graph.owner[entry]
        for number in (owner, *self.users[entry]):
            if number == self.current:
                self.changed_input |= owner != number
            elif not self.queued[number] and self.graph.nodes[number].op is not None:
                self.queued[number] = 1
                self.queue.append(number)

    def give(self, entry: int, value: Any, who: Said) -> None:
        """State, outside of the rules, a value of which nothing is known yet."""
        self.current = who
        self.unify(entry, value)

    def start(self, given: Mapping[str, Any], call: str) -> None:
        """State what the caller gives by name of variable, else the variables' own defaults; then run."""
        for entry, node in zip(self.graph.first, self.graph.nodes, strict=True):
            if node.op is None and given.get(node.name) is not None:
                value = given[node.name]
                self.give(entry, value, f"{call}({node.name}={self.show(value)})")
            elif node.op is None and self.key in node.attributes:
                text = node.attributes[self.key]
                self.give(entry, self.read(text, node.where), f"Variable({self.key.strip('_')}={text})")
        self.run()

    def run(self) -> None:
        """Run rules until nothing changes, also with what they assume; the first conflict is the only one told."""
        self.deduce()
        for (number, entry), value in sorted(self.assumed.items(), key=lambda item: item[0]):
            if self.values[entry] is self.unknown:
                self.give(entry, value, number)
                self.deduce()

    def deduce(self) -> None:
        """Run rules until nothing changes, without what they assume."""
        graph, frame, queue, queued = self.graph, Frame(self), self.queue, self.queued
        while queue:
            number = queue.popleft()
            queued[number] = 0
            node = graph.nodes[number]
            self.current, self.changed_input = number, False
            frame._at(node.signature.frame, graph.values(number))  # type: ignore[union-attr]
            try:
                getattr(node.op, self.rule)(frame)
            except Deferred:
                pass  # the rule runs again when one of its values becomes known
            except _Refused as refused:
                raise self.error(str(refused)) from None
            except Exception as error:  # a fault of the rule itself: its own exception, and where it happened
                error.add_note(f"in the rule of {self.noun}s of {node.where}")
                raise
            if self.changed_input and not queued[number]:
                queued[number] = 1
                queue.append(number)

    # --- words -----------------------------------------------------------------------------------

    def row(self, argument: str, entry: int) -> tuple[str, ...]:
        said = self.said[entry]
        who = [part for part in (said if isinstance(said, list) else [said]) if part is not None]
        words = dict.fromkeys(self.graph.nodes[part].where if isinstance(part, int) else part for part in who)
        fixed = f"fixed by {', '.join(words) or 'nobody yet'}"
        return argument, f"= {self.graph.entry_name(entry)}", self.show(self.values[entry]), fixed

    def refused(self, argument: str, entry: int | None, text: str) -> _Refused:
        """What to raise where ``argument`` of the node whose rule runs is not as it must be."""
        node, inputs, name, title = self.graph.nodes[self.current], self.graph.inputs[self.current], "", "inputs"
        rows = list(map(self.row, node.signature.arguments, inputs))
        if entry is not None:
            name = f" '{self.graph.entry_name(entry)}'"
            if entry not in inputs:
                rows, title = [*rows, self.row(argument, entry)], "values"
        return _Refused(message(f"{node.where}: {argument}{name} {text}", rows, title))

    def contradicted(self, entry: int, wanted: Any, difference: str = "") -> _Refused:
        """What to raise where the rule that runs wants another value of ``entry`` than stands."""
        signature: Any = self.graph.nodes[self.current].signature
        names = (*signature.arguments, *signature.outputs, *signature.hidden)
        argument = names[self.graph.values(self.current).index(entry)]
        stands = self.show(self.values[entry])
        return self.refused(argument, entry, f"must be {self.show(wanted)}, but it is {stands}{difference}")


def _dims(value: Any) -> tuple[Any, ...]:
    """A shape that a rule gives, with plain whole numbers; OperatorDefinitionError for anything else."""
    try:
        dims = tuple(dim if dim is UNKNOWN else operator.index(dim) for dim in value)
    except TypeError:
        dims = (-1,)
    if any(dim is not UNKNOWN and dim < 0 for dim in dims):
        raise OperatorDefinitionError(f"a rule of shapes gives {value!r}, which are no whole numbers >= 0")
    return dims


class _Shapes(_Table):
    unknown, error, noun, rule, key = ANY, ShapeError, "shape", "infer", "__shape__"

    def read(self, text: str, where: str) -> Any:
        return from_user(read_shape(text, where))

    def show(self, value: Any) -> str:
        return format_shape(value)

    def unify(self, entry: int, value: Any) -> None:
        if value is ANY:
            return
        old = self.values[entry]
        if old is ANY:
            self.values[entry] = _dims(value)
            self.said[entry] = [None if dim is UNKNOWN else self.current for dim in value]
            self.changed(entry)
            return
        if len(old) != len(value):
            raise self.contradicted(entry, tuple(value), f" ({len(old)} dims instead of {len(value)})")
        merged: list[Any] | None = None
        for axis, (mine, its) in enumerate(zip(old, value, strict=True)):
            if its is UNKNOWN or mine is its:
                continue
            if mine is UNKNOWN:
                merged = merged or list(old)
                merged[axis] = _dims((its,))[0]
                self.said[entry][axis] = self.current
            elif mine != its:
                pairs = enumerate(zip(old, value, strict=True))
                axes = [str(i) for i, (a, b) in pairs if a is not UNKNOWN and b is not UNKNOWN and a != b]
                raise self.contradicted(entry, tuple(value), f" (differs in dim {', '.join(axes)})")
        if merged is not None:
            self.values[entry] = tuple(merged)
            self.changed(entry)


class _Types(_Table):
    unknown, error, noun, rule, key = None, TypeInferenceError, "type", "types", "__dtype__"

    def read(self, text: str, where: str) -> Any:
        return read_dtype(text, where)

    def show(self, value: Any) -> str:
        return "?" if value is None else str(np.dtype(value).name)

    def unify(self, entry: int, value: Any) -> None:
        if value is None:
            return
        try:
            value = np.dtype(value)
        except TypeError:
            raise OperatorDefinitionError(f"a rule of types gives {value!r}, which is no element type") from None
        old = self.values[entry]
        if old is None:
            self.values[entry], self.said[entry] = value, self.current
            self.changed(entry)
        elif old != value:
            raise self.contradicted(entry, value)

    def same(self, entries: tuple[int, ...]) -> None:
        """One type for all inputs with a gradient, auxiliaries and visible outputs of the node whose rule runs."""
        node: Any = self.graph.nodes[self.current]
        names = (*node.signature.arguments, *node.signature.outputs)
        members = [e for name, e in zip(names, entries, strict=False) if name not in node.op.no_gradient]
        kind = next((self.values[entry] for entry in members if self.values[entry] is not None), None)
        if kind is not None:
            for entry in members:
                self.unify(entry, kind)

    def complete(self) -> None:
        """What no rule says: free inputs (labels, indices) and hidden outputs take the type of the first output.

        A constant whose users say no type is float32.
        """
        for number, node in enumerate(self.graph.nodes):
            if node.op is None or node.signature is None:
                continue
            kind, entries = self.values[self.graph.first[number]], self.graph.values(number)
            if kind is None and not node.inputs:
                kind = np.dtype(np.float32)
                self.give(entries[len(node.inputs)], kind, number)
                self.run()
            bound = {e for a, e in zip(node.signature.arguments, entries, strict=False) if a not in node.op.no_gradient}
            for entry in entries:
                if kind is not None and self.values[entry] is None and entry not in bound:
                    self.give(entry, kind, number)
        self.run()


def infer_shapes(graph: Graph, given: Mapping[str, Shape], call: str = "infer_shape") -> list[Shape]:
    """Shapes of all entries from those ``given`` by variable name (partly known ones with ``dims.UNKNOWN``).

    ``Variable(shape=)`` is a default that a given shape replaces. Raises ShapeError at the first conflict.
    """
    table = _Shapes(graph)
    table.start(given, call)
    return table.values


def infer_types(
    graph: Graph, given: Mapping[str, Any], call: str = "infer_type", default: Any = None
) -> list[np.dtype[Any] | None]:
    """Element types of all entries from those ``given`` by variable name; None where nothing says one.

    With ``default``, variables that stay unknown take it, in order. Raises TypeInferenceError at the first conflict.
    """
    table = _Types(graph)
    table.start(given, call)
    table.complete()
    if default is not None:
        for number, node in enumerate(graph.nodes):
            if node.op is None and table.values[graph.first[number]] is None:
                table.give(graph.first[number], default, f"the default type {np.dtype(default).name}")
                table.run()
                table.complete()
    return table.values
