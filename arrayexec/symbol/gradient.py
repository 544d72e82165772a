"""Gradients as Symbols: the chain rule written into the graph, where it can be bound, composed and differentiated again.

One walk back over the nodes. An operator says its part as Symbols (``gradient``), or is linear and needs to say nothing
more (``linear``). Shapes are not known here, so no rule may need them.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable, Sequence
from typing import Any

from ..errors import ArgumentError, CompositionError, OperatorDefinitionError, UnknownNameError, near_miss
from ..ops import transposed
from ..registry import gradient_positions
from .attribute import AttrScope
from .graph import Graph, Node
from .naming import NameManager
from .symbol import Group, Symbol

_FAMILIES = (
    "elementwise, scalar, broadcasting, reducing and shape operators, dot, batch_dot, FullyConnected, Activation and "
    "softmax have one"
)


class _Names(NameManager):
    """Names that no node of the graph has: ``base`` for a node without a name, then base1, base2, …"""

    def __init__(self, taken: Iterable[str]) -> None:
        super().__init__()
        self._taken, self.base = set(taken), ""

    def get(self, name: str | None, hint: str) -> str:
        """The name, or the base in force, with the least number that makes it new."""
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
    fresh = _Names(node.name for node in graph.nodes)
    with fresh:
        parts = _walk(graph, _heads(symbol, head_gradients), {arguments[name] for name in names}, fresh)
        sym, found = importlib.import_module(__package__ or ""), list[Symbol]()
        for name in names:
            given, title = parts.get(arguments[name], []), f"{name}_grad"
            if not given:
                found.append(sym.zeros_like(_symbol(graph, arguments[name]), name=title))
            elif len(given) == 1:
                found.append(sym._copy(given[0], name=title))
            else:
                found.append(sym.add_n(*given, name=title))
    return Group(found)


def _heads(symbol: Symbol, given: Any) -> list[Symbol | None]:
    """Head gradients, one an output."""
    if given is None:
        return [None] * len(symbol)
    found = [given] if isinstance(given, Symbol) else list(given)
    if len(found) != len(symbol) or not all(one is None or (isinstance(one, Symbol) and len(one) == 1) for one in found):
        raise ArgumentError(
            f"gradient: head_gradients must be {len(symbol)} symbols of one output, one an output of {symbol!r}, or "
            f"None for ones, but they are {found!r}"
        )
    return found


def _symbol(graph: Graph, entry: int) -> Symbol:
    number = graph.owner[entry]
    return Symbol(((graph.nodes[number], entry - graph.first[number]),))


def _walk(graph: Graph, heads: Sequence[Symbol | None], wanted: set[int], names: _Names) -> dict[int, list[Symbol]]:
    """What contributes to the gradient of each entry on a way from the heads to ``wanted`` ones."""
    sym: Any = importlib.import_module(__package__ or "")
    leads, through = set(wanted), list[tuple[int, list[int]]]()
    for number, node in enumerate(graph.nodes):
        places = [p for p in gradient_positions(node.op) if graph.inputs[number][p] in leads] if node.op else []
        if places:
            leads.update(graph.outputs(number))
            through.append((number, places))
    parts: dict[int, list[Symbol]] = {}

    def total(entry: int) -> Symbol:
        given = parts.get(entry)
        if given is None:  # nobody used this output of several
            return sym.zeros_like(_symbol(graph, entry))  # type: ignore[no-any-return]
        if len(given) > 1:
            parts[entry] = given = [sym.add_n(*given)]
        return given[0]

    for entry, head in zip(graph.heads, heads, strict=True):
        if entry in leads:
            names.base = f"{graph.entry_name(entry)}_grad"
            parts.setdefault(entry, []).append(sym.ones_like(_symbol(graph, entry)) if head is None else head)
    for number, places in reversed(through):
        node, outputs = graph.nodes[number], graph.outputs(number)
        if not any(entry in parts for entry in outputs):
            continue
        names.base = f"{node.name}_grad"
        group = node.attributes.get("__ctx_group__")
        with AttrScope(**({"ctx_group": group} if group is not None else {})):
            inputs = [_symbol(graph, entry) for entry in graph.inputs[number]]
            found = _of_node(sym, node, inputs, [_symbol(graph, e) for e in outputs], [total(e) for e in outputs])
        for place in places:
            value = found.get(place)
            if value is not None:
                parts.setdefault(graph.inputs[number][place], []).append(value)
    return parts


def _of_node(
    sym: Any, node: Node, inputs: list[Symbol], outputs: list[Symbol], arriving: list[Symbol]
) -> dict[int, Symbol]:
    """Gradients of one node's inputs by position."""
    op: Any = node.op
    signature: Any = node.signature
    if not signature.head_gradient:
        raise CompositionError(
            f"gradient: {node.where} is a loss head: its backward gives the gradient of a loss that is not what it puts "
            "out, so it has no gradient as a Symbol; write the loss with other operators, such as log_softmax and sum"
        )
    values: dict[str, Any] = {}
    for name, place in signature.frame.items():  # hidden outputs stand behind the others and have no Symbol
        many = isinstance(place, tuple)
        for key, table, first in ((name, inputs + outputs, 0), ("d" + name, arriving, len(inputs))):
            places = [-1 if p is None else p - first for p in (place if many else (place,))]
            found = [table[p] if 0 <= p < len(table) else None for p in places]
            values[key] = found if many else found[0]
    if hasattr(op, "gradient"):
        parameters = inspect.signature(op.gradient).parameters
        every = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        given = {name: values[name] for name in (values if every else [*parameters][1:])}
        result = op.gradient(sym, **given)
    else:
        result = transposed.gradients(sym, op, **values) if op.linear else None
    if result is None:
        raise CompositionError(
            f"gradient: {node.where} has no gradient as a Symbol, and it lies on the way to what was asked for; "
            f"{_FAMILIES}; the author of an operator gives it by linear or gradient (docs/operators_howto.md)"
        )
    gradients: dict[int, Symbol] = {}
    for name, value in result.items():
        if name not in signature.frame:
            fact = f"gradient gives '{name}', which is no input{near_miss(name, signature.inputs)}"
            raise OperatorDefinitionError(f"operator {op.form.name}: {fact}")
        place = signature.frame[name]
        gradients.update(zip(place, value, strict=True) if isinstance(place, tuple) else {place: value})
    return gradients
