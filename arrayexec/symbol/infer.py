"""Inference of shapes and types: a work list of operator rules, run both ways until nothing changes.

A rule assigns to the values of its node; assigning unifies, that is it fills what is unknown and checks what is known.
Who said a dim is kept, so that a conflict can name both sides.
"""

from __future__ import annotations

import abc
import operator
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import numpy as np

from ..attribute_text import read_dtype, read_shape
from ..dims import ANY, UNKNOWN, Deferred, Shape, from_user
from ..errors import ArrayExecError, OperatorDefinitionError, ShapeError, TypeInferenceError, format_shape, message
from ..registry import Op
from .graph import Graph, Node

Said = int | str  # the node whose rule fixed it, or the caller's words
_Value = TypeVar("_Value")


class _Conflict(Exception):
    """An assignment that contradicts what stands: the frame knows the node, this the value."""

    def __init__(self, entry: int, wanted: Any) -> None:
        super().__init__()
        self.entry = entry
        self.wanted = wanted


class Frame:
    """What a rule sees: the shapes (or types) of one node's values under their names; assigning unifies.

    Names of absent optional inputs read as unknown and may be assigned without effect.
    """

    __slots__ = ("_entries", "_map", "_table")
    _table: _Table[Any]
    _map: Mapping[str, Any]
    _entries: tuple[int, ...]

    def __init__(self, table: _Table[Any]) -> None:
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
            return tuple(self._table.read(self._entries[i]) for i in slot)
        return self._table.read(self._entries[slot])

    def __setattr__(self, name: str, value: Any) -> None:
        slot = self._slot(name)
        if slot is None:
            return
        if isinstance(slot, tuple):
            for i, item in zip(slot, value, strict=True):
                self._table.unify(self._entries[i], item)
        else:
            self._table.unify(self._entries[slot], value)

    def fail(self, argument: str, text: str) -> None:
        """Refuse: ``argument`` must hold what ``text`` says ("must have 4 dims, but it is (3, 2)")."""
        slot = self._slot(argument)
        entry = self._entries[slot[0] if isinstance(slot, tuple) else slot] if slot is not None else -1
        raise _Refused(entry, argument, text)

    def same(self) -> None:
        """Default rule of types: inputs, outputs and auxiliaries are of one type, save ``no_gradient`` inputs."""
        self._table.same(self._entries)  # type: ignore[attr-defined]


class _Refused(Exception):
    def __init__(self, entry: int, argument: str, text: str) -> None:
        super().__init__(text)
        self.entry = entry
        self.argument = argument
        self.text = text


class _Table(abc.ABC, Generic[_Value]):
    """Values of all entries, who said them, and the work list."""

    unknown: _Value
    error: type[ArrayExecError]
    noun: str

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.values: list[Any] = [self.unknown] * len(graph.owner)
        self.said: list[Any] = [None] * len(graph.owner)
        self.users: list[list[int]] = [[] for _ in graph.owner]
        for number, inputs in enumerate(graph.inputs):
            for entry in inputs:
                self.users[entry].append(number)
        self.current: Said = ""
        self.changed_input = False
        self.queue: deque[int] = deque()
        self.queued = bytearray(len(graph.nodes))

    def read(self, entry: int) -> _Value:
        return self.values[entry]  # type: ignore[no-any-return]

    @abc.abstractmethod
    def unify(self, entry: int, value: Any) -> None:
        """Fill what is unknown of ``entry``, raise _Conflict where ``value`` contradicts it."""

    @abc.abstractmethod
    def rule(self, op: Op) -> Callable[[Frame], None]:
        """The rule of ``op`` that this table runs."""

    def changed(self, entry: int) -> None:
        """Queue every node that may learn from ``entry``, other than the one whose rule is running."""
        owner = self.graph.owner[entry]
        for number in (owner, *self.users[entry]):
            if number == self.current:
                self.changed_input |= owner != number
            elif not self.queued[number] and self.graph.nodes[number].op is not None:
                self.queued[number] = 1
                self.queue.append(number)

    def give(self, entry: int, value: Any, words: str) -> None:
        """State a value from outside, in the caller's ``words``; nothing is known of it yet."""
        self.current = words
        self.unify(entry, value)

    def seed(self) -> None:
        for number, node in enumerate(self.graph.nodes):
            if node.op is not None:
                self.queued[number] = 1
                self.queue.append(number)

    def run(self) -> None:
        """Run rules until nothing changes; the first conflict is the only one told."""
        graph, frame, queue, queued = self.graph, Frame(self), self.queue, self.queued
        while queue:
            number = queue.popleft()
            queued[number] = 0
            node = graph.nodes[number]
            self.current, self.changed_input = number, False
            frame._at(node.signature.frame, graph.values(number))  # type: ignore[union-attr]
            try:
                self.rule(node.op)(frame)  # type: ignore[arg-type]
            except Deferred:
                pass  # the rule runs again when one of its values becomes known
            except _Conflict as conflict:
                raise self.error(self.conflict_text(number, conflict)) from None
            except _Refused as refused:
                raise self.error(self.refused_text(number, refused)) from None
            except Exception as error:  # a fault of the rule itself: its own exception, and where it happened
                error.add_note(f"in the rule of {self.noun}s of {node.where}")
                raise
            if self.changed_input and not queued[number]:
                queued[number] = 1
                queue.append(number)

    # --- words -----------------------------------------------------------------------------------

    def show(self, value: Any) -> str:
        return str(value)

    def who(self, entry: int) -> str:
        said = self.said[entry]
        parts = said if isinstance(said, list) else [said]
        words: dict[str, None] = {}
        for part in parts:
            if part is not None:
                words[self.graph.nodes[part].where if isinstance(part, int) else part] = None
        return ", ".join(words) or "nobody yet"

    def argument_of(self, number: int, entry: int) -> str:
        """Name under which node ``number`` knows ``entry``."""
        signature = self.graph.nodes[number].signature
        if signature is None:
            return "value"
        names = (*signature.arguments, *signature.outputs, *signature.hidden)
        return names[self.graph.values(number).index(entry)]

    def rows(self, number: int) -> list[tuple[str, ...]]:
        signature = self.graph.nodes[number].signature
        names = signature.arguments if signature else ()
        return [
            (name, f"= {self.graph.entry_name(entry)}", self.show(self.values[entry]), f"fixed by {self.who(entry)}")
            for name, entry in zip(names, self.graph.inputs[number], strict=True)
        ]

    def conflict_text(self, number: int, conflict: _Conflict) -> str:
        entry, stands = conflict.entry, self.values[conflict.entry]
        argument = self.argument_of(number, entry)
        fact = (
            f"{self.graph.nodes[number].where}: {argument} '{self.graph.entry_name(entry)}' must be "
            f"{self.show(conflict.wanted)}, but it is {self.show(stands)}{self.difference(conflict.wanted, stands)}"
        )
        rows, title = self.rows(number), "inputs"
        if entry not in self.graph.inputs[number]:
            what = (argument, f"= {self.graph.entry_name(entry)}", self.show(stands), f"fixed by {self.who(entry)}")
            rows, title = [*rows, what], "values"
        return message(fact, rows, title)

    def difference(self, wanted: Any, stands: Any) -> str:
        return ""

    def refused_text(self, number: int, refused: _Refused) -> str:
        name = f" '{self.graph.entry_name(refused.entry)}'" if refused.entry >= 0 else ""
        return message(f"{self.graph.nodes[number].where}: {refused.argument}{name} {refused.text}", self.rows(number))


def _dims(value: Any) -> tuple[Any, ...]:
    """A shape that a rule gives, with plain whole numbers; OperatorDefinitionError for anything else."""
    try:
        dims = tuple(dim if dim is UNKNOWN else operator.index(dim) for dim in value)
    except TypeError:
        dims = (-1,)
    if any(dim is not UNKNOWN and dim < 0 for dim in dims):
        raise OperatorDefinitionError(f"a rule of shapes gives {value!r}, which are no whole numbers >= 0")
    return dims


class _Shapes(_Table[Shape]):
    unknown = ANY
    error = ShapeError
    noun = "shape"

    def rule(self, op: Op) -> Callable[[Frame], None]:
        return op.infer

    def show(self, value: Any) -> str:
        return "?" if value is ANY else format_shape(value)

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
            raise _Conflict(entry, tuple(value))
        merged: list[Any] | None = None
        for axis, (mine, its) in enumerate(zip(old, value, strict=True)):
            if its is UNKNOWN or mine is its:
                continue
            if mine is UNKNOWN:
                merged = list(old) if merged is None else merged
                merged[axis] = _dims((its,))[0]
                self.said[entry][axis] = self.current
            elif mine != its:
                raise _Conflict(entry, tuple(value))
        if merged is not None:
            self.values[entry] = tuple(merged)
            self.changed(entry)

    def difference(self, wanted: Any, stands: Any) -> str:
        if len(wanted) != len(stands):
            return f" ({len(stands)} dims instead of {len(wanted)})"
        axes = [
            i
            for i, (a, b) in enumerate(zip(wanted, stands, strict=True))
            if a is not UNKNOWN and b is not UNKNOWN and a != b
        ]
        return f" (differs in dim {', '.join(map(str, axes))})"


class _Types(_Table[Any]):
    unknown = None
    error = TypeInferenceError
    noun = "type"

    def rule(self, op: Op) -> Callable[[Frame], None]:
        return op.types

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
            raise _Conflict(entry, value)

    def common(self, node: Node, entries: tuple[int, ...]) -> list[int]:
        """Entries that the default rule makes one type: inputs with a gradient, auxiliaries and visible outputs."""
        signature = node.signature
        free = set(node.op.no_gradient) if node.op else set()
        names = (*signature.arguments, *signature.outputs) if signature else ()
        return [entry for name, entry in zip(names, entries, strict=False) if name not in free]

    def same(self, entries: tuple[int, ...]) -> None:
        members = self.common(self.graph.nodes[self.current], entries)  # type: ignore[index]
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
                self.current, kind = number, np.dtype(np.float32)
                self.unify(self.graph.first[number], kind)
                self.run()
            bound = {e for a, e in zip(node.signature.arguments, entries, strict=False) if a not in node.op.no_gradient}
            for entry in entries:
                if kind is not None and self.values[entry] is None and entry not in bound:
                    self.current = number
                    self.unify(entry, kind)
        self.run()


def _seed_variables(
    table: _Table[Any], given: Mapping[str, Any], words: Callable[[str, Any], str], key: str, read: Any
) -> None:
    for number, node in enumerate(table.graph.nodes):
        if node.op is not None:
            continue
        entry = table.graph.first[number]
        if given.get(node.name) is not None:
            table.give(entry, given[node.name], words(node.name, given[node.name]))
        elif key in node.attributes:
            text = node.attributes[key]
            table.give(entry, read(text, node.where), f"Variable({key.strip('_')}={text})")


def infer_shapes(graph: Graph, given: Mapping[str, Shape], call: str = "infer_shape") -> list[Shape]:
    """Shapes of all entries from those ``given`` by variable name (partly known ones with ``dims.UNKNOWN``).

    ``Variable(shape=)`` is a default that a given shape replaces. Raises ShapeError at the first conflict.
    """
    table = _Shapes(graph)
    _seed_variables(
        table, given, lambda name, shape: f"{call}({name}={format_shape(shape)})", "__shape__",
        lambda text, where: from_user(read_shape(text, where)),
    )  # fmt: skip
    table.seed()
    table.run()
    return table.values


def infer_types(
    graph: Graph, given: Mapping[str, Any], call: str = "infer_type", default: Any = None
) -> list[np.dtype[Any] | None]:
    """Element types of all entries from those ``given`` by variable name; None where nothing says one.

    With ``default``, variables that stay unknown take it, in order. Raises TypeInferenceError at the first conflict.
    """
    table = _Types(graph)
    _seed_variables(table, given, lambda name, kind: f"{call}({name}={np.dtype(kind).name})", "__dtype__", read_dtype)
    table.seed()
    table.run()
    table.complete()
    if default is not None:
        for number, node in enumerate(graph.nodes):
            if node.op is None and table.values[graph.first[number]] is None:
                table.give(graph.first[number], default, f"the default type {np.dtype(default).name}")
                table.run()
                table.complete()
    return table.values
