"""Gradients of a group summed over ranks: one layout for all buckets, one order of messages, the same on every rank."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

import numpy as np

from ..comm import Communicator, GradientBuckets
from ..comm.base import Request
from ..dims import from_user, known
from ..errors import BucketError
from ..executor import allocate_segment, inferred
from ..plan import make_plan
from ..symbol.graph import Graph
from ..symbol.infer import infer_shapes, infer_types
from .binding import DeviceStore
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

    def allocate(self, store: DeviceStore) -> Any:
        """Lay everything out in flat segments of ``store``; the block of the gradients."""
        store.parameters = allocate_segment(store.context, "parameter", self.parameters)[1]
        store.aux = allocate_segment(store.context, "aux", self.aux)[1]
        block, store.gradients = allocate_segment(store.context, "gradient", self.parameters)
        return block

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


class GradientSync:
    """Sums gradients over ranks. Every gradient bucket is sent in every step, in one order.

    A parameter that no rank has used contributes zeros and is left out of the update.
    """

    def __init__(self, comm: Communicator, layout: Layout, store: DeviceStore, max_in_flight: int = 16) -> None:
        self._comm, self._order = comm, dict(layout.parameters)
        block = layout.allocate(store)
        kinds = {np.dtype(kind) for _, kind in layout.parameters.values()}
        segments = []
        if len(kinds) == 1 and isinstance(block, np.ndarray):
            kind = kinds.pop()
            segments = [block[: block.size // kind.itemsize * kind.itemsize].view(kind)]
        self._buckets = GradientBuckets(comm, store.gradients, segments, max_in_flight)
        self._flags = np.zeros(len(self._order), np.float32)
        self._request: Request | None = None
        self._used: set[str] = set()

    @property
    def events(self) -> list[tuple[float, str, int]]:
        """(time, start or done, gradient bucket) of the last step."""
        return self._buckets.events

    def expect(self, used: Iterable[str]) -> None:
        """Name the parameters that this rank uses in this step."""
        self._used = set(used)

    def ready(self, name: str) -> None:
        """The gradient of ``name`` is written; full gradient buckets start on their way."""
        self._start()
        if name in self._order:
            self._buckets.ready(name)

    def finish(self) -> list[str]:
        """Wait until all gradients are sums over the ranks; the parameters that some rank has used."""
        request = self._start()
        self._buckets.finish(self._used)
        request.wait()
        self._request = None
        return [name for name, count in zip(self._order, self._flags, strict=True) if count]

    def _start(self) -> Request:
        if self._request is None:
            self._flags[:] = [name in self._used for name in self._order]
            self._request = self._comm.start_allreduce(self._flags, "the parameters in use")
        return self._request
