"""Data-parallel training with buckets: one group a bucket, all on the same parameters, inputs and memory.

The names of MXNet's ``executor_manager`` are all here. Parameters are paired by name, buckets come in any order, with
parameters and batch sizes of their own; gradients are summed over ranks (``comm``).
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from ..comm import Communicator, GradientBuckets
from ..context import Context, asnumpy, copyto
from ..errors import ArgumentError, BucketError, DeviceError, NotBoundError
from ..streams import current_seed
from .binding import bind_exec, check_arguments
from .consistency import check_replicas
from .executor_group import DataParallelExecutorGroup
from .gradient_sync import Layout, describe_updater
from .loading import Described, first_rows, load_data, load_general, load_label
from .manager_checks import bucket_key, check_given, check_value, known_names, let_go
from .merging import on_host
from .replicas import KINDS, Replicas
from .split import split_input_slice

__all__ = [
    "DataParallelExecutorGroup", "DataParallelExecutorManager", "_bind_exec", "_check_arguments", "_load_data",
    "_load_general", "_load_label", "_split_input_slice", "bind_exec", "check_arguments", "load_data", "load_general",
    "load_label", "split_input_slice",
]  # fmt: skip

_bind_exec, _check_arguments, _split_input_slice = bind_exec, check_arguments, split_input_slice
_load_data, _load_general, _load_label = load_data, load_general, load_label

Array = Any
_Generated = tuple[Any, Sequence[str] | None, Sequence[str] | None]


class DataParallelExecutorManager:
    """Trains one symbol, or one a bucket (``sym_gen(key)`` → symbol or (symbol, data names, label names)), on ``ctx``.

    ``train_data`` describes the batches: ``provide_data provide_label``, with buckets ``default_bucket_key``, and for
    ranks ``buckets`` (unless ``bucket_keys`` announces them) and ``describe(key)`` → descriptions of data and labels.
    ``comm``: ranks whose gradients are summed. ``drop_pad``: padded rows of a batch are not trained on (default: with
    ranks). ``grad_req='add'`` accumulates over several backwards until ``zero_grad``. Gradients are sums over the rows
    of all devices and ranks; a loss that divides by the rows of the batch divides by those of its own device.
    ``check_every``: steps after which `check_consistency` is called (0: never). ``transport``: as for `parallelize`.
    ``max_groups``: how many buckets (a key and its shapes) stay bound, default all; the one not used for the longest
    goes, and is planned and bound again when it comes back: less memory, slower switches.
    Raises ArgumentError, DeviceError, BucketError, ShapeError, UnknownNameError; PlanMismatchError if ranks disagree.
    """

    def __init__(
        self, symbol: Any, ctx: Context | Sequence[Context], train_data: Any, arg_names: Sequence[str] | None = None,
        param_names: Sequence[str] | None = None, aux_names: Sequence[str] | None = None,
        work_load_list: Sequence[float] | None = None, logger: Any = None,
        sym_gen: Callable[[Any], Any] | None = None, grad_req: str = "write", *,
        comm: Communicator | None = None, bucket_keys: Sequence[Any] | None = None, drop_pad: bool | None = None,
        max_in_flight: int = 16, check_every: int = 0, transport: str | None = None, max_groups: int | None = None,
    ) -> None:  # fmt: skip
        self.ctx = [ctx] if isinstance(ctx, Context) else list(ctx)
        if not self.ctx or len(set(self.ctx)) != len(self.ctx) or not all(isinstance(one, Context) for one in self.ctx):
            raise DeviceError(f"ctx must name devices, each once, but it is {self.ctx}")
        self.work_load_list = list(work_load_list) if work_load_list is not None else [1] * len(self.ctx)
        if len(self.work_load_list) != len(self.ctx):
            raise DeviceError(f"work_load_list has {len(self.work_load_list)} loads for {len(self.ctx)} devices")
        if grad_req not in ("write", "add"):
            raise ArgumentError(f"grad_req must be 'write' or 'add', but it is {grad_req!r}")
        if symbol is None and sym_gen is None:
            raise ArgumentError("a manager needs a symbol, or sym_gen to make one for every bucket")
        if max_groups is not None and max_groups < 1:
            raise ArgumentError(f"max_groups must be at least 1, or None for all, but it is {max_groups}")
        self.logger = logger if logger is not None else logging.getLogger("arrayexec")
        self.sym_gen = sym_gen
        self.grad_req = grad_req
        self.check_every = check_every
        self.max_groups = max_groups
        self.comm = comm if comm is not None and comm.size > 1 else None
        self.drop_pad = self.comm is not None if drop_pad is None else drop_pad
        self.step = 0
        """Training forwards so far; addresses the random streams."""
        self._described = Described.of(train_data.provide_data, train_data.provide_label)
        self.batch_size = self._described.rows
        self._default = self._key(train_data, "default_bucket_key")
        self._generated: dict[Any, _Generated] = {}
        if symbol is not None:
            self._generated[self._default] = (symbol, None, None)
        self.symbol = self._generate(self._default)[0]
        check_arguments(self.symbol)
        inputs = {item.name for item in self._described.all}
        own = self.symbol.list_arguments()
        self.arg_names = known_names("arg_names", arg_names, own)
        self.param_names = known_names("param_names", param_names, own, [n for n in self.arg_names if n not in inputs])
        self.aux_names = known_names("aux_names", aux_names, self.symbol.list_auxiliary_states())
        self._inputs = inputs | set(self.arg_names) - set(self.param_names)
        short = self._binds_few_rows and self.batch_size > 0
        self.slices = split_input_slice(self.batch_size, self.work_load_list, short=short)
        self._replicas = self._make_replicas()
        self.stores = self._replicas.stores
        self._groups: dict[tuple[Any, Hashable], DataParallelExecutorGroup] = {}
        self.execgrp_bucket: dict[Any, DataParallelExecutorGroup] = {}
        self._monitor: Any = None
        self._kept: dict[str, Array] = {}
        self._given: set[str] | None = None  # names that set_params has had
        self._announced: list[Any] | None = None
        self.gradient_buckets: GradientBuckets | None = None
        """What sums the gradients over ranks; ``events`` tells when."""
        if self.comm is not None:
            self.gradient_buckets = self._agree(self.comm, train_data, bucket_keys, max_in_flight, transport)
        first = self.execgrp
        self._first_names = {*first.param_names, *first.aux_names}
        self._first_arrays = first.param_arrays, first.grad_arrays, first.aux_arrays
        del first
        self.curr_execgrp: DataParallelExecutorGroup | None = None
        self._batch: Any = None
        # What the next update applies: gradients of these parameters, from these devices; whether they are summed over
        # devices and ranks (None: there are none).
        self._used: dict[str, None] = {}
        self._ran: Sequence[int] = ()
        self._updated = False
        self._summed: bool | None = None
        self._moved = False  # whether training has moved auxiliary states since all devices had the same

    def _agree(
        self, comm: Communicator, train_data: Any, keys: Sequence[Any] | None, max_in_flight: int, transport: str | None
    ) -> GradientBuckets:
        """Make all ranks agree on the model, its buckets and the options; lay out what all buckets need."""
        layout = Layout(self.symbol, self._described, self._inputs)
        graphs = {self._default: self.symbol}
        if self.sym_gen is not None:
            keys = keys if keys is not None else getattr(train_data, "buckets", None)
            if keys is None:
                raise BucketError(
                    "buckets under ranks must be announced: give bucket_keys=, or an iterator that has 'buckets'"
                )
            self._announced = [bucket_key(key) for key in keys]
            describe = getattr(train_data, "describe", None)
            for key in self._announced:
                if key not in graphs:
                    graphs[key] = self._generate(key)[0]
                    layout.add(key, graphs[key], Described.of(*describe(key)) if describe is not None else None)
        options = {
            "grad_req": self.grad_req,
            "drop_pad": self.drop_pad,
            "max_in_flight": max_in_flight,
            "check_every": self.check_every,
            "seed": current_seed(),  # of masks and of the iterators' order
            "buckets": self._announced,
            "batches an epoch": getattr(train_data, "num_batches", None),
        }
        layout.agree(comm, graphs, options)
        layout.ignored |= self._fixed
        return layout.connect(comm, self._replicas.lead, max_in_flight=max_in_flight, transport=transport)

    # buckets

    def _key(self, source: Any, attribute: str) -> Any:
        """The bucket key of a batch or an iterator; None where there are no buckets."""
        if self.sym_gen is None:
            return None
        key = getattr(source, attribute, None)
        if key is None:
            raise BucketError(f"with sym_gen a {type(source).__name__} must have a {attribute}, but it has none")
        return bucket_key(key)

    def _generate(self, key: Any) -> _Generated:
        """Symbol of a bucket and, where ``sym_gen`` says them, names of its data and labels."""
        if key not in self._generated:
            made = self.sym_gen(key)  # type: ignore[misc]
            self._generated[key] = made if isinstance(made, tuple) else (made, None, None)
        return self._generated[key]

    def _group(self, key: Any, described: Described) -> DataParallelExecutorGroup:
        """The group of a bucket and its shapes: made when it is needed."""
        place = (key, tuple((item.name, item.shape, item.dtype) for item in described.all))
        group = self._groups.pop(place, None)
        if group is None:
            for other in let_go(self._groups, self.execgrp_bucket, self.max_groups):
                if other != self._default:
                    self._generated.pop(other, None)
            symbol = self._generate(key)[0]
            arguments = symbol.list_arguments()
            inputs = self._inputs.union((item.name for item in described.all), *filter(None, self._generate(key)[1:]))
            parameters = [name for name in arguments if name not in inputs]
            self._check_values(key, (*parameters, *symbol.list_auxiliary_states()))
            slices = split_input_slice(described.rows, self.work_load_list, short=True)
            before = self._replicas.names()
            group = DataParallelExecutorGroup(
                symbol, arguments, parameters, self.ctx, slices, described, stores=self.stores, logger=self.logger,
                **self._group_options(parameters),
            )  # fmt: skip
            self._replicas.take(self._kept, zip(KINDS, (group.param_names, group.aux_names), strict=True))
            self._bring(symbol)
            self._replicas.catch_up(before)
            self.execgrp_bucket.setdefault(key, group)
            if self._monitor is not None:
                self._install(group, key)
        self._groups[place] = group  # last: the one used last
        return group

    # what a manager with more options (`TrainingManager`) does otherwise

    _fixed: frozenset[str] = frozenset()  # parameters that are not trained
    _changes_gradients = False  # before they are summed: then none can start on its way while backward runs
    _binds_few_rows = False  # fewer than devices

    def _make_replicas(self) -> Replicas:
        return Replicas(self.ctx, next(i for i, load in enumerate(self.work_load_list) if load > 0))

    def _group_options(self, parameters: Sequence[str]) -> dict[str, Any]:
        return {"grad_req": self.grad_req}

    def _bring(self, symbol: Any) -> None:
        """A bucket has been bound."""

    def _check_values(self, key: Any, names: Collection[str]) -> None:
        if self._given is not None:
            check_given(key, names, self._given | self._first_names, self._kept)

    @property
    def execgrp(self) -> DataParallelExecutorGroup:
        """The default one."""
        return self._group(self._default, self._described)

    # parameters

    def install_monitor(self, monitor: Any) -> None:
        """Watch every executor of every bucket and device, present and future."""
        self._monitor = monitor
        for (key, _), group in self._groups.items():
            self._install(group, key)

    def _install(self, group: DataParallelExecutorGroup, key: Any) -> None:
        install = self._monitor.install
        tagged = "tag" in inspect.signature(install).parameters  # a monitor of the user's own may know executors only
        for place, executor in enumerate(group.train_execs):
            bucket = f"bucket {key}" if self.sym_gen is not None else ""
            device = str(self.ctx[group.devices[place]]) if len(self.ctx) > 1 else ""
            tag = {"tag": " ".join(filter(None, (bucket, device)))} if tagged else {}
            install(executor, **tag)

    def set_params(self, arg_params: Mapping[str, Any], aux_params: Mapping[str, Any] | None = None) -> None:
        """Copy parameters and auxiliary states (by name) to all devices; with ranks, those of rank 0 to all.

        With ``sym_gen``, values of names that no bucket has yet are kept for the bucket that brings them. Raises
        UnknownNameError for other strangers and ShapeError, before anything is copied.
        """
        given = dict(zip(KINDS, (arg_params, aux_params or {}), strict=True))
        keeps = self.sym_gen is not None and self._announced is None
        for kind, arrays in given.items():
            if not keeps:
                self._replicas.check("set_params", kind, arrays)
            for name, value in arrays.items():
                for held in self._replicas.of(kind, name):
                    check_value(name, value, held)
        for kind, arrays in given.items():
            for name, value in arrays.items():
                if not self._replicas.write(kind, name, value, "set_params"):
                    self._kept[name] = np.array(asnumpy(value))
        self._given = (self._given or set()).union(*given.values())
        if self.comm is not None:
            self.broadcast_parameters()

    def broadcast_parameters(self) -> None:
        """Give all ranks and devices what rank 0's leading device has; collective."""
        self._replicas.broadcast(self.comm)

    def copy_to(self, arg_params: Mapping[str, Array], aux_params: Mapping[str, Array] | None = None) -> None:
        """Write parameters and auxiliary states into the given arrays: the mean over devices (states: over ranks, too).

        Types are cast. Raises UnknownNameError for a name that is not there. Collective with ranks if there are states.
        """
        for kind, given, comm in (("parameters", arg_params, None), ("aux", aux_params or {}, self.comm)):
            self._replicas.check("copy_to", kind, given)
            for name, mean in self._replicas.means(kind, given, comm).items():
                copyto(given[name], mean)

    def merge_states(self) -> None:
        """Give all devices and ranks the mean of the states that each moves by itself; collective after training."""
        if self._moved and (self.comm is not None or len(self.ctx) > 1):
            for name, mean in self._replicas.means("aux", self._replicas.lead.aux, self.comm).items():
                self._replicas.write("aux", name, mean, "the mean of states")
        self._moved = False

    @property
    def param_arrays(self) -> list[list[Array]]:
        """For every parameter of the default bucket, its array on each device."""
        return self._first_arrays[0]

    @property
    def grad_arrays(self) -> list[list[Array]]:
        """For every parameter of the default bucket, its gradient on every device."""
        return self._first_arrays[1]

    @property
    def aux_arrays(self) -> list[list[Array]]:
        """For every auxiliary state of the default bucket, its array on every device."""
        return self._first_arrays[2]

    # a step

    def load_data_batch(self, data_batch: Any, drop_pad: bool | None = None) -> None:
        """Take a batch: choose (or make) the group of its bucket and shapes, copy arrays in.

        ``drop_pad``: that of this batch, if it has one. Raises BucketError for a key that was not announced under
        ranks, ShapeError for arrays that do not fit.
        """
        key = self._key(data_batch, "bucket_key")
        if self._announced is not None and key not in self._announced and key != self._default:
            raise BucketError(f"bucket {key!r} was not announced; announced are {self._announced}")
        described = self._describe(key, data_batch)
        drops = self.drop_pad if drop_pad is None else drop_pad
        valid = described.rows - ((getattr(data_batch, "pad", None) or 0) if drops else 0)
        self._batch, self.curr_execgrp = None, None
        if valid > 0:
            arrays, left_out = data_batch, described.rows - valid
            if left_out:
                arrays = first_rows(data_batch, described, valid)
                described = described.with_rows(valid)
            group = self._group(key, described)
            group.load_data_batch(arrays)
            group.left_out = left_out
            self.curr_execgrp = group
        self._batch = data_batch

    def _describe(self, key: Any, batch: Any) -> Described:
        """Descriptions of a batch; its labels, where it has none, as those of the same data with labels."""
        described = self._described.of_batch(batch, self._generate(key)[1:])
        if batch.label:
            return described
        for (other, _), group in self._groups.items():
            if other == key and group.described.provide_data == described.provide_data:
                return group.described
        labels = self._described.with_rows(described.rows).provide_label if key == self._default else ()
        return Described(described.provide_data, labels)

    def _loaded(self, what: str) -> DataParallelExecutorGroup | None:
        """The current group; None where this rank has no rows of the batch."""
        if self._batch is None:
            raise NotBoundError(f"{what}: load a batch first (load_data_batch)")
        return self.curr_execgrp

    def forward(self, is_train: bool = False) -> None:
        """Run forward on the loaded batch; training advances the step that addresses the random streams.

        Inference begins with `merge_states`.
        """
        group = self._loaded("forward")
        if self.comm is not None:
            self.comm.where = f"step {self.step}" if is_train else "evaluation"
        if is_train:
            self._moved = True
        else:
            self.merge_states()
        if group is not None:
            group.forward(is_train, self.step, getattr(self._batch, "first_row", 0) or 0)
        self.step += bool(is_train)

    def backward(self, out_grads: Any = None) -> None:
        """Run backward; ``out_grads``: head gradients of the whole batch, for outputs that are no losses.

        With ranks the gradients of the leading device are sums over devices and ranks afterwards (with
        ``grad_req='add'`` only after the update). On one device full gradient buckets start on their way while
        backward runs.
        """
        group = self._loaded("backward")
        adds = self.grad_req == "add"
        if adds and self._summed and (self.comm is not None or len(self.ctx) > 1):
            raise NotBoundError(
                "backward would add to gradients that are summed over devices and ranks already: "
                "call zero_grad() after the update"
            )
        self._summed = None  # until backward has run to its end
        trained = dict.fromkeys(group.trained_names if group is not None else ())
        if adds:
            self._used, self._ran = self._used | trained, range(len(self.ctx))
        else:
            self._used, self._ran = trained, group.devices if group is not None else ()
        sync = None if adds else self.gradient_buckets

        def ready(name: str) -> None:
            if sync is not None and name in self._used:
                sync.ready(name)

        if group is not None:
            early = sync is not None and not self._changes_gradients and len(group.train_execs) == 1
            group.backward(out_grads, ready if early else None)
        self._summed = False
        if sync is not None:
            self._sum()

    def _sum(self) -> None:
        """Sum gradients over the devices into the leading one, in device order, then over ranks."""
        self._replicas.sum_gradients(self._used, self._ran)
        if self.gradient_buckets is not None:
            self._used = dict.fromkeys(self.gradient_buckets.finish(self._used))
        self._summed = True

    def update(self, updater: Any) -> None:
        """Apply ``updater(name, gradient, parameter)`` once a parameter, to gradients summed over devices and ranks.

        Or ``updater.update_all(names, gradients, parameters)``, where it has that. Parameters that nobody used are left
        alone, as are fixed gammas.
        """
        if self._summed is None:
            raise NotBoundError("update: run backward first")
        if self.comm is not None and not self._updated:  # another learning rate on one rank would let parameters drift
            self.comm.agree(describe_updater(updater), "the optimizer")
        self._updated = True
        if not self._summed:
            self._sum()
        self._replicas.apply(updater, list(self._used))
        if self.comm is not None:
            self.comm.first_step_done()
        if self.check_every and self.step % self.check_every == 0:
            self.check_consistency()

    def check_consistency(self) -> None:
        """Compare parameters of all devices and ranks by their bits; collective. Raises InconsistentReplicaError."""
        held = {str(store.context): store.parameters for store in self.stores}
        check_replicas(held, self.comm, f"after {self.step} steps")

    def zero_grad(self) -> None:
        """Set all gradients to zero (accumulation with ``grad_req='add'``)."""
        self._replicas.zero_gradients()
        self._used, self._summed = {}, None

    def get_outputs(self) -> list[np.ndarray[Any, Any]]:
        """Copies of the outputs of the loaded batch as NumPy arrays, device after device; none if there are no rows."""
        group = self._loaded("get_outputs")
        return [] if group is None else on_host(group.get_outputs())

    def update_metric(
        self, metric: Any, labels: Sequence[Any], pre_sliced: bool = False, valid: int | None = None
    ) -> None:
        """Count the outputs of the last forward, of its first ``valid`` rows (None: all), against ``labels``."""
        group = self._loaded("update_metric")
        if group is not None:
            group.update_metric(metric, labels, pre_sliced, valid)
