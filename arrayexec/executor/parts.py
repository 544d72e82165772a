"""What an executor is made of: a symbol with known shapes and types, and arrays by name."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from ..context import Context
from ..dims import known
from ..errors import BindError, ShapeError, TypeInferenceError, format_shape, message, near_miss
from ..plan import Keep, Rewrite
from ..registry import Known
from ..symbol.graph import Graph
from ..symbol.infer import infer_shapes, infer_types
from .arena import Arena, InputPool
from .checks import element_type

Array = Any
Spec = tuple[tuple[int, ...], Any]  # shape and type
MAX_DIMS, MAX_BYTES = 64, 2**62  # what an array can have at all


@dataclasses.dataclass(frozen=True)
class Inferred:
    """A symbol whose values all have known shapes and types, which stand here by entry of its graph."""

    symbol: Any
    shapes: Sequence[Any]
    types: Sequence[Any]

    @property
    def graph(self) -> Graph:
        """The symbol's graph."""
        return self.symbol.graph  # type: ignore[no-any-return]

    @functools.cached_property
    def specs(self) -> dict[str, Spec]:
        """Shape and type of every argument and auxiliary state."""
        graph = self.graph
        entries = {graph.nodes[i].name: graph.first[i] for i in (*graph.arguments, *graph.auxiliary)}
        return {name: (self.shapes[entry], self.types[entry]) for name, entry in entries.items()}

    def known(self, number: int) -> Known:
        """What the operator of a node is told of its values."""
        entries = self.graph.values(number)
        signature: Any = self.graph.nodes[number].signature
        return Known(signature, [self.shapes[e] for e in entries], [self.types[e] for e in entries])


@dataclasses.dataclass(frozen=True)
class Placement:
    """Where the nodes of a graph run and their variables lie: ``contexts[0]``, save what is said otherwise.

    ``nodes``: for every node of the graph the number of its context (empty: all on the first).
    """

    contexts: tuple[Context, ...]
    nodes: tuple[int, ...] = ()
    variables: Mapping[str, Context] = dataclasses.field(default_factory=dict)

    def of(self, name: str) -> Context:
        """The context of a variable."""
        return self.variables.get(name, self.contexts[0])

    def enter(self) -> AbstractContextManager[object]:
        """Work inside runs on all contexts, in order with what the caller queues; see `Device.enter`."""
        if len(self.contexts) == 1:
            return self.contexts[0].enter()
        with contextlib.ExitStack() as stack:
            for context in self.contexts:
                stack.enter_context(context.enter())
            return stack.pop_all()


@dataclasses.dataclass(frozen=True)
class Binding:
    """A symbol with its arrays by name, and how it is run. ``pooled`` arguments are views of the ``pool``.

    ``always`` are rewrites of all plans, ``rewrites`` of those that nobody watches. ``keep``: values that can be read
    when a run is done. A gradient without an array lies in the arena; one of ``always`` must put it there.
    """

    inferred: Inferred
    placement: Placement
    grad_req: Mapping[str, str]
    arguments: dict[str, Array]
    gradients: dict[str, Array]
    aux: dict[str, Array]
    arena: Arena
    pool: InputPool | None = None
    pooled: tuple[str, ...] = ()
    rewrites: tuple[Rewrite, ...] = ()
    tier: str = "reference"
    threads: ThreadPoolExecutor | None = None
    keep: Keep = Keep()  # noqa: RUF009
    always: tuple[Rewrite, ...] = ()


def inferred(symbol: Any, shapes: Mapping[str, Any], types: Mapping[str, Any], call: str) -> Inferred:
    """Complete shapes and types of all values from those of variables by name.

    Raises ShapeError, listing the variables whose shape does not follow, and TypeInferenceError.
    """
    graph: Graph = symbol.graph
    found = infer_shapes(graph, shapes, call)
    numbers = {name: element_type(name, kind, call) for name, kind in types.items() if kind is not None}
    variables = {node.name: found[graph.first[i]] for i, node in enumerate(graph.nodes) if node.op is None}
    unknown = [(name, format_shape(shape)) for name, shape in variables.items() if not known(shape)]
    hidden = next((i for i, shape in enumerate(found) if not known(shape)), None)
    if hidden is not None:
        names = ", ".join(f"'{name}'" for name, _ in unknown[:3]) or f"'{graph.entry_name(hidden)}'"
        fact = f"{call}: the shapes given do not say the shape of {names}"
        hint = "give their shapes by keyword, or by Variable(shape=…)"
        raise ShapeError(message(fact, unknown[:12], "unknown shapes", hint))
    kinds = infer_types(graph, numbers, call, np.float32)
    for entry, (shape, kind) in enumerate(zip(found, kinds, strict=True)):
        if kind is None:
            raise TypeInferenceError(f"{call}: nothing says the element type of '{graph.entry_name(entry)}'")
        if len(shape) > MAX_DIMS or math.prod(shape) * kind.itemsize > MAX_BYTES:
            raise ShapeError(
                f"{call}: '{graph.entry_name(entry)}' must have at most {MAX_DIMS} dims and {MAX_BYTES} bytes, "
                f"but it is {kind.name} {format_shape(shape)}"
            )
    return Inferred(symbol, found, kinds)


def placed(symbol: Any, context: Context, group2ctx: Any, call: str) -> Placement:
    """Each node on the context of its ``ctx_group``, nodes without one on ``context``.

    Entries for groups that no node has mean nothing; BindError for a group that has none.
    """
    if group2ctx is None or group2ctx == {}:
        return Placement((context,))
    if not isinstance(group2ctx, Mapping):
        raise BindError(f"{call}: group2ctx must be a dict of contexts by group, but it is {group2ctx!r}")
    for group, other in group2ctx.items():
        if not isinstance(other, Context):
            raise BindError(f"{call}: group2ctx must give a context for '{group}', but it gives {other!r}")
    contexts, nodes, variables = [context], [], {}
    for node in symbol.graph.nodes:
        group = node.attributes.get("__ctx_group__")
        if group is not None and group not in group2ctx:
            raise BindError(
                f"{call}: group2ctx must say where {node.where} of ctx_group '{group}' runs, "
                f"but it has no '{group}'{near_miss(group, group2ctx)}"
            )
        other = context if group is None else group2ctx[group]
        if other not in contexts:
            contexts.append(other)
        nodes.append(contexts.index(other))
        if node.op is None:
            variables[node.name] = other
    return Placement(tuple(contexts), tuple(nodes) if len(contexts) > 1 else (), variables)
