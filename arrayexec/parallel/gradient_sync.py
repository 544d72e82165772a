"""Gradients of a group summed over ranks: one layout for all buckets, one order of messages, the same on every rank."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from ..comm import Communicator, GradientBuckets
from ..context import context_of
from ..dims import from_user, known
from ..errors import BucketError, CollectiveError
from ..executor import Inferred, allocate_segment, inferred, note_write
from ..plan import make_plan
from ..symbol.graph import Graph
from ..symbol.infer import infer_shapes, infer_types
from ..train.io import DataDesc
from ..train.optimizer import Optimizer, get_updater
from .binding import DeviceStore, ignored_parameters
from .loading import Described, batch_axis

Spec = tuple[tuple[int, ...], Any]
Specs = dict[str, Spec]


class Layout:
    """Shape and type of all parameters and auxiliary states of all announced buckets, in one order.

    The default bucket's parameters stand in the order in which backward finishes them, the rest after them by name.
    ``inputs``: arguments that are no parameters anywhere.
    """

    def __init__(self, symbol: Any, described: Described, inputs: set[str]) -> None:
        self._inputs, self._described = inputs, described
        arguments = set(symbol.list_arguments())
        given = [item for item in described.all if item.name in arguments]
        found = inferred(symbol, {i.name: tuple(i.shape) for i in given}, {i.name: i.dtype for i in given}, "bind")
        parameters, self.aux = self._split(found, described)
        wants = dict.fromkeys(parameters, "write")
        order = make_plan(found.graph, found.shapes, found.types, wants, is_train=True).gradient_order()
        self._first = {name: parameters[name] for name in (*order, *parameters)}
        self._rest: Specs = {}
        self.ignored = ignored_parameters(symbol)
        """Parameters whose values count for nothing in any bucket."""

    @property
    def parameters(self) -> Specs:
        """Shape and type of every parameter, in the order of the layout."""
        return {**self._first, **dict(sorted(self._rest.items()))}

    def _split(self, found: Inferred, described: Described) -> tuple[Specs, Specs]:
        """What a symbol has beside its inputs: parameters, auxiliary states."""
        inputs, states = self._inputs | {item.name for item in described.all}, set(found.symbol.list_auxiliary_states())
        mine = {name: spec for name, spec in found.specs.items() if name not in inputs}
        return {n: s for n, s in mine.items() if n not in states}, {n: s for n, s in mine.items() if n in states}

    def add(self, key: Any, symbol: Any, described: Described | None) -> None:
        """Add what another bucket brings. BucketError names a parameter whose shape does not follow.

        Where nobody describes the bucket, its inputs count as those of the default one with all dims unknown but the
        batch.
        """
        graph: Graph = symbol.graph
        known_inputs = described is not None
        described = described or self._described
        held = {**self._first, **self._rest, **self.aux}
        given = {item.name: (item.shape if known_inputs else _open(item), item.dtype) for item in described.all} | held
        given = {node.name: given[node.name] for node in graph.nodes if node.op is None and node.name in given}
        shapes = infer_shapes(graph, {name: shape for name, (shape, _) in given.items()}, "bind")
        types = infer_types(graph, {name: kind for name, (_, kind) in given.items()}, "bind", np.float32)
        parameters, aux = self._split(Inferred(symbol, shapes, types), described)
        ignored = ignored_parameters(symbol)
        self.ignored = (self.ignored - (parameters.keys() - ignored)) | (ignored - held.keys())
        for found, mine in ((parameters, self._rest), (aux, self.aux)):
            for name, (shape, kind) in found.items():
                if not known(shape):
                    raise BucketError(
                        f"bucket {key!r}: the shape of '{name}' does not follow from the default bucket: let the "
                        "iterator describe its buckets (a method describe(key)), or give Variable(shape=…)"
                    )
                if name not in held:
                    mine[name] = (tuple(shape), kind)

    def connect(self, comm: Communicator, store: DeviceStore, **options: Any) -> GradientBuckets:
        """Lay everything out in flat segments of ``store``; the gradient buckets of what is trained; collective.

        ``options``: those of `GradientBuckets`.
        """
        store.parameters = allocate_segment(store.context, "parameter", self.parameters)[1]
        store.aux = allocate_segment(store.context, "aux", self.aux)[1]
        parameters = self.parameters
        trained = {name: spec for name, spec in parameters.items() if name not in self.ignored}
        rest = {name: spec for name, spec in parameters.items() if name in self.ignored}
        device = store.context.device
        shared = store.context.xp is np and device.allocator is None  # else as the user has it
        with store.context.allocator(comm.allocate if shared else device.allocator):
            block, gradients = allocate_segment(store.context, "gradient", trained)
        store.gradients = {**gradients, **allocate_segment(store.context, "gradient", rest)[1]}
        kinds = {np.dtype(kind) for _, kind in trained.values()}
        segments = []
        if len(kinds) == 1:
            kind = kinds.pop()
            segments = [block[: block.size // kind.itemsize * kind.itemsize].view(kind)]
        return GradientBuckets(comm, gradients, segments, **options)

    def agree(self, comm: Communicator, graphs: Mapping[Any, Any], options: Mapping[str, object]) -> None:
        """Raise PlanMismatchError on all ranks unless they have the same layout, symbols of buckets and ``options``."""
        description = {**self.description(), **options}
        for key, graph in graphs.items():
            description |= describe_nodes(key, graph)
        comm.agree(description, "the model and its training")

    def description(self) -> dict[str, object]:
        """What ranks must agree on: all but the number of rows."""
        inputs: dict[str, object] = {}
        for item in self._described.all:
            dims = ["rows" if i == batch_axis(item) else str(dim) for i, dim in enumerate(item.shape)]
            inputs[f"input '{item.name}'"] = f"({', '.join(dims)}) {item.dtype.name}"
        return inputs | {
            f"{role} '{name}'": f"{tuple(shape)} {np.dtype(kind).name}"
            for role, specs in (("parameter", self.parameters), ("auxiliary state", self.aux))
            for name, (shape, kind) in specs.items()
        }


def _open(desc: DataDesc) -> Any:
    """The shape of an input with all dims unknown but the batch."""
    return from_user([dim if i == batch_axis(desc) else 0 for i, dim in enumerate(desc.shape)])


def describe_nodes(key: Any, symbol: Any) -> dict[str, object]:
    """The graph of a bucket as ranks compare it: one entry a node, operator and attributes by value."""
    bucket = "" if key is None else f" of bucket {key!r}"
    return {
        f"node '{node.name}'{bucket}": f"{node.op!r} of {', '.join(source.output_name(i) for source, i in node.inputs)}"
        for node in symbol.graph.nodes
        if node.op is not None
    }


def describe_updater(updater: Any) -> dict[str, object]:
    """The simple options of an updater or its optimizer, as ranks compare them."""
    options = getattr(getattr(updater, "optimizer", updater), "__dict__", {})
    return {name: held for name, held in sorted(options.items()) if held is None or isinstance(held, int | float | str)}


class ShardedUpdate:
    """Each rank of a host updates its parts of the parameters, with the state of these parts alone (ZeRO-1).

    ``buckets`` must be ``sharded``, ``parameters`` lie in a shared segment. ``optimizer`` works element by element;
    its state is kept by number of a piece, see ``pieces``. Making one is a collective call.
    """

    def __init__(
        self, comm: Communicator, buckets: GradientBuckets, gradients: Mapping[str, Any],
        parameters: Mapping[str, Any], optimizer: Optimizer,
    ) -> None:  # fmt: skip
        outside = next((name for name in gradients if comm.size > 1 and comm.place(parameters[name]) is None), None)
        if outside is not None:
            raise CollectiveError(f"ShardedUpdate: parameter '{outside}' must lie in a shared segment, but it does not")
        if not optimizer.elementwise or optimizer.clip_global_norm is not None:
            raise CollectiveError(
                "ShardedUpdate: the optimizer must move each element by its own gradient, but "
                f"{type(optimizer).__name__} needs lengths of whole parameters or gradients"
            )
        self._comm, self._parameters, self._updater = comm, parameters, get_updater(optimizer)
        self.pieces = list(buckets.owned())
        """Names and stretches of what this rank updates."""
        optimizer.idx2name |= {key: piece.name for key, piece in enumerate(self.pieces)}
        self._arrays = [
            (p.name, *(arrays[p.name].reshape(-1)[p.start : p.stop] for arrays in (gradients, parameters)))
            for p in self.pieces
        ]

    def __call__(self, used: Collection[str]) -> None:
        """Update the parameters ``used``, as `GradientBuckets.finish` gives them, on all ranks; collective."""
        mine = [(key, *arrays) for key, (name, *arrays) in enumerate(self._arrays) if name in used]
        if mine:
            keys, gradients, parameters = zip(*mine, strict=True)
            self._updater.update_all(keys, gradients, parameters)
            for parameter in parameters:
                self._comm.spread(parameter)
        self._comm.barrier()
        for name in used:
            note_write(self._parameters[name], "the update")


class LocalSteps:
    """Local SGD: after every ``every`` steps parameters become their means over ranks; in between nothing is sent.

    ``block(name, mean)`` may then change the mean in place, as block momentum does: the same on every rank.
    """

    def __init__(
        self, comm: Communicator, parameters: Mapping[str, Any], segments: Sequence[Any] = (), every: int = 1,
        block: Callable[[str, Any], None] | None = None,
    ) -> None:  # fmt: skip
        self._buckets = GradientBuckets(comm, parameters, segments)
        self._parameters, self._every, self._block, self._ranks = dict(parameters), every, block, comm.size
        self._steps = 0

    def step(self) -> bool:
        """Count a step; whether parameters were averaged after it."""
        self._steps += 1
        if self._steps % self._every:
            return False
        self._buckets.finish(self._parameters)
        for name, parameter in self._parameters.items():
            with context_of(parameter).enter():
                parameter *= 1 / self._ranks
                if self._block is not None:
                    self._block(name, parameter)
        return True
