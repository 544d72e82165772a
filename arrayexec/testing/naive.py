"""The plain meaning of a graph: every value an array of its own, nothing planned and nothing shared.

What the planned executor computes is defined here and must be equal to the bit:

* forward runs the nodes in graph order; an auxiliary state moves right after its node, in training only;
* the gradient of a value is the sum of its contributions: head gradients first, in the order of the heads,
  then its users from the last node to the first, within one node by input position: ``((a + b) + c) + …``;
* backward of a node runs if the flow reaches it and one of its inputs leads to a wanted argument. A loss
  head needs nothing to arrive; other nodes get zeros for outputs that received nothing;
* a wanted argument that received nothing has the gradient zero; ``add`` adds the finished sum once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..context import cpu
from ..dims import known as is_known
from ..errors import BindError, ShapeError, UnknownNameError, near_miss
from ..registry import Known, Signature, scratch_of
from ..streams import RunPosition, Stream
from ..symbol.graph import Entry, Graph, Node
from ..symbol.infer import infer_shapes, infer_types

Array = Any
_WRITTEN = {"forward": ("output", "hidden"), "backward": (), "update": ("aux",)}


def poisoned(shape: Sequence[int], dtype: Any, xp: Any = np, fill: float = np.nan) -> Array:
    """A new array that holds NaN (far-off whole numbers), so that what is not written shows."""
    array = xp.empty(tuple(shape), dtype)
    if array.dtype.kind == "f":
        array.fill(fill)
    else:
        array.fill(array.dtype.type(113 if fill != fill else fill))
    return array


def frozen(array: Array) -> Array:
    """A view of a NumPy array that cannot be written; other arrays pass through."""
    if not isinstance(array, np.ndarray):
        return array
    view = array.view()
    view.flags.writeable = False
    return view


def graph_of(symbol: Any) -> Graph:
    """The graph of a Symbol, of a sequence of entries, or the graph itself."""
    if isinstance(symbol, Graph):
        return symbol
    heads: Sequence[Entry] = getattr(symbol, "heads", symbol)
    return Graph(heads)


class NaiveRun:
    """One binding of a graph to arrays, run plainly.

    ``args`` and ``aux`` map names to arrays; auxiliary states are copied into ``self.aux``, which forward
    moves. ``step`` and ``first_row`` place the random streams. Raises UnknownNameError for missing or unknown
    names, ShapeError and TypeInferenceError for arrays that do not fit. New memory holds ``fill``; what a
    body must not write is bound read-only.
    """

    def __init__(
        self,
        symbol: Any,
        args: Mapping[str, Array],
        aux: Mapping[str, Array] | None = None,
        is_train: bool = True,
        step: int = 0,
        first_row: int = 0,
        xp: Any = np,
        fill: float = np.nan,
    ) -> None:
        self.fill = fill
        self.graph = graph_of(symbol)
        self.args = dict(args)
        self.aux = {name: array.copy() for name, array in (aux or {}).items()}
        self.is_train = is_train
        self.position = RunPosition(step, first_row)
        self.xp = xp
        self._check_names(self.args, self.graph.arguments, "argument")
        self._check_names(self.aux, self.graph.auxiliary, "auxiliary state")
        given = {**self.args, **self.aux}
        shapes = {name: array.shape for name, array in given.items()}
        types = {name: array.dtype for name, array in given.items()}
        self.shapes = infer_shapes(self.graph, shapes, "bind")
        self.types = infer_types(self.graph, types, "bind", np.float32)
        for entry, shape in enumerate(self.shapes):
            if not is_known(shape):
                raise ShapeError(f"bind: nothing says the shape of '{self.graph.entry_name(entry)}': it is {shape}")
        self.values: list[Array] = [None] * len(self.graph.owner)
        self.known = [self._known(number) for number in range(len(self.graph.nodes))]
        self.states = [
            node.op.prepare(known, cpu()) if node.op is not None else None
            for node, known in zip(self.graph.nodes, self.known, strict=True)
        ]

    def _check_names(self, given: Mapping[str, Array], numbers: Sequence[int], noun: str) -> None:
        names = [self.graph.nodes[number].name for number in numbers]
        for name in names:
            if name not in given:
                raise UnknownNameError(f"bind: {noun} '{name}' must be given; there are: {', '.join(given)}")
        for name in given:
            if name not in names:
                raise UnknownNameError(f"bind: the symbol has no {noun} '{name}'{near_miss(name, names)}")

    def _known(self, number: int) -> Known | None:
        signature = self.graph.nodes[number].signature
        if signature is None:
            return None
        entries = self.graph.values(number)
        return Known(signature, [self.shapes[e] for e in entries], [self.types[e] for e in entries])

    def _fresh(self, entry: int) -> Array:
        return poisoned(self.shapes[entry], self.types[entry], self.xp, self.fill)

    def bind(
        self, number: int, body: str, arriving: Sequence[Array] = (), leaving: Sequence[Array | None] = ()
    ) -> list[Any]:
        """What the parameters of one body of node ``number`` are bound to.

        ``arriving`` are the gradients of its outputs, ``leaving`` those of its inputs, for backward.
        """
        node: Any = self.graph.nodes[number]
        entries = self.graph.values(number)
        starts = _starts(node.signature)
        scratch = scratch_of(node.op, self.known[number])
        special = {
            "xp": self.xp, "is_train": self.is_train, "comm": None, "prepared": self.states[number],
            "rng": Stream(node.name, self.position, self.graph.twins[number]),
        }  # fmt: skip

        def one(kind: str, place: Any) -> Any:
            if isinstance(place, tuple):
                return tuple(one(kind, item) for item in place)
            if kind == "dinput":
                return leaving[place]
            value = arriving[place] if kind == "doutput" else self.values[entries[starts[kind] + place]]
            return value if kind in _WRITTEN[body] else frozen(value)

        bound: list[Any] = []
        for kind, place in getattr(node.signature, body):
            if kind in special:
                bound.append(special[kind])
            elif kind == "temp":
                shape, dtype = scratch[place]
                bound.append(poisoned(shape, dtype, self.xp, self.fill))
            else:
                bound.append(None if kind == "absent" else one(kind, place))
        return bound

    def forward(self, is_train: bool | None = None) -> list[Array]:
        """Run all nodes; the values of the heads, each an array of its own.

        Training moves the auxiliary states.
        """
        if is_train is not None:
            self.is_train = is_train
        graph = self.graph
        with np.errstate(all="ignore"):
            for number, node in enumerate(graph.nodes):
                first, op, signature = graph.first[number], _bodies(node), node.signature
                if signature is None:
                    source = self.aux if number in graph.auxiliary else self.args
                    self.values[first] = source[node.name]
                    continue
                for entry in range(first, first + len(signature.outputs) + len(signature.hidden)):
                    self.values[entry] = self._fresh(entry)
                op.forward(*self.bind(number, "forward"))
                if self.is_train and signature.update is not None:
                    op.update(*self.bind(number, "update"))
        return [self.values[entry].copy() for entry in graph.heads]

    def backward(
        self,
        out_grads: Sequence[Array | None] | Array | None = None,
        wants: Mapping[str, str] | None = None,
        grad_arrays: Mapping[str, Array] | None = None,
    ) -> dict[str, Array]:
        """Gradients of the arguments wanted with "write" or "add" (default: write for all), by name.

        Gradients go into ``grad_arrays`` where it names one, else into new arrays. Raises BindError where an
        output that is no loss head has no head gradient.
        """
        graph = self.graph
        names = {graph.nodes[i].name: graph.first[i] for i in graph.arguments}
        wants = dict.fromkeys(names, "write") if wants is None else wants
        wanted = {entry for name, entry in names.items() if wants.get(name, "null") != "null"}
        needs, runs = flow(graph, wanted)
        sums: dict[int, Array] = {}
        with np.errstate(all="ignore"):
            self._heads(out_grads, needs, sums)
            for number in reversed(runs):
                self._backward_node(number, needs, sums)
            return self._deliver(wants, grad_arrays or {}, sums)

    def _add(self, entry: int, contribution: Array, sums: dict[int, Array]) -> None:
        if entry in sums:
            self.xp.add(sums[entry], contribution, out=sums[entry])
        else:
            sums[entry] = contribution

    def _heads(self, out_grads: Any, needs: set[int], sums: dict[int, Array]) -> None:
        heads = self.graph.heads
        if out_grads is not None and not isinstance(out_grads, list | tuple):
            out_grads = [out_grads]
        if out_grads is not None and len(out_grads) != len(heads):
            raise BindError(
                f"backward: out_grads must hold {len(heads)} arrays, one an output, but has {len(out_grads)}"
            )
        for position, entry in enumerate(heads):
            if entry not in needs:
                continue
            given = None if out_grads is None else out_grads[position]
            name, shape = self.graph.entry_name(entry), tuple(self.shapes[entry])
            if given is None:
                raise BindError(f"backward needs out_grads: output '{name}' is no loss head")
            if tuple(given.shape) != shape:
                raise BindError(f"backward: the gradient of '{name}' must be {shape}, but it is {given.shape}")
            self._add(entry, self.xp.array(given, self.types[entry], copy=True, order="C"), sums)

    def _backward_node(self, number: int, needs: set[int], sums: dict[int, Array]) -> None:
        graph, node = self.graph, self.graph.nodes[number]
        signature: Any = node.signature
        outputs = range(graph.first[number], graph.first[number] + len(signature.outputs))
        if signature.head_gradient and not any(entry in sums for entry in outputs):
            return
        gives = gradient_inputs(node)
        inputs = graph.inputs[number][: len(signature.inputs)]
        arriving = [sums[e] if e in sums else self.xp.zeros(self.shapes[e], self.types[e]) for e in outputs]
        leaving = [self._fresh(e) if i in gives and e in needs else None for i, e in enumerate(inputs)]
        _bodies(node).backward(*self.bind(number, "backward", arriving, leaving))
        for entry, gradient in zip(inputs, leaving, strict=True):
            if gradient is not None:
                self._add(entry, gradient, sums)

    def _deliver(
        self, wants: Mapping[str, str], given: Mapping[str, Array], sums: dict[int, Array]
    ) -> dict[str, Array]:
        result: dict[str, Array] = {}
        for number in self.graph.arguments:
            name, entry = self.graph.nodes[number].name, self.graph.first[number]
            how = wants.get(name, "null")
            if how == "null":
                continue
            target = given[name] if name in given else self.xp.zeros(self.shapes[entry], self.types[entry])
            if how == "add":
                if entry in sums:
                    self.xp.add(target, sums[entry], out=target)
            elif entry in sums:
                self.xp.copyto(target, sums[entry])
            else:
                target.fill(0)
            result[name] = target
        return result


def _bodies(node: Node) -> Any:
    """The operator of ``node``, whose bodies have signatures of their own."""
    return node.op


def _starts(signature: Signature) -> dict[str, int]:
    """Where each kind of value begins among the entries of a node."""
    inputs, aux, outputs = len(signature.inputs), len(signature.aux), len(signature.outputs)
    return {"input": 0, "aux": inputs, "output": inputs + aux, "hidden": inputs + aux + outputs}


def gradient_inputs(node: Node) -> set[int]:
    """Positions of the inputs of ``node`` that its backward gives a gradient to."""
    signature = node.signature
    if signature is None or signature.backward is None or node.op is None:
        return set()
    places: set[int] = set()
    for kind, place in signature.backward:
        if kind == "dinput":
            places.update(place if isinstance(place, tuple) else (place,))
    return {i for i in places if signature.inputs[i] not in node.op.no_gradient}


def flow(graph: Graph, wanted: set[int]) -> tuple[set[int], list[int]]:
    """Values that need a gradient so that ``wanted`` entries get theirs; nodes that run backward, in order.

    A node runs if the flow from the heads reaches it and one of its inputs leads to a wanted entry. The
    outputs of a loss head need none: its backward does not read them.
    """
    reached = set(graph.heads)
    for number in range(len(graph.nodes) - 1, -1, -1):
        node = graph.nodes[number]
        if node.signature is None:
            continue
        first = graph.first[number]
        if any(first + i in reached for i in range(len(node.signature.outputs))):
            reached.update(graph.inputs[number][i] for i in gradient_inputs(node))
    needs, runs = wanted & reached, []
    for number, node in enumerate(graph.nodes):
        signature = node.signature
        if signature is None:
            continue
        first = graph.first[number]
        outputs = {first + i for i in range(len(signature.outputs))} & reached
        if outputs and any(graph.inputs[number][i] in needs for i in gradient_inputs(node)):
            runs.append(number)
            if signature.head_gradient:
                needs |= outputs
    return needs, runs
