"""Data-parallel training with buckets: one group a bucket, all on the same parameters, inputs and memory.

The names of MXNet's ``executor_manager`` are all here. Parameters are paired by name, buckets come in any order and may
have parameters and batch sizes of their own; under ranks (``comm``) gradients are summed over them.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from ..context import Context, asnumpy, copyto
from ..errors import BindError, BucketError, DeviceError, NotBoundError, ShapeError, UnknownNameError, near_miss
from ..executor import note_write
from .binding import DeviceStore, _bind_exec, _check_arguments, bind_exec, check_arguments
from .executor_group import DataParallelExecutorGroup
from .gradient_sync import GradientSync, ignored_parameters, lay_out_parameters
from .loading import _load_data, _load_general, _load_label, batch_axis, describe, load_data, load_general, load_label
from .split import _split_input_slice, split_input_slice

__all__ = [
    "DataParallelExecutorGroup", "DataParallelExecutorManager", "_bind_exec", "_check_arguments", "_load_data", "_load_general",
    "_load_label", "_split_input_slice", "bind_exec", "check_arguments", "load_data", "load_general", "load_label",
    "split_input_slice",
]  # fmt: skip

Array = Any
_Key = tuple[Hashable, tuple[Any, ...]]


@dataclasses.dataclass(frozen=True)
class _Described:
    """What a group needs to know of its inputs."""

    provide_data: Sequence[Any]
    provide_label: Sequence[Any]


def _hashable(key: Any) -> Any:
    """A list of a bucket key counts as the tuple of its items."""
    if isinstance(key, list):
        return tuple(_hashable(item) for item in key)
    try:
        hash(key)
    except TypeError:
        raise BucketError(f"a bucket key must be hashable (a number, a text, a tuple), but it is {key!r}") from None
    return key


class DataParallelExecutorManager:
    """Trains one symbol, or one a bucket (``sym_gen(key)`` → symbol, or (symbol, data names, label names)), on ``ctx``.

    ``train_data`` describes the batches (``provide_data provide_label batch_size``, with buckets ``default_bucket_key``
    and, announced, ``buckets``; or ``bucket_keys``). ``comm``: ranks whose gradients are summed; then all keys must be
    announced. ``drop_pad``: padded rows of a batch are not trained on (default: with ranks). Raises DeviceError,
    BucketError, ShapeError, UnknownNameError; PlanMismatchError if ranks disagree.
    """

    def __init__(
        self, symbol: Any, ctx: Context | Sequence[Context], train_data: Any, arg_names: Sequence[str] | None = None,
        param_names: Sequence[str] | None = None, aux_names: Sequence[str] | None = None,
        work_load_list: Sequence[float] | None = None, logger: Any = None,
        sym_gen: Callable[[Any], Any] | None = None, grad_req: str = "write", *,
        comm: Any = None, bucket_keys: Sequence[Any] | None = None, drop_pad: bool | None = None, max_in_flight: int = 16,
    ) -> None:  # fmt: skip
        self.ctx = [ctx] if isinstance(ctx, Context) else list(ctx)
        if not self.ctx or len(set(self.ctx)) != len(self.ctx):
            raise DeviceError(f"ctx must name devices, each once, but it is {self.ctx}")
        self.work_load_list = list(work_load_list) if work_load_list is not None else [1] * len(self.ctx)
        if len(self.work_load_list) != len(self.ctx):
            raise DeviceError(f"work_load_list has {len(self.work_load_list)} loads for {len(self.ctx)} devices")
        self.logger = logger if logger is not None else logging.getLogger("arrayexec")
        self.sym_gen = sym_gen
        self.grad_req = grad_req
        self.comm = comm if comm is not None and comm.size > 1 else None
        self.drop_pad = self.comm is not None if drop_pad is None else drop_pad
        self.batch_size = train_data.batch_size
        self._label_names = [describe(item).name for item in train_data.provide_label or ()]
        default = _hashable(getattr(train_data, "default_bucket_key", None)) if sym_gen is not None else None
        if symbol is None and sym_gen is not None:
            symbol = self._generate(default)[0]
        self.symbol = symbol
        check_arguments(symbol)
        described = [describe(item) for item in (*train_data.provide_data, *(train_data.provide_label or ()))]
        self._input_names = {item.name for item in described}
        self.arg_names = list(arg_names) if arg_names is not None else symbol.list_arguments()
        self.param_names = (
            list(param_names) if param_names is not None else [n for n in self.arg_names if n not in self._input_names]
        )
        self.aux_names = list(aux_names) if aux_names is not None else symbol.list_auxiliary_states()
        self._default = default
        announced = bucket_keys if bucket_keys is not None else getattr(train_data, "buckets", None)
        self._announced = None if sym_gen is None or announced is None else [_hashable(key) for key in announced]
        if self.comm is not None and sym_gen is not None and self._announced is None:
            raise BucketError(
                "buckets under ranks must be announced: give bucket_keys=, or an iterator with a 'buckets' attribute"
            )
        self.stores = [DeviceStore(one) for one in self.ctx]
        self._groups: dict[_Key, DataParallelExecutorGroup] = {}
        self.execgrp_bucket: dict[Any, DataParallelExecutorGroup] = {}
        self._monitor: Any = None
        self._pending: dict[str, Array] = {}
        self._set = False
        self._batch: Any = None
        self._step = 0
        self._touched: list[str] = []
        first = _Described(list(train_data.provide_data), list(train_data.provide_label or ()))
        self._sync: GradientSync | None = None
        if self.comm is not None:
            union = self._union(first)
            lay_out_parameters(self.stores[0], *union)
            self._sync = GradientSync(self.comm, self.stores[0], union[0], max_in_flight)
            self.comm.agree(self._description(train_data), "the model and its training")
        self.slices = split_input_slice(self._rows(first), self.work_load_list)
        self.execgrp = self._group(self._default, first, symbol)
        self.curr_execgrp: DataParallelExecutorGroup | None = None

    # --- buckets -----------------------------------------------------------------------------------------------

    def _generate(self, key: Any) -> tuple[Any, Sequence[str] | None, Sequence[str] | None]:
        made = self.sym_gen(key) if self.sym_gen is not None else self.symbol
        return made if isinstance(made, tuple) else (made, None, None)

    def _rows(self, described: _Described) -> int:
        item = describe(described.provide_data[0])
        return int(item.shape[batch_axis(item)])

    def _union(self, first: _Described) -> tuple[dict[str, Any], dict[str, Any]]:
        """Shapes and types of all parameters of all announced buckets: the default's in backward order, others by name."""
        from .gradient_sync import parameters_of

        union, aux = parameters_of(self.symbol, first.provide_data, first.provide_label, self._input_names)
        others: dict[str, Any] = {}
        for key in self._announced or ():
            if key == self._default:
                continue
            symbol, _, _ = self._generate(key)
            mine, its_aux = parameters_of(symbol, *self._for_key(first, key), self._input_names)
            others |= {n: spec for n, spec in mine.items() if n not in union}
            aux |= {n: spec for n, spec in its_aux.items() if n not in aux}
        return {**union, **dict(sorted(others.items()))}, aux

    def _for_key(self, first: _Described, key: Any) -> tuple[list[Any], list[Any]]:
        """Descriptions with the default bucket's length replaced by ``key`` (whole-number keys), to infer parameters."""

        def swap(item: Any) -> Any:
            item = describe(item)
            axis = batch_axis(item)
            shape = [
                key if i != axis and d == self._default and isinstance(key, int) else d
                for i, d in enumerate(item.shape)
            ]
            return type(item)(item.name, tuple(shape), item.dtype, item.layout)

        return [swap(item) for item in first.provide_data], [swap(item) for item in first.provide_label]

    def _description(self, train_data: Any) -> dict[str, object]:
        sync: GradientSync = self._sync  # type: ignore[assignment]
        return {
            **{f"parameter '{n}'": f"{shape} {np.dtype(kind).name}" for n, (shape, kind) in sync.specs.items()},
            "gradient request": self.grad_req,
            "devices of a rank": [c.device_type for c in self.ctx],
            "buckets": self._announced,
            "batches an epoch": getattr(train_data, "num_batches", None),
            "operators": [n.op.form.name for n in self.symbol.graph.nodes if n.op is not None]
            if self.sym_gen is None
            else None,
        }

    def _group(self, key: Any, described: _Described, symbol: Any = None) -> DataParallelExecutorGroup:
        """The group of a bucket and its shapes: made when first needed."""
        shapes = tuple(
            (i.name, i.shape, i.dtype) for i in map(describe, (*described.provide_data, *described.provide_label))
        )
        group = self._groups.get((key, shapes))
        if group is None:
            if symbol is None:
                symbol = self._generate(key)[0] if self.sym_gen is not None else self.symbol
            arguments = symbol.list_arguments()
            names = {describe(i).name for i in (*described.provide_data, *described.provide_label)} | self._input_names
            if self.sym_gen is None:
                parameters = [n for n in self.param_names if n in arguments]
            else:
                parameters = [n for n in arguments if n not in names]
            before = set(self.stores[0].parameters)
            slices = split_input_slice(self._rows(described), self.work_load_list, short=True)
            group = DataParallelExecutorGroup(
                symbol, arguments, parameters, self.ctx, slices, described, grad_req=self.grad_req, stores=self.stores,
            )  # fmt: skip
            self._fill_new(key, group, before)
            self._groups[key, shapes] = group
            self.execgrp_bucket.setdefault(key, group)
            if self._monitor is not None:
                self._install(group, key)
        return group

    def _fill_new(self, key: Any, group: DataParallelExecutorGroup, before: set[str]) -> None:
        """Give parameters that this bucket brings the values that ``set_params`` has kept for them."""
        new = [n for n in (*group.param_names, *group.aux_names) if n not in before]
        values = {n: self._pending[n] for n in new if n in self._pending}
        missing = [n for n in new if n not in values and n in group.param_names]
        if self._set and missing:
            raise BucketError(
                f"bucket {key!r} brings the parameter '{missing[0]}', which has no value: give it to set_params together with "
                "those of the other buckets"
            )
        for executor in group.train_execs:
            held = {**executor.own_arguments, **executor.aux_dict}
            for name, value in values.items():
                if name in held:
                    copyto(held[name], value)

    # --- parameters --------------------------------------------------------------------------------------------

    def install_monitor(self, monitor: Any) -> None:
        """Watch every executor of every bucket and device, present and future."""
        self._monitor = monitor
        for (key, _), group in self._groups.items():
            self._install(group, key)

    def _install(self, group: DataParallelExecutorGroup, key: Any) -> None:
        for place, executor in enumerate(group.train_execs):
            device = str(self.ctx[group.devices[place]]) if len(self.ctx) > 1 else ""
            bucket = f"bucket {key}" if self.sym_gen is not None else ""
            self._monitor.install(executor, tag=" ".join(part for part in (bucket, device) if part))

    def set_params(self, arg_params: Mapping[str, Any], aux_params: Mapping[str, Any] | None = None) -> None:
        """Copy parameters and auxiliary states to all devices; with ranks, those of rank 0 to all.

        With ``sym_gen``, values of names that no bucket has yet are kept for the bucket that will. Raises UnknownNameError
        for other strangers and ShapeError, before anything is copied.
        """
        pairs: list[tuple[str, Array, Any]] = []
        for kind, given in (("parameter", arg_params), ("auxiliary state", aux_params or {})):
            for name, value in given.items():
                found = False
                for store in self.stores:
                    held = store.parameters.get(name) if kind == "parameter" else store.aux.get(name)
                    if held is None:
                        continue
                    found = True
                    if tuple(held.shape) != tuple(value.shape):
                        raise ShapeError(
                            f"set_params: {kind} '{name}' must be {tuple(held.shape)}, but the array given is {tuple(value.shape)}"
                        )
                    pairs.append((name, held, value))
                if not found and self.sym_gen is None:
                    known = self.stores[0].parameters if kind == "parameter" else self.stores[0].aux
                    raise UnknownNameError(f"set_params: there is no {kind} '{name}'{near_miss(name, known)}")
                if not found:
                    self._pending[name] = np.array(asnumpy(value))
        for _, held, value in pairs:
            copyto(held, value)
            note_write(held, "set_params")
        self._set = True
        if self.comm is not None:
            self.broadcast_parameters()

    def broadcast_parameters(self) -> None:
        """Give every rank and device the parameters and auxiliary states of rank 0's first device; collective."""
        first = self.stores[0]
        for held in (first.parameters, first.aux):
            for name in sorted(held):
                if self.comm is not None:
                    self.comm.broadcast(held[name])
                for store in self.stores[1:]:
                    other = store.parameters if held is first.parameters else store.aux
                    if name in other:
                        copyto(other[name], held[name])

    def copy_to(self, arg_params: Mapping[str, Array], aux_params: Mapping[str, Array] | None = None) -> None:
        """Write parameters and auxiliary states into the given arrays: the mean over devices (states: over ranks, too).

        Types are cast. Raises UnknownNameError for a name that is not there. Collective with ranks if there are states.
        """
        for kind, given in (("parameters", arg_params), ("aux", aux_params or {})):
            for name, target in given.items():
                held = [getattr(store, kind)[name] for store in self.stores if name in getattr(store, kind)]
                if not held:
                    known = [*self.stores[0].parameters, *self.stores[0].aux]
                    raise UnknownNameError(f"copy_to: there is no '{name}'{near_miss(name, known)}")
                total = np.array(asnumpy(held[0]), dtype=np.result_type(held[0].dtype, np.float32))
                for other in held[1:]:
                    total += asnumpy(other)
                count = len(held)
                if self.comm is not None and kind == "aux":
                    self.comm.allreduce(total)
                    count *= self.comm.size
                copyto(target, total / count)

    @property
    def param_arrays(self) -> list[list[Array]]:
        """For every parameter of the default bucket, its array on every device."""
        return self.execgrp.param_arrays

    @property
    def grad_arrays(self) -> list[list[Array]]:
        """For every parameter of the default bucket, its gradient on every device."""
        return self.execgrp.grad_arrays

    @property
    def aux_arrays(self) -> list[list[Array]]:
        """For every auxiliary state of the default bucket, its array on every device."""
        return self.execgrp.aux_arrays

    # --- a step ------------------------------------------------------------------------------------------------

    def load_data_batch(self, data_batch: Any) -> None:
        """Take a batch: choose (or make) the group of its bucket and shapes and copy the arrays in.

        Raises BucketError for a key that was not announced under ranks, ShapeError for arrays that do not fit.
        """
        key = _hashable(data_batch.bucket_key) if self.sym_gen is not None else None
        if self.comm is not None and self._announced is not None and key not in self._announced:
            raise BucketError(f"bucket {key!r} was not announced; announced are {self._announced}")
        descriptions = self._descriptions(data_batch)
        rows = self._rows(descriptions)
        valid = rows - (getattr(data_batch, "pad", None) or 0) if self.drop_pad else rows
        self._batch = data_batch
        self._valid = valid
        if valid < rows:
            data_batch, descriptions = self._cut(data_batch, descriptions, valid)
        if valid == 0:
            self.curr_execgrp = None
            return
        self.curr_execgrp = self._group(key, descriptions)
        self.curr_execgrp.load_data_batch(data_batch)

    def _descriptions(self, batch: Any) -> _Described:
        """Descriptions of a batch: its own, else the default ones with the shapes of its arrays."""
        if not batch.data:
            raise ShapeError(f"a batch must have {len(self.execgrp.data_names)} data arrays, but it has none")
        data, labels = getattr(batch, "provide_data", None), getattr(batch, "provide_label", None)
        first = next(iter(self._groups.values()))
        if not data:
            data = [_like(first, name, array) for name, array in zip(first.data_names, batch.data, strict=False)]
        if not labels:
            given = batch.label or ()
            labels = [_like(first, name, array) for name, array in zip(first.label_names, given, strict=False)]
            if not given:
                rows = int(describe(data[0]).shape[batch_axis(describe(data[0]))])
                labels = [i for i in self._default_labels(rows)]
        return _Described(list(data), list(labels))

    def _default_labels(self, rows: int) -> list[Any]:
        """Descriptions of the labels for a batch that brings none (inference)."""
        for (_, shapes), group in self._groups.items():
            if group.batch_size == rows:
                kinds = {name: (shape, dtype) for name, shape, dtype in shapes}
                return [_desc(group, name, *kinds[name]) for name in group.label_names]
        (_, shapes), group = next(iter(self._groups.items()))
        kinds = {name: (shape, dtype) for name, shape, dtype in shapes}
        found = []
        for name in group.label_names:
            shape, axis = list(kinds[name][0]), group._axis[name]
            shape[axis] = rows
            found.append(_desc(group, name, tuple(shape), kinds[name][1]))
        return found

    def _cut(self, batch: Any, described: _Described, valid: int) -> tuple[Any, _Described]:
        """The first ``valid`` rows of a batch and of its descriptions."""

        def cut(items: Sequence[Any], arrays: Sequence[Any] | None) -> tuple[list[Any], list[Any]]:
            shorter, parts = [], []
            for number, item in enumerate(map(describe, items)):
                axis = batch_axis(item)
                shape = list(item.shape)
                shape[axis] = valid
                shorter.append(type(item)(item.name, tuple(shape), item.dtype, item.layout))
                if arrays:
                    parts.append(arrays[number][(*[slice(None)] * axis, slice(0, valid))])
            return shorter, parts

        data, data_arrays = cut(described.provide_data, batch.data)
        labels, label_arrays = cut(described.provide_label, batch.label)
        return _Arrays(data_arrays, label_arrays), _Described(data, labels)

    def _current(self, what: str) -> DataParallelExecutorGroup | None:
        if self._batch is None:
            raise NotBoundError(f"{what}: load a batch first (load_data_batch)")
        return self.curr_execgrp

    def forward(self, is_train: bool = False) -> None:
        """Run forward on the loaded batch; training advances the step that addresses the random streams."""
        group = self._current("forward")
        if self.comm is not None:
            self.comm.where = f"step {self._step}"
        if group is not None:
            group.forward(is_train, self._step, getattr(self._batch, "first_row", 0) or 0)
        self._step += bool(is_train)

    def backward(self, out_grads: Any = None) -> None:
        """Run backward; with ranks and one device, finished gradient buckets start on their way while it runs."""
        group = self._current("backward")
        self._touched = [] if group is None else list(group.param_names)
        sync = self._sync
        if sync is not None:
            sync.check_backward(self.grad_req)
        if group is not None:
            early = sync is not None and len(group.train_execs) == 1 and self.grad_req == "write"
            group.backward(out_grads, sync.ready if early and sync is not None else None)
            if sync is not None and self.grad_req == "write" and not early:
                group.sum_gradients(group.param_names)
                for name in group.param_names:
                    sync.ready(name)

    def update(self, updater: Any) -> None:
        """Sum gradients over devices and ranks and apply ``updater(name, gradient, parameter)`` once a parameter.

        Parameters that the bucket does not use are left alone, as are fixed gammas. Collective with ranks.
        """
        group = self._current("update")
        names = [] if group is None else list(group.param_names)
        if group is not None and (self._sync is None or self.grad_req == "add"):
            group.sum_gradients(names)
        if self._sync is not None:
            names = self._sync.finish(names)
        ignored = ignored_parameters(self.symbol if group is None else group.symbol)
        names = [n for n in names if n not in ignored]
        store = self.stores[0]
        for name in names:
            updater(name, store.gradients[name], store.parameters[name])
            note_write(store.parameters[name], "the update")
        for other in self.stores[1:]:
            for name in names:
                if name in other.parameters:
                    copyto(other.parameters[name], store.parameters[name])
                    note_write(other.parameters[name], "the update")
        if self.comm is not None:
            self.comm.first_step_done()

    def zero_grad(self) -> None:
        """Set all gradients to zero (accumulation with ``grad_req='add'``)."""
        for store in self.stores:
            for array in store.gradients.values():
                array.fill(0)
        if self._sync is not None:
            self._sync.zeroed()

    def get_outputs(self) -> list[np.ndarray[Any, Any]]:
        """Copies of the outputs of the loaded batch as NumPy arrays."""
        group = self._current("outputs")
        return [] if group is None else group.get_outputs()

    def update_metric(self, metric: Any, labels: Sequence[Any], pre_sliced: bool = False) -> None:
        """Count the outputs of the last forward against ``labels``; padded rows are left out with ``drop_pad``."""
        group = self._current("update_metric")
        if group is None:
            return
        if self.drop_pad and not pre_sliced:
            cut = []
            for name, label in zip(group.label_names or [None] * len(labels), labels, strict=False):
                axis = group._axis.get(name, 0) if name else 0
                cut.append(label[(*[slice(None)] * axis, slice(0, self._valid))])
            labels = cut
        group.update_metric(metric, labels, pre_sliced)


@dataclasses.dataclass(frozen=True)
class _Arrays:
    data: Sequence[Any]
    label: Sequence[Any]


def _desc(group: DataParallelExecutorGroup, name: str, shape: Sequence[int], dtype: Any) -> Any:
    layout = "N" if group._axis[name] == 0 else "T" * group._axis[name] + "N"
    return describe((name, tuple(shape), dtype, layout))


def _like(group: DataParallelExecutorGroup, name: str, array: Any) -> Any:
    kinds = {n: e.dtype for n, e in group.train_execs[0].arg_dict.items()}
    return _desc(group, name, array.shape, kinds[name])
