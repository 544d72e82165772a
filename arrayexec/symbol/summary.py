"""A graph for people: table of layers, Graphviz and Mermaid pictures, HTML for notebooks."""

from __future__ import annotations

import html as markup
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from ..dims import Shape, known, product
from ..errors import format_shape
from .graph import Graph

_WEIGHTS = frozenset({"weight", "bias", "gamma", "beta", "parameters"})
"""Inputs that pictures leave out, so that the flow of the data is seen; auxiliary states too."""
_BEGINS = frozenset({"__shape__", "__init__"})


class Layer(NamedTuple):
    """One row of the table."""

    name: str
    kind: str
    shape: str
    parameters: str
    inputs: str


def _size(shape: Shape) -> int | None:
    return int(product(shape)) if known(shape) else None


def _total(sizes: Sequence[int | None]) -> str:
    found = sum(size for size in sizes if size is not None)
    return f"{found:,}" + ("+?" if None in sizes else "")


def _parameters(graph: Graph, inputs: Collection[str]) -> dict[int, None]:
    """Nodes of the trainable arguments: those with a gradient that are no ``inputs``.

    If no inputs are named, those that are used as weights or say how they begin.
    """
    found: dict[int, None] = {}
    arguments = set(graph.arguments)
    for node, entries in zip(graph.nodes, graph.inputs, strict=True):
        if node.op is None or node.signature is None:
            continue
        for argument, entry in zip(node.signature.inputs, entries, strict=False):
            owner = graph.owner[entry]
            own = graph.nodes[owner]
            told = own.name not in inputs if inputs else argument in _WEIGHTS or not _BEGINS.isdisjoint(own.attributes)
            if owner in arguments and told and argument not in node.op.no_gradient:
                found[owner] = None
    return found


def _layers(graph: Graph, shapes: Sequence[Shape], parameters: Collection[int]) -> Iterator[Layer]:
    """Rows of inputs and operators; a parameter is counted where it is first used."""
    counted: set[int] = set()
    auxiliary = set(graph.auxiliary)
    for number, node in enumerate(graph.nodes):
        if node.op is None:
            if number not in parameters and number not in auxiliary:
                yield Layer(node.name, "Variable", format_shape(shapes[graph.first[number]]), "", "")
            continue
        own, sources = [], []
        for entry in graph.inputs[number]:
            owner = graph.owner[entry]
            if owner in parameters or owner in auxiliary:
                if owner in parameters and owner not in counted:
                    counted.add(owner)
                    own.append(_size(shapes[entry]))
            else:
                sources.append(graph.nodes[owner].name)
        made = ", ".join(dict.fromkeys(format_shape(shapes[entry]) for entry in graph.outputs(number)))
        yield Layer(node.name, node.op.form.name, made, _total(own) if own else "", ", ".join(sources))


def _totals(graph: Graph, shapes: Sequence[Shape], parameters: Collection[int]) -> list[str]:
    return [
        f"Trainable parameters: {_total([_size(shapes[graph.first[i]]) for i in parameters])}",
        f"Auxiliary states: {_total([_size(shapes[graph.first[i]]) for i in graph.auxiliary])}",
    ]


_TITLES = Layer("Layer", "Operator", "Output shape", "Parameters", "Inputs")


def table(graph: Graph, shapes: Sequence[Shape], inputs: Collection[str]) -> str:
    """Rows of layers with output shapes, parameters and inputs, then the totals; ``?`` where a shape is unknown."""
    parameters = _parameters(graph, inputs)
    rows = [_TITLES, *_layers(graph, shapes, parameters)]
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if i == 3 else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=False))
        ]
        lines.append("  ".join([*cells, row.inputs]).rstrip())
    rule = "-" * max(map(len, lines))
    return "\n".join([lines[0], rule, *lines[1:], rule, *_totals(graph, shapes, parameters)])


def html(graph: Graph, shapes: Sequence[Shape], inputs: Collection[str] = ()) -> str:
    """The table as HTML."""
    parameters = _parameters(graph, inputs)

    def row(layer: Layer, tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{markup.escape(cell)}</{tag}>" for cell in layer) + "</tr>"

    body = "".join(row(layer, "td") for layer in _layers(graph, shapes, parameters))
    totals = "<br>".join(markup.escape(line) for line in _totals(graph, shapes, parameters))
    return f"<table><thead>{row(_TITLES, 'th')}</thead><tbody>{body}</tbody></table><p>{totals}</p>"


def _flow(graph: Graph, shapes: Sequence[Shape]) -> tuple[list[tuple[int, str, str]], list[tuple[int, int, str]]]:
    """Nodes (number, name, kind) and arrows (from, to, shape if known) of a picture, weights left out."""
    weights = {number for number, node in enumerate(graph.nodes) if node.op is None}
    for node, entries in zip(graph.nodes, graph.inputs, strict=True):
        if node.signature is not None:
            for argument, entry in zip(node.signature.inputs, entries, strict=False):
                if argument not in _WEIGHTS:
                    weights.discard(graph.owner[entry])
    weights -= {graph.owner[entry] for entry in graph.heads}
    nodes, arrows = [], []
    for number, node in enumerate(graph.nodes):
        if number in weights:
            continue
        nodes.append((number, node.name, node.op.form.name if node.op is not None else ""))
        for entry in graph.inputs[number]:
            if graph.owner[entry] not in weights:
                arrows.append((graph.owner[entry], number, format_shape(shapes[entry]) if known(shapes[entry]) else ""))
    return nodes, arrows


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def dot(graph: Graph, shapes: Sequence[Shape]) -> str:
    """The graph in Graphviz's language: ovals for inputs, boxes for operators, data flowing down."""
    nodes, arrows = _flow(graph, shapes)
    lines = ["digraph {", "  node [shape=box, style=rounded];"]
    for number, name, kind in nodes:
        label = f'label="{_escaped(name)}\\n{kind}"' if kind else f'label="{_escaped(name)}", shape=oval'
        lines.append(f"  n{number} [{label}];")
    for source, target, shape in arrows:
        lines.append(f"  n{source} -> n{target}" + (f' [label="{shape}"];' if shape else ";"))
    return "\n".join([*lines, "}"])


def mermaid(graph: Graph, shapes: Sequence[Shape]) -> str:
    """The graph as a Mermaid flow chart: round ends for inputs, boxes for operators."""
    nodes, arrows = _flow(graph, shapes)
    lines = ["flowchart TD"]
    for number, name, kind in nodes:
        text = name.replace('"', "#quot;")
        lines.append(f'  n{number}["{text}<br>{kind}"]' if kind else f'  n{number}(["{text}"])')
    for source, target, shape in arrows:
        lines.append(f"  n{source} -->" + (f'|"{shape}"|' if shape else "") + f" n{target}")
    return "\n".join(lines)
