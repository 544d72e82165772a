"""The net of one device of a parallel model: its arrays in flat segments, its executors, its share of an update."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..context import Context
from ..errors import BlobFreedError, NotBoundError, ParallelizeError, UnknownNameError, near_miss
from ..executor import Arena, Binding, Executor, allocate_segment, inferred, placed, pool_of
from ..plan import Draft, Keep, Plan
from ..plan.build import flow
from ..train.model_helper import Net, Parameter

Array = Any
Specs = Mapping[str, tuple[tuple[int, ...], Any]]


@dataclasses.dataclass(frozen=True)
class Stretch:
    """Parameters that lie side by side and move alike, as bytes ``start`` to ``stop`` of a segment."""

    names: tuple[str, ...]
    start: int
    stop: int
    dtype: np.dtype[Any]
    decays: bool

    def of(self, block: Array) -> Array:
        """The numbers of a segment's block, gaps of alignment among them (zeros)."""
        return block[self.start : self.stop].view(self.dtype)


Piece = tuple[Array, Array, dict[str, Array], bool]


def stretches(params: Mapping[str, Parameter], alignment: int, by_decay: bool) -> list[Stretch]:
    """Cut a segment, laid out by `allocate_segment`, where the type changes (``by_decay``: or whether it decays)."""
    offset, placed_ones = 0, []
    for name, one in params.items():
        kind = np.dtype(one.dtype)
        size = -(-int(np.prod(one.shape, dtype=np.int64)) * kind.itemsize // alignment) * alignment
        placed_ones.append((name, offset, offset + size, kind, one.decays and by_decay))
        offset += size
    found = []
    for (kind, decays), group in itertools.groupby(placed_ones, lambda item: item[3:]):
        items = list(group)
        found.append(Stretch(tuple(i[0] for i in items), items[0][1], items[-1][2], kind, decays))
    return found


def gradient_order(net: Net) -> list[str]:
    """Trained parameters that the losses depend on, in the order in which backward finishes their gradients."""
    graph: Any = net.graph.graph  # type: ignore[union-attr]
    made = {name: place for place, name in enumerate(net.trained) if not net.params[name].sparse}
    _, runs = flow(graph, dict.fromkeys(made, "write"))
    first: dict[str, int] = {}
    for number in reversed(runs):
        for entry in (graph.inputs[number][position] for position in runs[number]):
            first[graph.nodes[graph.owner[entry]].name] = number
    return sorted((name for name in made if name in first), key=lambda name: (-first[name], -made[name]))


def loose_gradients(draft: Draft) -> Draft:
    """Put the gradients of arguments into the arena, where bytes of activations are free by then."""
    for number in draft.gradients.values():
        draft.values[number] = dataclasses.replace(draft.values[number], role="internal")
    return draft


class DeviceNet:
    """Arrays of a device by name: ``params computed gradients states inputs``; ``blocks`` are the flat segments.

    ``lends``: the device whose parameters this one takes as its own. ``loose``: gradients lie in the arena.
    """

    def __init__(
        self, net: Net, context: Context, groups: Mapping[str, Context], scope: str, kept: Sequence[str], loose: bool
    ) -> None:
        self.net, self.context = net, context
        self.placement = placed(net.graph, context, groups, "parallelize")
        self.loose = loose
        self.params: dict[str, Array] = {}
        self.computed: dict[str, Array] = {}
        self.gradients: dict[str, Array] = {}
        self.states: dict[str, Array] = {}
        self._state_of: dict[tuple[str, str], Array] = {}  # by state of the optimizer and parameter
        self.parts: list[dict[str, Array]] = []  # states of the stretches that `Shards` updates
        self.inputs: dict[str, Array] = {}
        self.blocks: dict[str, Array] = {}
        self._monitor: Any = None
        self.set_memory(scope, kept)
        arguments = net.graph.list_arguments()  # type: ignore[union-attr]
        self.wanted = [name for name in arguments if name not in net.params and name not in net.taps]
        """Arguments that come from outside."""

    def set_memory(self, scope: str, kept: Sequence[str]) -> None:
        """Let executors keep what ``scope`` says (see `Keep`) and the blobs ``kept``; new ones are made."""
        needed = [f"d {name}" for name in self.net.trained if self.loose]
        needed += [tap.indices for tap in self.net.taps.values()]
        self.keep = Keep(scope, frozenset((*map(self.value_name, kept), *needed)))
        self.arena = Arena(self.context)
        self._executors: dict[Any, Executor] = {}
        self.executor: Executor | None = None

    def allocate(
        self, trained: Mapping[str, Parameter], lends: DeviceNet | None, share_computed: bool = False, comm: Any = None,
        sharded: bool = False,
    ) -> None:  # fmt: skip
        """Take memory for parameters and gradients; those of ``lends`` are taken over.

        ``comm``: ranks that sum these gradients; those of a host do it where they lie, in memory that they share, with
        ``sharded`` the parameters, too.
        """
        specs = {name: (one.shape, one.dtype) for name, one in trained.items()}
        rest = {n: (p.shape, p.dtype) for n, p in self.net.params.items() if n not in trained and not p.computed}
        computed = {n: (p.shape, p.dtype) for n, p in self.net.params.items() if p.computed}
        device = self.context.device
        shared = comm.allocate if comm is not None and self.context.xp is np and device.allocator is None else None
        if lends is not None:
            self._borrow(lends, {**specs, **rest, **(computed if share_computed else {})})
        else:
            beside = (lambda nbytes, _: shared(nbytes, "gradient")) if shared and sharded and specs else None
            with self.context.allocator(beside or device.allocator):
                self.blocks["parameter"], self.params = allocate_segment(self.context, "parameter", specs)
            self.params |= allocate_segment(self.context, "parameter", rest)[1]
        if not self.computed:
            self.blocks["computed"], self.computed = allocate_segment(self.context, "aux", computed)
        if specs and not self.loose:
            with self.context.allocator(shared or device.allocator):
                self.blocks["gradient"], self.gradients = allocate_segment(self.context, "gradient", specs)
        for name, one in self.net.states.items():
            self.states |= allocate_segment(self.context, "state", {name: (one.shape, one.dtype)})[1]

    def _borrow(self, lender: DeviceNet, specs: Specs) -> None:
        held = {**lender.params, **lender.computed}
        for name, (shape, _) in specs.items():
            if name not in held or tuple(held[name].shape) != tuple(shape):
                there = f"is {tuple(held[name].shape)}" if name in held else "is not there" + near_miss(name, held)
                raise ParallelizeError(
                    f"parallelize: '{self.net.prefix}/{name}' {tuple(shape)} is to be shared, "
                    f"but in the other model it {there}"
                )
        self.params = {name: lender.params[name] for name in specs if name in lender.params}
        self.computed = {name: lender.computed[name] for name in specs if name in lender.computed}
        self.blocks = {kind: lender.blocks[kind] for kind in ("parameter",) if kind in lender.blocks}

    def add_state(self, name: str, suffix: str, trained: Mapping[str, Parameter]) -> None:
        """Take memory for a state of the optimizer: zeros for every trained parameter."""
        specs = {param: (one.shape, one.dtype) for param, one in trained.items()}
        self.blocks[name], views = allocate_segment(self.context, "state", specs)
        tables = {table: (one.shape, one.dtype) for table, one in self.net.params.items() if one.sparse}
        views |= allocate_segment(self.context, "state", tables)[1] if tables else {}
        self.states |= {f"{param}{suffix}": view for param, view in views.items()}
        self._state_of |= {(name, param): view for param, view in views.items()}

    def gradient_parts(self, cuts: Iterable[Stretch]) -> list[Array]:
        """All gradients, in as few arrays as they lie in."""
        if self.loose:
            return [self.gradient(name) for cut in cuts for name in cut.names]
        return [cut.of(self.blocks["gradient"]) for cut in cuts]

    def pieces(self, cuts: Iterable[Stretch], states: Iterable[str]) -> Iterator[Piece]:
        """Flat (parameter, gradient, states, whether it decays) of what an update moves alike."""
        for one in cuts:
            held = {name: one.of(self.blocks[name]) for name in states}
            if not self.loose:
                yield one.of(self.blocks["parameter"]), one.of(self.blocks["gradient"]), held, one.decays
                continue
            for name in one.names:
                mine = {state: self._state_of[state, name].reshape(-1) for state in held}
                yield self.params[name].reshape(-1), self.gradient(name).reshape(-1), mine, one.decays

    def state_of(self, state: str, param: str) -> Array:
        """A state of the optimizer of a parameter."""
        return self._state_of[state, param]

    def gradient(self, name: str) -> Array:
        """The gradient of a trained parameter, where it lies now."""
        return self.gradients[name] if not self.loose else self.executor.value(f"d {name}")  # type: ignore[union-attr]

    def bind(self, given: Specs, trained: Iterable[str], trains: bool, adds: bool = False) -> Executor:
        """The executor for inputs of these shapes and types: made when first needed. ``adds`` to gradients or not."""
        key = (adds, *((name, tuple(shape), str(kind)) for name, (shape, kind) in given.items()))
        if key not in self._executors:
            known = {**self.params, **self.computed}
            graph: Any = self.net.graph
            names, states = graph.list_arguments(), graph.list_auxiliary_states()
            held = {name: known[name] for name in names if name in known}
            shapes: Any = {name: tuple(array.shape) for name, array in known.items() if name in held or name in states}
            kinds = {name: array.dtype for name, array in known.items() if name in shapes}
            found = inferred(
                graph, shapes | {n: s for n, (s, _) in given.items()}, kinds | {n: k for n, (_, k) in given.items()},
                "parallelize",
            )  # fmt: skip
            mine = set(trained) if trains else set()
            taps = {name: found.specs[name] for name in self.net.taps}
            kind = "add" if adds else "write"
            requests = {name: kind if name in mine or name in taps else "null" for name in names}
            gradients = dict(self.gradients) if trains else {}
            for role, arrays in (("input", held), ("gradient", gradients)):
                arrays |= {name: self.context.zeros(*spec, role) for name, spec in taps.items()}
            pooled = tuple(name for name in names if name in given)
            self._executors[key] = Executor(
                Binding(
                    found, self.placement, requests, held, gradients,
                    {name: known[name] for name in states}, self.arena, pool_of(self.inputs, self.context), pooled,
                    keep=self.keep, always=(loose_gradients,) if self.loose else (),
                )
            )  # fmt: skip
            self._install(self._executors[key])
        self.executor, self._mode = self._executors[key], "train" if trains else "inference"
        self.executor.bind_inputs()
        self.arena.reserve(self.executor.arena_needs(self._mode))
        return self.executor

    def watch(self, monitor: Any) -> None:
        """Let a monitor watch all executors, present and future."""
        self._monitor = monitor
        for executor in self._executors.values():
            self._install(executor)

    def _install(self, executor: Executor) -> None:
        if self._monitor is not None:
            self._monitor.install(executor, self.net.prefix)

    def plan(self) -> Plan:
        """The plan of the last step."""
        if self.executor is None:
            raise NotBoundError(f"plan: the shapes of the inputs of '{self.net.prefix}' are not known yet: run a step")
        return self.executor.plan(self._mode)

    def specs(self) -> dict[str, tuple[tuple[int, ...], Any]] | None:
        """Shapes and types of the inputs of the last step; None before any."""
        if self.executor is None:
            return None
        return {name: (tuple(a.shape), a.dtype) for name, a in self.executor.arg_dict.items() if name in self.wanted}

    def blob(self, name: str) -> Array:
        """The array of a blob by name. Raises UnknownNameError, and BlobFreedError where its bytes were used again."""
        for held in (self.params, self.computed, self.states):
            if name in held:
                return held[name]
        base = name.removesuffix("_grad")
        if base in self.gradients and name.endswith("_grad"):
            return self.gradients[base]
        if base in self.net.taps and self.executor is not None:
            return self.executor.grad_dict[base]
        if name in self.net.inputs or name in self.wanted:
            found = self.executor.arg_dict.get(name) if self.executor is not None else None
        else:
            found = self.executor.value(self.value_name(name)) if self.executor is not None else None
            self.check_known(name)
        if self.executor is None:
            raise NotBoundError(f"blob '{self.net.prefix}/{name}' is not there before the first step")
        if found is None:
            raise BlobFreedError(
                f"blob '{self.net.prefix}/{name}' was freed: its bytes were used again\n"
                f"  to keep it: blobs_to_keep=['{name}']"
            )
        return found

    def check_known(self, name: str) -> None:
        """UnknownNameError for a name that is no blob of the device."""
        known = [*self.net.blobs, *self.net.values, *self.net.params, *self.states]
        if name not in known and name.removesuffix("_grad") not in known:
            raise UnknownNameError(f"{self.net.prefix}: there is no blob '{name}'{near_miss(name, known)}")

    def value_name(self, name: str) -> str:
        """The name in the plan of a blob that forward or backward makes."""
        if name in self.net.values:
            return self.net.values[name]
        blobs = self.net.blobs
        if name not in blobs and name.endswith("_grad"):
            return f"d {self.value_name(name.removesuffix('_grad'))}"
        if name not in blobs:
            return name
        node, place = blobs[name].heads[0]
        return node.output_name(place)

    def nbytes(self) -> dict[str, int]:
        """Bytes by role: parameter, computed, gradient, state, input, arena."""
        return {
            "parameter": sum(array.nbytes for array in self.params.values()),
            "computed": sum(array.nbytes for array in self.computed.values()),
            "gradient": sum(array.nbytes for array in self.gradients.values()),
            "state": sum(array.nbytes for held in (self.states, *self.parts) for array in held.values()),
            "input": sum(array.nbytes for array in self.inputs.values()),
            "arena": self.plan().arena_bytes,
        }
