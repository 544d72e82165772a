"""Layers that stay as they are, their running statistics, too."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

from ..parallel.binding import ignored_parameters
from ..symbol import Symbol
from ..symbol.graph import Node


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
