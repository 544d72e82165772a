"""Parts of a parallel model as nets of their own: a net for another device, the net that predicts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from .. import symbol as sym
from ..context import Context, current_context
from ..errors import ArgumentError, ParallelizeError, UnknownNameError, near_miss
from ..symbol import Symbol
from ..symbol.graph import Entry, Node
from .parallel_model import ParallelModel

Array = Any


def convert_net_for_device(net: Symbol, device: Context | None = None) -> Symbol:
    """A copy of a net, with all names behind ``<type>_<id>/``, whose nodes run on ``device`` (None: the current one).

    They have the ``ctx_group`` of that name, for ``bind(…, group2ctx={str(device): device})``.
    """
    if not isinstance(net, Symbol):
        raise ArgumentError(f"convert_net_for_device: the net must be a Symbol, but it is a {type(net).__name__}")
    place = device or current_context()
    prefix, graph, copies = f"{place.device_type}_{place.device_id}/", net.graph, list[Node]()
    for node in graph.nodes:
        inputs = [(copies[graph.index[id(source)]], i) for source, i in node.inputs]
        attributes = {**node.attributes, "__ctx_group__": str(place)}
        copies.append(Node(node.op, prefix + node.name, attributes, inputs, node.source))
    return Symbol([(copies[graph.index[id(node)]], i) for node, i in net.heads])


@dataclasses.dataclass(frozen=True)
class Predictor:
    """A net that predicts, with copies of its parameters and running statistics by name; runs on ``context``."""

    symbol: Symbol
    params: Mapping[str, Array]
    aux: Mapping[str, Array]
    context: Context | None = None

    def __call__(self, context: Context | None = None, **inputs: Array) -> list[Array]:
        """The outputs for these inputs."""
        shapes = {name: tuple(array.shape) for name, array in inputs.items()}
        executor = self.symbol.simple_bind(context or self.context or current_context(), grad_req="null", **shapes)
        executor.copy_params_from(self.params, self.aux)
        return list(executor.forward(**inputs))


def extract_predictor_net(
    model: ParallelModel, inputs: Sequence[str], outputs: Sequence[str], device: Context | None = None
) -> Predictor:
    """The part of the master's net that makes the blobs ``outputs`` from the blobs ``inputs``, to predict with.

    ``device``: where it runs, unless a call says otherwise (None: the context that is current then).

    Names are without prefix. Batch normalisations take their running statistics, dropout does nothing. Raises
    UnknownNameError for blobs that there are not, ParallelizeError if more inputs are needed.
    """
    master, who = model.master, "extract_predictor_net"
    net = master.net
    for name in (*inputs, *outputs):
        if name not in net.blobs:
            raise UnknownNameError(f"{who}: '{model.model.name}' has no blob '{name}'{near_miss(name, net.blobs)}")
    given: dict[Entry, Symbol] = {net.blobs[name].heads[0]: sym.Variable(name) for name in inputs}
    made: dict[int, Symbol] = {}

    def value(entry: Entry) -> Entry:
        return given[entry].heads[0] if entry in given else made[id(entry[0])].heads[entry[1]]

    whole = sym.Group([net.blobs[name] for name in outputs])
    for node in whole.graph.nodes:
        arguments = [value((whole.graph.nodes[whole.graph.index[id(s)]], i)) for s, i in node.inputs]
        names = [source.name for source, _ in node.inputs]
        op: Any = node.op
        form = op.form.name if op is not None else ""
        if form == "elemwise_add" and names[1] in net.taps:
            made[id(node)] = Symbol([arguments[0]])
        elif form == "_normalized":
            data, _, *rest = (Symbol([entry]) for entry in arguments)
            options = {"eps": op.eps, "fix_gamma": False, "use_global_stats": True, "name": node.name}
            made[id(node)] = sym.BatchNorm(data, *rest, **options)
        else:
            copy = Node(node.op, node.name, dict(node.attributes), arguments, node.source)
            made[id(node)] = Symbol([(copy, i) for i in range(max(node.visible, 1))])
    found = sym.Group([Symbol([value(net.blobs[name].heads[0])]) for name in outputs])
    held = {**master.params, **master.computed}
    missing = [name for name in found.list_arguments() if name not in held and name not in inputs]
    if missing:
        raise ParallelizeError(
            f"{who}: {', '.join(map(repr, outputs))} of '{model.model.name}' cannot do without '{missing[0]}', "
            f"which is not among the inputs {list(inputs)}"
        )
    params, aux = (
        {name: held[name].copy() for name in names if name in held}
        for names in (found.list_arguments(), found.list_auxiliary_states())
    )
    return Predictor(found, params, aux, device)
