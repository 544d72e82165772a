"""Gradients of a group summed over ranks: one layout for all buckets, one order of messages, the same on every rank."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

import numpy as np

from ..comm import Communicator, GradientBuckets
from ..dims import from_user, known
from ..errors import BucketError
from ..executor import allocate_segment, inferred
from ..plan import make_plan
from ..symbol.graph import Graph
from ..symbol.infer import infer_shapes, infer_types
from .binding import DeviceStore, ignored_parameters
from .loading import Described, batch_axis

Spec = tuple[tuple[int, ...], Any]
Specs = dict[str, Spec]


class Layout:
    """Shape and type of all parameters and auxiliary states of all announced buckets, in an order of their own.

    The default bucket's parameters stand in the order in which backward finishes them, the rest after them by name.
    ``inputs`` are arguments that are no parameters anywhere.
    """

    def __init__(self, symbol: Any, described: Described, inputs: set[str]) -> None:
        self._inputs = inputs | {item.name for item in described.all}
        self._described = described
        graph = Graph(symbol.heads)
        variables = {graph.nodes[i].name for i in graph.arguments}
        given = [item for item in described.all if item.name in variables]
        shapes, types = inferred(
            graph, {i.name: tuple(i.shape) for i in given}, {i.name: i.dtype for i in given}, "bind"
        )
        found, self.aux = self._specs(graph, shapes, types)
        wants = dict.fromkeys(found, "write")
        order = make_plan(graph, shapes, types, wants, is_train=True).gradient_order()
        self.parameters = {name: found[name] for name in (*order, *found)}
        self._ignored = ignored_parameters(symbol)

    def _specs(self, graph: Graph, shapes: Any, types: Any) -> tuple[Specs, Specs]:
        """What a graph has beside its inputs: parameters, auxiliary states."""

        def of(numbers: Iterable[int]) -> Specs:
            entries = {graph.nodes[i].name: graph.first[i] for i in numbers}
            return {n: (shapes[e], types[e]) for n, e in entries.items() if n not in self._inputs}

        return of(graph.arguments), of(graph.auxiliary)

    def add(self, others: Mapping[Hashable, Any], describe: Callable[[Any], Any] | None) -> None:
        """Add what other buckets (key → symbol) bring.

        ``describe(key)`` gives (data, label) descriptions of a bucket; without it every dim of the inputs but the batch
        counts as unknown, and BucketError names a parameter whose shape does not follow then.
        """
        more: Specs = {}
        for key, symbol in others.items():
            graph = Graph(symbol.heads)
            items = self._open() if describe is None else {
                item.name: tuple(item.shape) for item in Described(*map(tuple, describe(key))).all
            }  # fmt: skip
            names = {node.name for node in graph.nodes if node.op is None}
            held = {**self.parameters, **self.aux, **more}
            given = {**items, **{name: shape for name, (shape, _) in held.items()}}
            kinds = {item.name: item.dtype for item in self._described.all}
            kinds |= {name: kind for name, (_, kind) in held.items()}
            shapes = infer_shapes(graph, {n: s for n, s in given.items() if n in names}, "bind")
            types = infer_types(graph, {n: k for n, k in kinds.items() if n in names}, "bind", np.float32)
            parameters, aux = self._specs(graph, shapes, types)
            self._ignored -= parameters.keys() - ignored_parameters(symbol)
            self._ignored |= ignored_parameters(symbol) - held.keys()
            for name, (shape, _) in (*parameters.items(), *aux.items()):
                if not known(shape):
                    raise BucketError(
                        f"bucket {key!r}: the shape of '{name}' does not follow from the default bucket: let the "
                        "iterator describe its buckets (a method describe(key)), or give Variable(shape=…)"
                    )
            more |= {n: (tuple(shape), kind) for n, (shape, kind) in parameters.items() if n not in self.parameters}
            self.aux |= {n: (tuple(shape), kind) for n, (shape, kind) in aux.items() if n not in self.aux}
        self.parameters |= dict(sorted(more.items()))

    def _open(self) -> dict[str, Any]:
        """The default bucket's inputs with all dims unknown but the batch."""
        return {
            item.name: from_user([dim if i == batch_axis(item) else 0 for i, dim in enumerate(item.shape)])
            for item in self._described.all
        }

    def connect(self, comm: Communicator, store: DeviceStore, max_in_flight: int) -> GradientBuckets:
        """Lay everything out in flat segments of ``store``; the gradient buckets of what is trained; collective."""
        store.parameters = allocate_segment(store.context, "parameter", self.parameters)[1]
        store.aux = allocate_segment(store.context, "aux", self.aux)[1]
        trained = {name: spec for name, spec in self.parameters.items() if name not in self._ignored}
        rest = {name: spec for name, spec in self.parameters.items() if name in self._ignored}
        block, gradients = allocate_segment(store.context, "gradient", trained)
        store.gradients = {**gradients, **allocate_segment(store.context, "gradient", rest)[1]}
        kinds = {np.dtype(kind) for _, kind in trained.values()}
        segments = []
        if len(kinds) == 1 and isinstance(block, np.ndarray):
            kind = kinds.pop()
            segments = [block[: block.size // kind.itemsize * kind.itemsize].view(kind)]
        return GradientBuckets(comm, gradients, segments, max_in_flight)

    def description(self) -> dict[str, object]:
        """What ranks must agree on."""
        return {
            f"{role} '{name}'": f"{tuple(shape)} {np.dtype(kind).name}"
            for role, specs in (("parameter", self.parameters), ("auxiliary state", self.aux))
            for name, (shape, kind) in specs.items()
        }


def describe_nodes(key: Any, symbol: Any) -> dict[str, object]:
    """The graph of a bucket as ranks compare it: one entry a node, operator and attributes by value."""
    bucket = "" if key is None else f" of bucket {key!r}"
    return {
        f"node '{node.name}'{bucket}": f"{node.op!r} of {', '.join(source.output_name(i) for source, i in node.inputs)}"
        for node in Graph(symbol.heads).nodes
        if node.op is not None
    }
