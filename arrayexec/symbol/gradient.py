"""Gradients as Symbols: the chain rule written into the graph, which can be bound, composed and differentiated again.

One walk back over the nodes. An operator says its part as Symbols (``gradient``), or it is linear and need say nothing
more (``linear``). Shapes are not known here, so no rule may ask for them.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..errors import ArgumentError, CompositionError, OperatorDefinitionError, UnknownNameError, message, near_miss
from ..ops import transposed
from ..registry import gradient_positions
from .attribute import AttrScope
from .graph import Graph, Node
from .naming import NameManager
from .symbol import Group, Symbol

KNOWN = (
    "elementwise, scalar, broadcasting, reducing, shape, matrix and convolution operators, look-ups, activations and "
    "softmax have one (docs/operators.md: symbol); an author gives it by linear or gradient (docs/operators_howto.md)"
)


class _Names(NameManager):
    """Names that no node of a graph has: ``base`` for a node without one, then base1, base2, …"""

    def __init__(self, taken: Iterable[str]) -> None:
        super().__init__()
        self._taken, self.base = set(taken), ""

    def get(self, name: str | None, hint: str) -> str:
        """``name``, or the base in force, with the least number that makes it new."""
        found = base = name or self.base
        while found in self._taken:
            self._counts[base] = self._counts.get(base, 0) + 1
            found = f"{base}{self._counts[base]}"
        self._taken.add(found)
        return found


def gradient(symbol: Symbol, wrt: str | Sequence[str], head_gradients: Any = None) -> Symbol:
    """See ``Symbol.gradient``."""
    graph = symbol.graph
    names = [wrt] if isinstance(wrt, str) else list(wrt)
    arguments = {graph.nodes[i].name: graph.first[i] for i in graph.arguments}
    for name in names:
        if name not in arguments:
            raise UnknownNameError(f"gradient: {symbol!r} has no argument '{name}'{near_miss(name, arguments)}")
    if not names:
        raise ArgumentError(f"gradient: wrt must name an argument of {symbol!r}, but it names none")
    heads = _heads(symbol, head_gradients)
    fresh = _Names(node.name for node in graph.nodes)
    with fresh:
        walk = _Walk(graph, {arguments[name] for name in names}, fresh)
        walk.run(heads)
        return Group(walk.result(arguments[name], f"{name}_grad") for name in names)


def _heads(symbol: Symbol, given: Any) -> Sequence[Symbol | None]:
    """Head gradients, one an output; None: ones."""
    if given is None:
        return [None] * len(symbol)
    found = [given] if isinstance(given, Symbol) else list(given)
    fits = [one is None or (isinstance(one, Symbol) and len(one) == 1) for one in found]
    if len(fits) != len(symbol) or not all(fits):
        raise ArgumentError(
            f"gradient: head_gradients must be one symbol of one output (or None: ones) for each of the {len(symbol)} "
            f"outputs of {symbol!r}, but they are {found!r}"
        )
    return found


class _Walk:
    """What contributes to the gradient of each entry that lies between the heads and ``wanted`` entries."""

    def __init__(self, graph: Graph, wanted: set[int], names: _Names) -> None:
        self.graph, self.names = graph, names
        self.sym: Any = importlib.import_module(__package__ or "")  # every operator as a function
        self.parts: dict[int, list[Symbol]] = {}
        self.leads = set(wanted)
        self.through: list[tuple[int, list[int]]] = []
        for number, node in enumerate(graph.nodes):
            places = gradient_positions(node.op) if node.op is not None else []
            places = [place for place in places if graph.inputs[number][place] in self.leads]
            if places:
                self.leads.update(graph.outputs(number))
                self.through.append((number, places))

    def symbol(self, entry: int) -> Symbol:
        number = self.graph.owner[entry]
        return Symbol(((self.graph.nodes[number], entry - self.graph.first[number]),))

    def run(self, heads: Sequence[Symbol | None]) -> None:
        for entry, head in zip(self.graph.heads, heads, strict=True):
            if entry in self.leads:
                self.names.base = f"{self.graph.entry_name(entry)}_grad"
                one = self.sym.ones_like(self.symbol(entry)) if head is None else head
                self.parts.setdefault(entry, []).append(one)
        for number, places in reversed(self.through):
            node, outputs = self.graph.nodes[number], self.graph.outputs(number)
            if not any(entry in self.parts for entry in outputs):
                continue
            self.names.base = f"{node.name}_grad"
            group = {key: node.attributes[key] for key in ("__ctx_group__",) if key in node.attributes}
            with AttrScope(**group):
                arriving = [self.result(entry) for entry in outputs]
                found = self.rule(node, [*map(self.symbol, (*self.graph.inputs[number], *outputs))], arriving)
            for place in places:
                if found.get(place) is not None:
                    self.parts.setdefault(self.graph.inputs[number][place], []).append(found[place])

    def result(self, entry: int, name: str | None = None) -> Symbol:
        """The sum of what contributes, in a node of its own if it has a ``name``; zeros if nothing does."""
        parts = self.parts.get(entry, ())
        if len(parts) == 1 and name is None:
            return parts[0]
        inputs, op = (parts or [self.symbol(entry)]), "add_n" if len(parts) > 1 else "_copy" if parts else "zeros_like"
        found: Symbol = getattr(self.sym, op)(*inputs, name=name)
        return found

    def rule(self, node: Node, known: Sequence[Symbol], arriving: Sequence[Symbol]) -> Mapping[int, Symbol]:
        """Gradients of a node's inputs by position, from its inputs and outputs and what arrives at the outputs."""
        op: Any = node.op
        signature: Any = node.signature
        if not signature.head_gradient:
            fact = f"gradient: {node.where} has no gradient as a Symbol: a loss head does not put out its loss"
            raise CompositionError(message(fact, hint="write the loss with others, such as log_softmax and sum"))
        values: dict[str, Any] = {}
        for name, place in signature.frame.items():  # hidden outputs stand behind the others and have no Symbol
            many = isinstance(place, tuple)
            for key, table, first in ((name, known, 0), ("d" + name, arriving, len(known) - len(arriving))):
                at = [-1 if p is None else p - first for p in (place if many else (place,))]
                found = [table[p] if 0 <= p < len(table) else None for p in at]
                values[key] = found if many else found[0]
        if hasattr(op, "gradient"):
            parameters = inspect.signature(op.gradient).parameters
            rest = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
            result = op.gradient(self.sym, **{name: values[name] for name in (values if rest else [*parameters][1:])})
        else:
            result = transposed.gradients(self.sym, op, **values) if op.linear else None
        if result is None:
            raise CompositionError(message(f"gradient: {node.where} has no gradient as a Symbol", hint=KNOWN))
        gradients: dict[int, Symbol] = {}
        for name, value in result.items():
            if name not in signature.frame:
                fact = f"gradient gives '{name}', which is no input{near_miss(name, signature.inputs)}"
                raise OperatorDefinitionError(f"operator {op.form.name}: {fact}")
            place = signature.frame[name]
            gradients.update(zip(place, value, strict=True) if isinstance(place, tuple) else {place: value})
        return gradients
