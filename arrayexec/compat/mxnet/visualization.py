"""``mx.viz``: a table of layers with the numbers of their parameters, and a picture in Graphviz's language."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ...dims import from_user, known, product
from ...errors import BackendUnavailableError
from ...symbol.infer import infer_shapes

__all__ = ["Picture", "plot_network", "print_summary"]


def print_summary(
    symbol: Any, shape: Mapping[str, Sequence[int]] | None = None, line_length: int = 120,
    positions: Sequence[float] = (0.44, 0.64, 0.74, 1.0),
) -> None:  # fmt: skip
    """Print layers, their output shapes without the batch, the sizes of their own parameters and their inputs.

    Sizes are those of all arguments that ``shape`` does not give, by inference, each counted where it is first used;
    auxiliary states are counted apart.
    """
    ends = [int(line_length * place) if place <= 1 else int(place) for place in positions]
    rows, sizes, states = _layers(symbol, shape or {})
    lines = ["_" * line_length, _line(("Layer (type)", "Output Shape", "Param #", "Previous Layer"), ends)]
    for number, row in enumerate(rows):
        lines += [("_" if number else "=") * line_length, _line(row, ends)]
    lines += ["=" * line_length, f"Total params: {sum(sizes)}"]
    if states:
        lines.append(f"Auxiliary states: {sum(states)}")
    sys.stdout.write("\n".join([*lines, "_" * line_length, ""]))


def _line(cells: Sequence[str], ends: Sequence[int]) -> str:
    text = ""
    for cell, end in zip(cells, ends, strict=True):
        text = (text + cell)[:end].ljust(end)
    return text.rstrip()


def _layers(symbol: Any, given: Mapping[str, Sequence[int]]) -> tuple[list[tuple[str, ...]], list[int], list[int]]:
    """Rows of the table, the sizes of all parameters, and those of all auxiliary states."""
    graph = symbol.graph
    shapes = infer_shapes(graph, {name: from_user(tuple(dims)) for name, dims in given.items()}, "print_summary")

    def size(entry: int) -> int:
        return int(product(shapes[entry])) if known(shapes[entry]) else 0

    auxiliary = set(graph.auxiliary)
    weights: dict[int, int] = {}  # node of a parameter: the node that uses it first
    for number, node in enumerate(graph.nodes):
        if node.op is None or node.signature is None:
            continue
        for argument, entry in zip(node.signature.inputs, graph.inputs[number], strict=False):
            owner = graph.owner[entry]
            told = graph.nodes[owner].name not in given if given else argument != "data"
            if graph.nodes[owner].op is None and told and argument not in node.op.no_gradient:
                weights.setdefault(owner, number)
    rows = list[tuple[str, ...]]()
    for number, node in enumerate(graph.nodes):
        if number in weights or number in auxiliary:
            continue
        entry = graph.first[number] if node.op is None else graph.outputs(number)[0]
        own = sum(size(graph.first[one]) for one, user in weights.items() if user == number)
        made = "x".join(str(dim) for dim in shapes[entry][1:]) if known(shapes[entry]) else "?"
        owners = dict.fromkeys(graph.owner[one] for one in graph.inputs[number])
        before = [graph.nodes[one].name for one in owners if one not in weights and one not in auxiliary]
        kind = "null" if node.op is None else node.op.form.name
        rows.append((f"{node.name}({kind})", made, str(own), ", ".join(before)))
    return rows, [size(graph.first[i]) for i in weights], [size(graph.first[i]) for i in graph.auxiliary]


class Picture:
    """A graph in Graphviz's language: ``source`` is its text; ``save`` writes it, ``render`` draws it with Graphviz."""

    def __init__(self, title: str, source: str, save_format: str) -> None:
        self.title, self.source, self.format = title, source, save_format

    def save(self, filename: str | None = None, directory: str = "") -> str:
        """Write the text to a file (``<title>.gv``) and give its path."""
        path = os.path.join(directory, filename or f"{self.title}.gv")
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.source)
        return path

    def render(self, filename: str | None = None, *args: Any, **keywords: Any) -> Any:
        """Draw it with the package graphviz. Raises BackendUnavailableError without it."""
        if importlib.util.find_spec("graphviz") is None:
            raise BackendUnavailableError(
                "plot_network: drawing needs the package graphviz; picture.save() writes the text for the program dot"
            )
        graphviz = importlib.import_module("graphviz")
        return graphviz.Source(self.source, filename=filename or self.title, format=self.format).render(
            *args, **keywords
        )

    def __str__(self) -> str:
        return self.source


def plot_network(
    symbol: Any, title: str = "plot", save_format: str = "pdf", shape: Mapping[str, Sequence[int]] | None = None,
    dtype: Any = None, node_attrs: Mapping[str, str] | None = None, hide_weights: bool = True,
) -> Picture:  # fmt: skip
    """The graph as a picture, with shapes at the arrows if those of the inputs are given; weights are left out."""
    given = {name: tuple(dims) for name, dims in (shape or {}).items()}
    source: str = symbol.to_dot(**given)
    if node_attrs:
        told = ", ".join(f'{key}="{value}"' for key, value in node_attrs.items())
        source = source.replace("{\n", f"{{\n  node [{told}];\n", 1)
    return Picture(title, source, save_format)
