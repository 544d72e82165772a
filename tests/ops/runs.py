"""One operator on given arrays, through the plain interpreter: what the tests of the families share."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from arrayexec.registry import make_op, signature_of
from arrayexec.symbol.graph import Graph, Node, variable
from arrayexec.symbol.infer import infer_shapes, infer_types
from arrayexec.testing import NaiveRun

Array = Any


class Result(NamedTuple):
    """Outputs, gradients of the arguments that were given as floats, auxiliary states afterwards."""

    outputs: list[Array]
    gradients: dict[str, Array]
    aux: dict[str, Array]

    @property
    def out(self) -> Array:
        return self.outputs[0]


def graph_of(operator: str, **attributes: Any) -> Graph:
    """A graph of one node 'node' whose inputs are variables of the arguments' names."""
    op = make_op(operator, attributes)
    signature = signature_of(op)
    node = Node(op, "node", {}, [(variable(name), 0) for name in signature.arguments])
    return Graph([(node, i) for i in range(len(signature.outputs))])


def run(
    operator: str,
    arrays: dict[str, Array],
    heads: list[Array] | Array | None = None,
    aux: dict[str, Array] | None = None,
    train: bool = True,
    first_row: int = 0,
    **attributes: Any,
) -> Result:
    """Forward, and backward if ``heads`` are given, of one operator."""
    naive = NaiveRun(graph_of(operator, **attributes), arrays, aux, train, first_row=first_row)
    outputs = naive.forward()
    gradients = {} if heads is None else naive.backward(heads)
    return Result(outputs, gradients, naive.aux)


def shapes_of(operator: str, given: dict[str, Any], **attributes: Any) -> dict[str, Any]:
    """Inferred shapes of arguments and outputs, by name."""
    graph = graph_of(operator, **attributes)
    found = infer_shapes(graph, given)
    return {graph.entry_name(entry): found[entry] for entry in range(len(found))}


def types_of(operator: str, given: dict[str, Any], **attributes: Any) -> dict[str, Any]:
    """Inferred types of arguments and outputs, by name."""
    graph = graph_of(operator, **attributes)
    found = infer_types(graph, given)
    return {graph.entry_name(entry): found[entry] for entry in range(len(found))}


def uniform(shape: tuple[int, ...], seed: int = 0, dtype: Any = np.float64) -> Array:
    """Values in [-1, 1)."""
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(dtype)


def close(got: Array, wanted: Array, digits: int = 13) -> None:
    """Equal to ``digits`` decimal digits, values near zero to one part in ``10**digits``."""
    np.testing.assert_allclose(got, wanted, rtol=10.0**-digits, atol=10.0**-digits)
