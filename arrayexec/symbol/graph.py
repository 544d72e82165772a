"""The graph itself: nodes, the order in which they stand, and the entries (one value each) that they make."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..errors import CompositionError
from ..registry import Op, Signature, signature_of

Entry = tuple["Node", int]
Source = tuple[str, int] | None  # the user's file and line


def place(name: str, source: Source) -> str:
    """`` 'fc1' (train.py:171)``: name of a node and where it was made."""
    return f" '{name}'" + (f" ({source[0].rpartition('/')[2]}:{source[1]})" if source else "")


class Node:
    """A variable (``op`` is None) or one application of an operator.

    ``attributes`` holds texts exactly as given: operator attributes, and user and hidden ones beside them.
    ``inputs`` are the operator's inputs, then its auxiliary states. ``source`` is the user's (file, line).
    ``versions`` are the third numbers of the inputs in a file that was read (None: 1 for auxiliary states, else 0);
    they mean nothing and are kept so that a file is written as it was read.
    """

    __slots__ = ("attributes", "inputs", "name", "op", "signature", "source", "versions")

    def __init__(
        self, op: Op | None, name: str, attributes: dict[str, str], inputs: Sequence[Entry] = (), source: Source = None
    ) -> None:
        self.op = op
        self.name = name
        self.attributes = attributes
        self.inputs: tuple[Entry, ...] = tuple(inputs)
        self.source = source
        self.versions: tuple[int, ...] | None = None
        self.signature: Signature | None = signature_of(op) if op is not None else None

    @property
    def where(self) -> str:
        """``FullyConnected 'fc1' (train.py:171)``: how errors name this node."""
        return (self.op.form.name if self.op is not None else "Variable") + place(self.name, self.source)

    @property
    def visible(self) -> int:
        """How many values this node makes, hidden ones left out."""
        return len(self.signature.outputs) if self.signature else 1

    @property
    def outputs(self) -> list[Entry]:
        """The visible values."""
        return [(self, i) for i in range(self.visible)]

    def output_name(self, index: int) -> str:
        """Name of one output: ``fc1_output``, ``split_output2``, ``bn_mean``; a variable's own name."""
        if self.signature is None:
            return self.name
        names = self.signature.output_suffixes + self.signature.hidden
        return f"{self.name}_{names[index]}"

    def __repr__(self) -> str:
        return f"<Node {self.where}>"


def post_order(heads: Iterable[Entry]) -> list[Node]:
    """All nodes that ``heads`` need, inputs before users, left to right, each once. CompositionError on a cycle."""
    order: list[Node] = []
    finished: dict[int, bool] = {}  # node id: False while its inputs are visited, True when it stands in the order
    path: list[Node] = []
    pending = [iter(heads)]  # values to visit: the heads, then the inputs of every node of the path
    while pending:
        node = next((node for node, _ in pending[-1] if not finished.get(id(node))), None)
        if node is not None:
            if id(node) in finished:
                raise CompositionError(f"{node.where} is an input of itself: the graph has a cycle")
            finished[id(node)] = False
            path.append(node)
            pending.append(iter(node.inputs))
        else:
            pending.pop()
            if path:
                order.append(path.pop())
                finished[id(order[-1])] = True
    return order


class Graph:
    """Nodes in order with numbered entries; variables of one name are one argument (their gradients sum).

    ``first[i]`` is where node i's first value stands; hidden outputs have entries of their own, behind the visible
    ones.
    Raises CompositionError for two variables of one name that disagree in shape, type or initialiser.
    """

    def __init__(self, heads: Sequence[Entry]) -> None:
        self.nodes: list[Node] = []
        self.index: dict[int, int] = {}
        self.first: list[int] = []
        self.owner: list[int] = []
        by_name: dict[str, int] = {}
        for node in post_order(heads):
            number = len(self.nodes)
            self.index[id(node)] = kept = by_name.setdefault(node.name, number) if node.op is None else number
            if kept < number:
                self._unify(self.nodes[kept], node)
                continue
            self.nodes.append(node)
            self.first.append(len(self.owner))
            signature = node.signature
            self.owner += [number] * (len(signature.outputs) + len(signature.hidden) if signature else 1)
        seen: dict[str, int] = {}
        self.twins: list[int] = []
        """For every node, how many operator nodes of its name stand before it: twins draw their own random numbers."""
        for node in self.nodes:
            self.twins.append(seen.get(node.name, 0))
            seen[node.name] = self.twins[-1] + (node.op is not None)
        self.inputs: list[tuple[int, ...]] = [tuple(self.entry(e) for e in node.inputs) for node in self.nodes]
        self.heads: list[int] = [self.entry(e) for e in heads]
        states = {
            self.owner[entry]
            for node, inputs in zip(self.nodes, self.inputs, strict=True)
            if node.signature is not None
            for entry in inputs[len(node.signature.inputs) :]
        }
        variables = [number for number, node in enumerate(self.nodes) if node.op is None]
        self.auxiliary: list[int] = [number for number in variables if number in states]
        self.arguments: list[int] = [number for number in variables if number not in states]

    @staticmethod
    def _unify(kept: Node, other: Node) -> None:
        for key in ("__shape__", "__dtype__", "__init__"):
            mine, its = kept.attributes.get(key), other.attributes.get(key)
            if mine is not None and its is not None and mine != its:
                raise CompositionError(
                    f"two variables are named '{kept.name}' but disagree in {key.strip('_')}: "
                    f"{kept.where} has {mine}, {other.where} has {its}; give one another name or make them equal"
                )

    def entry(self, entry: Entry) -> int:
        """Number of the value that a node's output is."""
        return self.first[self.index[id(entry[0])]] + entry[1]

    def entry_name(self, number: int) -> str:
        """Name of a value, as ``list_outputs`` of the internals gives it."""
        node = self.owner[number]
        return self.nodes[node].output_name(number - self.first[node])

    def values(self, node: int) -> tuple[int, ...]:
        """Entries of node ``node`` in frame order: inputs, auxiliaries, outputs, hidden outputs."""
        end = self.first[node + 1] if node + 1 < len(self.first) else len(self.owner)
        return (*self.inputs[node], *range(self.first[node], end))

    def outputs(self, node: int) -> range:
        """Entries of the visible outputs of node ``node``."""
        return range(self.first[node], self.first[node] + self.nodes[node].visible)


def variable(name: str, **attributes: Any) -> Node:
    """A variable node with text attributes; the public way is ``sym.Variable``."""
    return Node(None, name, dict(attributes))
