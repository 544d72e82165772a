"""Symbols looked at and changed: layers that stay as they are, labels, files without the casts of mixed precision."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

from ..parallel.binding import ignored_parameters
from ..symbol import Symbol
from ..symbol.graph import Entry, Node


def with_frozen_statistics(symbol: Symbol, fixed: Collection[str]) -> Symbol:
    """The symbol with ``use_global_stats=True`` at nodes that have it and whose parameters are all ``fixed``."""
    graph, copies, kept = symbol.graph, list[Node](), {*fixed, *ignored_parameters(symbol)}
    for node in graph.nodes:
        op: Any = node.op
        if node.signature is not None and hasattr(op, "use_global_stats"):
            parameters = node.inputs[1 : len(node.signature.inputs)]  # behind the data
            if all(source.name in kept for source, _ in parameters):
                op = dataclasses.replace(op, use_global_stats=True)
        inputs = [(copies[graph.index[id(source)]], i) for source, i in node.inputs]
        copies.append(Node(op, node.name, node.attributes, inputs, node.source))
    return Symbol([(copies[graph.index[id(node)]], i) for node, i in symbol.heads])


def labels_of_losses(symbol: Symbol) -> set[str]:
    """Variables that are read as labels alone, whatever their names."""
    found, others = set[str](), set[str]()
    for node in symbol.graph.nodes:
        for place, (source, _) in enumerate(node.inputs):
            label = node.signature is not None and node.signature.inputs[place : place + 1] == ("label",)
            if source.op is None:
                (found if label else others).add(source.name)
    return found - others


def without_amp_casts(symbol: Symbol) -> Symbol:
    """The symbol with what goes into ``amp_cast`` and ``amp_multicast`` in place of what comes out of them."""
    graph, places, changed = symbol.graph, dict[tuple[int, int], Entry](), False
    for number, node in enumerate(graph.nodes):
        inputs = [places[graph.index[id(source)], i] for source, i in node.inputs]
        if node.op is not None and node.op.form.name in ("amp_cast", "amp_multicast"):
            places |= {(number, i): entry for i, entry in enumerate(inputs)}
            changed = True
            continue
        copy = Node(node.op, node.name, node.attributes, inputs, node.source)
        copy.versions = node.versions
        places |= {(number, i): (copy, i) for i in range(node.visible)}
    return Symbol([places[graph.index[id(node)], i] for node, i in symbol.heads]) if changed else symbol
