"""Gradients of a group summed over ranks: one layout for all buckets, one order of messages, the same on every rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..comm.buckets import GradientBuckets
from ..errors import CollectiveError
from ..executor import allocate_segment, inferred
from ..plan import make_plan
from ..symbol.graph import Graph
from .binding import DeviceStore
from .loading import describe

Spec = tuple[tuple[int, ...], Any]


def parameters_of(
    symbol: Any, data: Sequence[Any], labels: Sequence[Any], inputs: set[str]
) -> tuple[dict[str, Spec], dict[str, Spec]]:
    """Shape and type of a symbol's parameters, in the order in which backward finishes them, and of its states."""
    graph = Graph(symbol.heads)
    variables = [graph.nodes[i].name for i in graph.arguments]
    given = {i.name: i for i in map(describe, (*data, *labels)) if i.name in variables}
    shapes, types = inferred(
        graph, {n: tuple(i.shape) for n, i in given.items()}, {n: i.dtype for n, i in given.items()}, "bind"
    )
    entry = {graph.nodes[i].name: graph.first[i] for i in (*graph.arguments, *graph.auxiliary)}
    parameters = [n for n in variables if n not in inputs and n not in given]
    wants = {n: "write" if n in parameters else "null" for n in variables}
    order = make_plan(graph, shapes, types, wants, is_train=True).gradient_order()
    specs = {n: (tuple(shapes[entry[n]]), types[entry[n]]) for n in entry}
    return (
        {n: specs[n] for n in (*order, *(n for n in parameters if n not in order))},
        {graph.nodes[i].name: specs[graph.nodes[i].name] for i in graph.auxiliary},
    )


def ignored_parameters(symbol: Any) -> set[str]:
    """Parameters whose values count for nothing (a fixed gamma): no update, no decay."""
    graph: Graph = symbol.graph
    found: set[str] = set()
    used: set[str] = set()
    for node in graph.nodes:
        if node.op is None or node.signature is None:
            continue
        ignored = set(node.op.ignored() if callable(node.op.ignored) else node.op.ignored)
        for argument, (source, _) in zip(node.signature.inputs, node.inputs, strict=False):
            if source.op is None:
                (found if argument in ignored else used).add(source.name)
    return found - used


def lay_out_parameters(store: DeviceStore, specs: Mapping[str, Spec], aux: Mapping[str, Spec]) -> None:
    """Allocate all parameters, gradients and states of all buckets in flat segments, in the order of ``specs``."""
    store.parameters = allocate_segment(store.context, "parameter", specs)[1]
    store.gradient_block, store.gradients = allocate_segment(store.context, "gradient", specs)
    store.aux = allocate_segment(store.context, "aux", aux)[1]


class GradientSync:
    """Sends every gradient bucket in every step, in one order; a parameter that no rank used is left out of the update."""

    def __init__(self, comm: Any, store: DeviceStore, specs: Mapping[str, Spec], max_in_flight: int = 16) -> None:
        self.comm, self.specs = comm, specs
        kinds = {np.dtype(kind) for _, kind in specs.values()}
        segments = []
        if len(kinds) == 1 and store.gradient_block is not None and isinstance(store.gradient_block, np.ndarray):
            kind = next(iter(kinds))
            block = store.gradient_block
            segments = [block[: block.size // kind.itemsize * kind.itemsize].view(kind)]
        self.buckets = GradientBuckets(comm, store.gradients, segments, max_in_flight)
        self._reduced = False

    @property
    def events(self) -> list[tuple[float, str, int]]:
        """(time, start or done, gradient bucket) of the last step."""
        return self.buckets.events

    def check_backward(self, grad_req: str) -> None:
        """CollectiveError for a backward into gradients that were reduced already (accumulation)."""
        if grad_req == "add" and self._reduced:
            raise CollectiveError(
                "backward would add to gradients that are summed over the ranks already: call zero_grad() after the update"
            )

    def ready(self, name: str) -> None:
        """The gradient of ``name`` is written."""
        if name in self.specs:
            self.buckets.ready(name)

    def finish(self, used: Sequence[str]) -> list[str]:
        """Wait until all gradients are sums over the ranks; the parameters that some rank has used."""
        self._reduced = True
        flags = np.array([name in set(used) for name in self.specs], np.float32)
        self.buckets.finish(list(used))
        self.comm.allreduce(flags)
        return [name for name, count in zip(self.specs, flags, strict=True) if count]

    def zeroed(self) -> None:
        """The gradients hold zeros again."""
        self._reduced = False
