"""A net under construction: Symbols with names, parameters with initialisers, inputs; one net a device."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from .. import symbol as sym
from ..context import Context
from ..errors import ArgumentError, ParallelizeError, UnknownNameError, near_miss
from ..symbol import Symbol
from ..symbol.attribute import AttrScope
from ..symbol.naming import NameManager
from . import model_layers, model_optimizer
from .initializer import Initializer, Zero

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Parameter:
    """What a net needs to know of a parameter. ``computed`` ones (running statistics) are moved by forward."""

    shape: Shape
    dtype: Any
    initializer: Initializer
    computed: bool = False
    decays: bool = False
    sparse: bool = False


@dataclasses.dataclass(frozen=True)
class Input:
    """A blob that comes from outside: fed, or read from ``source`` (a reader, and the place in what it gives)."""

    shape: Shape | None
    dtype: Any
    source: tuple[Reader, int] | None = None


class Reader:
    """Batches for all devices: each takes the next one. ``batches``: an iterable of tuples of arrays, or a DataIter.

    A finished iterator raises StopIteration where a batch is asked for; ``reset`` begins anew, where the source can.
    """

    def __init__(self, batches: Any) -> None:
        self.batches = batches
        self._lock = threading.Lock()
        self._iterator = iter(batches)

    def next(self) -> Sequence[Any]:
        """The arrays of the next batch; data, then labels."""
        with self._lock:
            batch = next(self._iterator)
        return (*batch.data, *(batch.label or ())) if hasattr(batch, "data") else tuple(batch)

    def reset(self) -> None:
        """Begin anew."""
        with self._lock:
            if hasattr(self.batches, "reset"):
                self.batches.reset()
            self._iterator = iter(self.batches)


@dataclasses.dataclass(frozen=True)
class Tap:
    """Where the gradient of rows of a table arrives: that of the argument ``name``, zeros that are added to them."""

    name: str
    table: str
    indices: str


@dataclasses.dataclass
class Net:
    """The part of a model that one device holds. Names are those of the device: without its prefix.

    ``values``: where a blob is no output of a node of its name, the name of its value in the plan. ``updates``: new
    values by the parameter or state that they are assigned to.
    """

    prefix: str
    blobs: dict[str, Symbol] = dataclasses.field(default_factory=dict)
    params: dict[str, Parameter] = dataclasses.field(default_factory=dict)
    inputs: dict[str, Input] = dataclasses.field(default_factory=dict)
    values: dict[str, str] = dataclasses.field(default_factory=dict)
    losses: list[Symbol] = dataclasses.field(default_factory=list)
    states: dict[str, Parameter] = dataclasses.field(default_factory=dict)
    taps: dict[str, Tap] = dataclasses.field(default_factory=dict)
    updates: dict[str, Symbol] = dataclasses.field(default_factory=dict)
    after_init: dict[str, Symbol] = dataclasses.field(default_factory=dict)
    graph: Symbol | None = None

    @property
    def trained(self) -> list[str]:
        """Parameters that are no computed ones, in the order in which they were made."""
        return [name for name, one in self.params.items() if not one.computed]

    @property
    def sparse(self) -> list[str]:
        """Parameters whose gradients are rows."""
        return [name for name, one in self.params.items() if one.sparse]

    @property
    def computed(self) -> list[str]:
        """Computed parameters."""
        return [name for name, one in self.params.items() if one.computed]

    def take_common(self, common: Net) -> None:
        """Count what was made outside all devices to this one: parameters that its graph may use."""
        for name, one in common.params.items():
            self.params.setdefault(name, one)
            self.blobs.setdefault(name, common.blobs[name])

    def close(self, losses: Sequence[Symbol]) -> None:
        """Make the graph: the losses, then what nobody uses, through which no gradient flows."""
        self.losses = list(losses)
        heads = {loss.heads[0] for loss in self.losses}
        made = sym.Group([*self.losses, *self.blobs.values()])
        used = {entry for node in made.graph.nodes for entry in node.inputs} | heads
        ends = [s for s in self.blobs.values() if s.heads[0][0].op is not None and s.heads[0] not in used]
        blind = [sym.BlockGrad(one, name=f"{one.name}_end") for one in ends]
        self.graph = sym.Group([*self.losses, *blind])
        for node in self.graph.graph.nodes:
            self.blobs.setdefault(node.name, Symbol([(node, 0)]))


class ModelHelper:
    """A net under construction; `parallelize` has it built once a device.

    Layers (`fc conv spatial_bn max_pool average_pool relu tanh sigmoid softmax dropout lstm gather add concat flatten
    scale stop_gradient label_cross_entropy softmax_with_loss averaged_loss accuracy`) take Symbols or names of blobs
    and give Symbols; `build_sgd build_adam build_adagrad build_rms_prop add_weight_decay` say how parameters move.
    ``shares``: a model that was parallelized before, whose parameters this one has (a test model).
    ``init_params=False``: parameters begin as zeros, to be set or loaded.
    Attributes: ``nets`` (by prefix such as ``cpu_0``), ``optimizer``, ``param_to_grad`` and ``blobs`` of the current
    scope.
    """

    def __init__(self, name: str = "model", init_params: bool = True, shares: ModelHelper | None = None) -> None:
        self.name, self.init_params, self.shares = name, init_params, shares
        self.nets: dict[str, Net] = {}
        self.optimizer: Any = None
        self.weight_decay: float | None = None
        self.combines_spatial_bn = self.trains = False
        self.groups: dict[str, Context] = {}
        """Contexts of device scopes, by the group of the nodes that were made in them."""
        self.parallel: Any = None
        """The `ParallelModel` that `parallelize` made of this model."""
        self.common = Net("")  # what is made outside all devices
        self._net = self.common
        self._scopes: list[str] = []
        self._readers: dict[int, Reader] = {}  # by id of what was given, which they keep
        self.rates: dict[str, Callable[[int], float]] = {}
        """Learning rates of updates that are written by hand: policies by the name of their blob."""
        self.schedules: dict[str, str] = {}
        """The same in words, as ranks compare them."""

    # --- scopes ------------------------------------------------------------------------------------------------

    @property
    def scope(self) -> str:
        """The prefix of a blob made now: ``cpu_0/``, ``cpu_0/block1/``."""
        return "".join(f"{part}/" for part in (self._net.prefix, *self._scopes) if part)

    @property
    def device(self) -> int | None:
        """Number of the device whose net is being built."""
        return int(self._net.prefix.rpartition("_")[2]) if self._net.prefix else None

    @contextlib.contextmanager
    def name_scope(self, name: str) -> Iterator[None]:
        """Names made inside begin with ``name/``."""
        self._scopes.append(name)
        try:
            yield
        finally:
            self._scopes.pop()

    @contextlib.contextmanager
    def device_scope(self, context: Context) -> Iterator[None]:
        """What is made inside runs on ``context`` instead of the device of the net (model parallelism)."""
        self.groups[str(context)] = context
        with AttrScope(ctx_group=str(context)):
            yield

    @contextlib.contextmanager
    def on(self, net: Net) -> Iterator[None]:
        """Build the net of a device inside; names that nobody gave count from 0 in each."""
        before, self._net = self._net, net
        try:
            with NameManager():
                yield
        finally:
            self._net = before

    @property
    def in_scope(self) -> str:
        """The name scope that is open now, without that of a device."""
        return "/".join(self._scopes)

    def local(self, name: str) -> str:
        """A name inside the open name scope, without the prefix of the device."""
        return "/".join((*self._scopes, name))

    # --- blobs -------------------------------------------------------------------------------------------------

    @property
    def blobs(self) -> Mapping[str, Symbol]:
        """Blobs of the device whose net is being built, by name without its prefix."""
        return self._net.blobs

    def blob(self, blob: Any) -> Symbol:
        """The Symbol of a blob: itself, or that of a name on this device. A name that nobody made is an input."""
        if isinstance(blob, Symbol):
            return blob
        if not isinstance(blob, str):
            raise ArgumentError(
                f"model '{self.name}': a blob must be a Symbol or a name, but it is a {type(blob).__name__}"
            )
        for name in (self.local(blob), blob, blob.removeprefix(self.scope)):
            if name in self._net.blobs:
                return self._net.blobs[name]
        return self.common.blobs[blob] if blob in self.common.blobs else self.input(blob)

    def make(self, op: str, blob_out: str, *inputs: Any, **options: Any) -> Symbol:
        """Apply an operator; ``inputs`` are blobs, and the output is the blob ``blob_out``."""
        name = self.local(blob_out)
        found: Symbol = getattr(sym, op)(*map(self.blob, inputs), name=name, **options)
        self._net.blobs[name] = found[0]
        return found[0]

    def name_value(self, blob: str, made: Symbol, output: str) -> None:
        """Let ``blob`` name another output, hidden ones too, of the node that made a Symbol."""
        self._net.values[self.local(blob)] = f"{made.heads[0][0].name}_{output}"

    def tap(self, rows: Symbol, table: str, indices: Any, blob_out: str) -> Symbol:
        """Rows of a sparse table as the blob ``blob_out``, whose gradient is that of the table by rows."""
        name = self.local(f"{blob_out}_rows")
        source = self.blob(indices).heads[0]
        self._net.taps[name] = Tap(name, self.local(table), source[0].output_name(source[1]))
        return self.make("elemwise_add", blob_out, rows, sym.Variable(name))

    def input(self, name: str, shape: Shape | None = None, dtype: Any = "float32") -> Symbol:
        """A blob that is fed: `ParallelModel.feed`. ``shape``: that of a device's part, if it is known before."""
        return self._add_input(name, Input(shape, dtype))

    def read(self, batches: Any, names: Sequence[str], dtypes: Sequence[Any] = ()) -> list[Symbol]:
        """Blobs that ``batches`` fill, a `Reader` or what one is made of, which all devices share.

        Each device takes a batch of its own, in the order of the devices.
        """
        if id(batches) not in self._readers:
            self._readers[id(batches)] = batches if isinstance(batches, Reader) else Reader(batches)
        reader = self._readers[id(batches)]
        kinds = [*dtypes, *["float32"] * (len(names) - len(dtypes))]
        pairs = zip(names, kinds, strict=True)
        return [self._add_input(name, Input(None, kind, (reader, i))) for i, (name, kind) in enumerate(pairs)]

    def _add_input(self, name: str, given: Input) -> Symbol:
        found = sym.Variable(name, dtype=given.dtype)
        self._net.inputs[name], self._net.blobs[name] = given, found
        return found

    # --- parameters --------------------------------------------------------------------------------------------

    def create_param(
        self, name: str, shape: Sequence[int], initializer: Initializer | None = None, dtype: Any = "float32", *,
        computed: bool = False, decays: bool = False, sparse: bool = False,
    ) -> Symbol:  # fmt: skip
        """A parameter of the device. ``decays``: weight decay counts for it; ``sparse``: its gradient is one of rows.

        Raises ParallelizeError for a name that is a parameter already.
        """
        local = self.local(name)
        if local in self._net.params:
            raise ParallelizeError(
                f"model '{self.name}': the parameter '{self.scope}{name}' is made twice; take the first one with "
                f"param('{name}') to share it"
            )
        dims = tuple(int(dim) for dim in shape)
        self._net.params[local] = Parameter(dims, dtype, initializer or Zero(), computed, decays, sparse)
        found = self._net.blobs[local] = sym.Variable(local, shape=dims, dtype=dtype)
        return found

    def param(self, name: str) -> Symbol:
        """A parameter that was made before, to be shared. Raises UnknownNameError."""
        for net, local in ((self._net, self.local(name)), (self._net, name), (self.common, name)):
            if local in net.params:
                return net.blobs[local]
        near = near_miss(name, self._net.params)
        raise UnknownNameError(f"model '{self.name}': there is no parameter '{name}'{near}")

    def get_params(self) -> list[Symbol]:
        """Parameters of the device that are trained, in the order in which they were made."""
        return [self._net.blobs[name] for name in self._net.trained]

    def get_computed_params(self) -> list[Symbol]:
        """Computed parameters of the device."""
        return [self._net.blobs[name] for name in self._net.computed]

    # --- updates by hand ---------------------------------------------------------------------------------------

    @property
    def param_to_grad(self) -> Mapping[str, Symbol]:
        """The gradient of every trained parameter of the device by name, for `assign`; reduced when it is read."""
        return {name: sym.Variable(f"{name}_grad") for name in self._net.trained}

    def learning_rate(self, base_learning_rate: float, policy: str = "fixed", **options: Any) -> Symbol:
        """A blob (1,) that follows a policy; options as those of `build_sgd`."""
        words = f"{base_learning_rate} {policy} {sorted(options.items())}"
        name, short, count = "", f"learning_rate_{base_learning_rate}_{policy}", itertools.count(1)
        while not name or self.schedules.setdefault(name, words) != words:  # others differ in options
            name = f"{short}_{next(count)}" if name else short
        self.rates[name] = model_optimizer.policy(base_learning_rate, policy, **options)
        return sym.Variable(name, shape=(1,))

    def state(self, name: str, like: Symbol, initializer: Initializer | None = None) -> Symbol:
        """A blob of the shape of a parameter that `assign` moves, such as a momentum."""
        shape = self._net.params[like.name or ""].shape
        self._net.states[name] = Parameter(shape, "float32", initializer or Zero())
        return sym.Variable(name, shape=shape)

    def weighted_sum(self, *pairs: Any) -> Symbol:
        """``x0 · w0 + x1 · w1 + …`` of blobs and their weights, which are numbers or blobs (1,)."""
        terms = []
        for blob, weight in zip(pairs[::2], pairs[1::2], strict=True):
            if isinstance(weight, Symbol):
                flat = sym.broadcast_mul(sym.Reshape(self.blob(blob), shape=(-1,)), weight)
                terms.append(sym.reshape_like(flat, self.blob(blob)))
            else:
                terms.append(self.blob(blob) * float(weight) if weight != 1 else self.blob(blob))
        total: Symbol = sym.add_n(*terms)
        return total

    def assign(self, target: Symbol, value: Symbol) -> None:
        """Let every step end with ``target``, a parameter or `state`, becoming ``value``; all values are old ones."""
        self._net.updates[target.name or ""] = value

    # --- layers and optimizers ---------------------------------------------------------------------------------

    fc, conv, spatial_bn = model_layers.fc, model_layers.conv, model_layers.spatial_bn
    max_pool, average_pool = model_layers.max_pool, model_layers.average_pool
    relu, tanh, sigmoid, dropout = model_layers.relu, model_layers.tanh, model_layers.sigmoid, model_layers.dropout
    add, concat, flatten, scale = model_layers.add, model_layers.concat, model_layers.flatten, model_layers.scale
    gather, lstm, stop_gradient = model_layers.gather, model_layers.lstm, model_layers.stop_gradient
    softmax, softmax_with_loss = model_layers.softmax, model_layers.softmax_with_loss
    label_cross_entropy, averaged_loss = model_layers.label_cross_entropy, model_layers.averaged_loss
    accuracy = model_layers.accuracy
    build_sgd, build_adam = model_optimizer.build_sgd, model_optimizer.build_adam
    build_adagrad, build_rms_prop = model_optimizer.build_adagrad, model_optimizer.build_rms_prop
    add_weight_decay = model_optimizer.add_weight_decay
