"""A module that is bound: batches go in; outputs, gradients, states and metrics come out."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from ..context import context_of
from ..errors import ArgumentError, BindError, NotBoundError, format_shape
from ..parallel.executor_group import DataParallelExecutorGroup
from ..parallel.loading import Described, batch_axis, describe
from ..parallel.merging import row_axes
from ..parallel.training_manager import TrainingManager
from ..train.batch import DataDesc
from .base_module import BOUND, WITH_OPTIMIZER, WITH_PARAMS, BaseModule

Array = Any


class BoundModule(BaseModule):
    """The steps of `Module`, on the manager that its ``bind`` has made."""

    def __init__(self, symbol: Any, logger: Any = None) -> None:
        super().__init__(logger)
        self._symbol = symbol
        self._data_names: list[str] = []
        self._label_names: list[str] = []
        self._state_names: list[str] = []
        self._shapes: Described
        self._labels_read: list[str] = []
        self._manager: TrainingManager | None = None
        self._updater: Any = None
        self._kvstore: Any = None
        self._monitor: Any = None
        self._batch: Any = None

    def _bound(self, call: str) -> TrainingManager:
        if self._manager is None:
            raise self._lacks(call, BOUND)
        return self._manager

    @property
    def _comm(self) -> Any:
        return self._kvstore.comm if self._kvstore is not None and self._kvstore.num_workers > 1 else None

    @property
    def _leaves_out_pad(self) -> bool:
        """Whether rows that only fill up a batch are not trained on: with stores for ranks, even of one."""
        return self._kvstore is not None and self._kvstore.type.startswith(("dist", "mpi"))

    def _has_ranks(self) -> bool:
        return self._comm is not None

    def _speaks(self) -> bool:
        return self._comm is None or self._comm.rank == 0

    @property
    def symbol(self) -> Any:
        """The symbol (of the default bucket)."""
        return self._symbol

    @property
    def data_names(self) -> list[str]:
        """Names of the data inputs."""
        return self._data_names

    @property
    def label_names(self) -> list[str]:
        """Names of the labels."""
        return self._label_names

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs."""
        return self._current_symbol.list_outputs()  # type: ignore[no-any-return]

    @property
    def _current_symbol(self) -> Any:
        group = self._manager.curr_execgrp if self._manager is not None else None
        return self._symbol if group is None else group.symbol

    @property
    def _described(self) -> Described:
        """What the current batch looks like; before the first one, what was bound."""
        group = self._bound("data_shapes").curr_execgrp
        return self._shapes if group is None else group.described

    @property
    def data_shapes(self) -> list[Any]:
        """Descriptions of the data of the current batch (before the first one: those bound)."""
        return list(self._described.provide_data)

    @property
    def label_shapes(self) -> list[Any] | None:
        """Descriptions of the labels of the current batch; None where there are none."""
        return list(self._described.provide_label) or None

    @property
    def output_shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        """Name and shape of every output for the whole batch."""
        symbol, names = self._current_symbol, set(self._current_symbol.list_arguments())
        shapes = {item.name: item.shape for item in self._described.all if item.name in names}
        return list(zip(symbol.list_outputs(), symbol.infer_shape(**shapes)[1], strict=True))

    # --- a step ------------------------------------------------------------------------------------------------

    def forward(self, data_batch: Any, is_train: bool | None = None) -> None:
        """Run forward on a batch of any size; ``is_train`` None: as bound.

        Training with a store for ranks leaves out rows that only fill up the batch. Raises NotBoundError, ShapeError,
        BucketError.
        """
        self._require("forward", BOUND, WITH_PARAMS)
        is_train = self.for_training if is_train is None else is_train
        batch = self._taken(data_batch)
        if is_train and batch.provide_label:  # others may have any name
            names = [item.name for item in self._shapes.provide_label] or self._label_names
            batch.provide_label = self._as_bound(batch.provide_label, names)
        manager = self._bound("forward")
        try:
            manager.load_data_batch(batch, drop_pad=is_train and self._leaves_out_pad)
        except BindError as error:
            bound = self._shapes.provide_data
            given = zip([item.name for item in batch.provide_data or bound], batch.data, strict=False)
            told = ", ".join(f"'{name}' {format_shape(getattr(array, 'shape', None))}" for name, array in given)
            held = ", ".join(f"'{item.name}' {format_shape(item.shape)}" for item in bound)
            fact = f"forward: a batch of {told} does not fit what was bound for {held}"
            raise type(error)(f"{fact}\n  {error}") from error
        self._batch = batch
        manager.forward(is_train)

    def _taken(self, batch: Any) -> Any:
        """A batch as managers want it; its labels only where this module has some."""
        for role in ("data", "label"):
            arrays = getattr(batch, role, None)
            if arrays is not None and not isinstance(arrays, list | tuple):
                what = type(arrays).__name__
                raise ArgumentError(f"forward: {role} of a batch must be a list of arrays, but it is a {what}")
        labels = getattr(batch, "label", None) if self._label_names else None
        names = [item.name for item in self._shapes.provide_data]
        return SimpleNamespace(
            data=batch.data, label=labels, pad=getattr(batch, "pad", None), first_row=getattr(batch, "first_row", 0),
            global_rows=getattr(batch, "global_rows", None), bucket_key=getattr(batch, "bucket_key", None),
            provide_data=self._as_bound(getattr(batch, "provide_data", None), names),
            provide_label=self._as_bound(getattr(batch, "provide_label", None)) if labels else None,
        )  # fmt: skip

    _by_position = True  # whether inputs all of whose names are unknown are taken in their order, as MXNet does

    def _as_bound(self, items: Sequence[Any] | None, names: Sequence[str] = ()) -> list[DataDesc]:
        """Descriptions of a batch with the types and layouts that were bound: arrays are cast to them.

        Where none of their names is known they get ``names``, in order.
        """
        bound = {item.name: item for item in self._shapes.all}
        given = [describe(item) for item in items or ()]
        known = {*bound, *self._label_names}
        if self._by_position and len(given) == len(names) and not known & {item.name for item in given}:
            given = [DataDesc(name, item.shape) for name, item in zip(names, given, strict=True)]
        like = [(item, bound.get(item.name, item)) for item in given]
        return [DataDesc(item.name, item.shape, mine.dtype, mine.layout) for item, mine in like]

    def backward(self, out_grads: Any = None) -> None:
        """Run backward; ``out_grads``: head gradients of the whole batch, for outputs that are no losses."""
        self._require("backward", BOUND, WITH_PARAMS)
        if not self.for_training:
            raise NotBoundError("backward: the module must be bound with for_training=True")
        if self._batch is not None and out_grads is None and self._by_position:
            self._check_labels(self._batch)
        self._bound("backward").backward(out_grads)

    def _check_labels(self, batch: Any) -> None:
        """ArgumentError where a batch lacks labels that were bound, so that those of another one would count."""
        given = [item.name for item in batch.provide_label or ()]
        for name in self._labels_read:
            if not batch.label or (given and name not in given):
                told = f"the batch must have the label '{name}', which was bound, but it has "
                raise ArgumentError(f"backward: {told}{', '.join(given) or 'none'}")

    def update(self) -> None:
        """Sum gradients over devices and ranks, and update every parameter once."""
        self._require("update", BOUND, WITH_PARAMS, WITH_OPTIMIZER)
        self._bound("update").update(self._updater)

    def zero_grad(self) -> None:
        """Set all gradients to zero, those of inputs, too, after an update with ``grad_req='add'``."""
        manager = self._bound("zero_grad")
        manager.zero_grad()
        names = self._data_names if self.inputs_need_grad else ()
        executors = [one for group in manager._groups.values() for one in group.train_execs]
        for executor, name in itertools.product(executors, names):
            gradient = executor.grad_dict.get(name)
            if gradient is not None:
                with context_of(gradient).enter():
                    gradient.fill(0)

    def _group(self, call: str) -> DataParallelExecutorGroup | None:
        self._require(call, BOUND, WITH_PARAMS)
        if self._batch is None:
            raise NotBoundError(f"{call}: run forward first")
        return self._bound(call).curr_execgrp

    @property
    def _exec_group(self) -> DataParallelExecutorGroup:
        """The executors of the current batch (before the first one, of what was bound): MXNet's name."""
        manager = self._bound("_exec_group")
        return manager.curr_execgrp or manager.execgrp

    def get_outputs(self, merge_multi_context: bool = True, copy: bool = True) -> list[Any]:
        """Outputs of the last forward: arrays of the whole batch, or for each a list of arrays by device.

        Without ``copy`` those of one device are what the next forward overwrites. On a rank that has no rows of the
        batch the arrays have none.
        """
        group = self._group("get_outputs")
        if group is not None:
            return group.get_outputs(merge_multi_context, copy)
        one, symbol = self._shapes.with_rows(1), self._symbol
        shapes = symbol.infer_shape(**{i.name: i.shape for i in one.all if i.name in symbol.list_arguments()})[1]
        return self._rowless(zip(shapes, row_axes(symbol, one)[1], strict=True), merge_multi_context)

    def _rowless(self, places: Iterable[tuple[Sequence[int], int | None]], merge: bool) -> list[Any]:
        """An array without rows for every (shape, axis of the rows)."""
        if not merge:
            return [[] for _ in places]
        context = self._bound("outputs").ctx[0]
        cut = [tuple(0 if i == (axis or 0) else dim for i, dim in enumerate(shape)) for shape, axis in places]
        return [context.zeros(shape, np.float32, "output") for shape in cut]

    def get_input_grads(self, merge_multi_context: bool = True, copy: bool = True) -> list[Any]:
        """Gradients of the data inputs in the order of ``data_names``, as `get_outputs` gives outputs."""
        group = self._group("get_input_grads")
        if not self.inputs_need_grad:
            raise NotBoundError("get_input_grads: the module must be bound with inputs_need_grad=True")
        if group is None:
            return self._rowless([(i.shape, batch_axis(i)) for i in self._shapes.provide_data], merge_multi_context)
        names = [name for name in self._data_names if name in group.data_names] or group.data_names
        return group.get_arguments(names, True, merge_multi_context, copy)

    def get_states(self, merge_multi_context: bool = True) -> list[Any]:
        """Copies of the states, in the order of ``state_names``, as `get_outputs` gives outputs."""
        self._require("get_states", BOUND, WITH_PARAMS)
        return self._exec_group.get_arguments(self._state_names, False, merge_multi_context)

    def set_states(self, states: Sequence[Any] | None = None, value: float | None = None) -> None:
        """Write the states: by arrays (or lists of arrays by device) in the order of ``state_names``, or one number."""
        self._require("set_states", BOUND, WITH_PARAMS)
        if (states is None) == (value is None):
            raise ArgumentError("set_states: either states or a value must be given")
        values = [value] * len(self._state_names) if states is None else list(states)
        if len(values) != len(self._state_names):
            known = f"{len(self._state_names)} states ({', '.join(self._state_names)})"
            raise ArgumentError(f"set_states: there must be {known}, but there are {len(values)}")
        self._exec_group.set_arguments(self._state_names, values)

    def update_metric(self, eval_metric: Any, labels: Sequence[Array], pre_sliced: bool = False) -> None:
        """Count the outputs of the last forward against labels; rows that only fill up the batch do not count."""
        group = self._group("update_metric")
        if group is not None:
            pad = self._batch.pad or 0
            counted = Described.of(self._described.provide_data, None).rows - pad
            group.update_metric(
                eval_metric, list(labels or ()), pre_sliced, counted if pad and not group.left_out else None
            )

    def trained_parts(self) -> list[tuple[Any, Any]]:
        """The manager of the executors, and what updates its parameters."""
        return [(self._bound("checkpoint"), self._updater)]

    def install_monitor(self, mon: Any) -> None:
        """Let a monitor watch every executor, of all devices, present and future."""
        self._require("install_monitor", BOUND)
        self._monitor = mon
        self._bound("install_monitor").install_monitor(mon)

    def _before_inference(self) -> None:
        self._bound("score").merge_states()

    def _total(self, metric: Any) -> None:
        if self._comm is not None:
            state = metric.state()
            self._comm.allreduce(state)
            metric.merge([state])

    def _output_axes(self) -> list[int | None]:
        group = self._bound("predict").curr_execgrp
        return super()._output_axes() if group is None else group.output_axes
