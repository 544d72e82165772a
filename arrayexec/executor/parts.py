"""What an executor is made of: a symbol with known shapes and types, and arrays by name."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from ..context import Context
from ..dims import known
from ..errors import ShapeError, TypeInferenceError, format_shape, message
from ..plan import Rewrite
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
class Binding:
    """A symbol with its arrays by name, and how it is run. ``pooled`` arguments are views of the ``pool``."""

    inferred: Inferred
    context: Context
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
