"""One executor a device: a batch is cut over them, each runs its rows, gradients and outputs stay with their device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from ..context import Context, asnumpy, copyto
from ..errors import NotBoundError, ShapeError, format_shape
from ..executor import Executor, note_write
from ..threads import cores, limited_blas
from .binding import DeviceStore, bind_exec
from .loading import batch_axis, describe, load_general, rows_of

Array = Any


class DataParallelExecutorGroup:
    """Executors of one symbol on several devices, each with its slice of the batch.

    ``train_data`` gives ``provide_data`` and ``provide_label`` (descriptions of the whole batch); ``shared_group`` lends
    parameters, gradients, states and memory by name. Devices whose slice is empty have no executor. Attributes are
    MXNet's: ``train_execs slices data_names label_names param_names aux_names param_idx data_arrays label_arrays
    param_arrays grad_arrays aux_arrays shared_data_arrays`` (one mapping a device).
    """

    def __init__(
        self, sym: Any, arg_names: Sequence[str], param_names: Sequence[str], ctx: Sequence[Context], slices: Sequence[slice],
        train_data: Any, shared_group: DataParallelExecutorGroup | None = None, grad_req: str = "write", *,
        stores: Sequence[DeviceStore] | None = None, need_grad: Iterable[str] | None = None,
    ) -> None:  # fmt: skip
        self.symbol = sym
        self.ctx = list(ctx)
        self.slices = list(slices)
        data = [describe(item) for item in train_data.provide_data]
        labels = [describe(item) for item in train_data.provide_label or ()]
        arguments = set(arg_names)
        labels = [item for item in labels if item.name in arguments]  # a symbol without a loss reads no labels
        self.data_names = [item.name for item in data]
        self.label_names = [item.name for item in labels]
        self.aux_names = sym.list_auxiliary_states()
        wanted = set(param_names)
        self.param_idx = [i for i, name in enumerate(arg_names) if name in wanted]
        self.param_names = [arg_names[i] for i in self.param_idx]
        self._axis = {item.name: batch_axis(item) for item in (*data, *labels)}
        self.batch_size = self.slices[-1].stop
        if stores is None:
            stores = shared_group.stores if shared_group is not None else [DeviceStore(one) for one in self.ctx]
        self.stores = list(stores)
        self.shared_data_arrays = [store.inputs for store in self.stores]
        self.devices = [i for i, rows in enumerate(self.slices) if rows.stop > rows.start]
        self.train_execs: list[Executor] = []
        for i in self.devices:
            rows = self.slices[i].stop - self.slices[i].start
            shapes = {item.name: self._part(item, rows) for item in (*data, *labels)}
            types = {item.name: item.dtype for item in (*data, *labels)}
            self.train_execs.append(
                bind_exec(
                    sym, self.ctx[i], shapes, self.param_names, True if need_grad is None else set(need_grad),
                    shared_data_arrays=self.stores[i].inputs, input_types=types, store=self.stores[i], grad_req=grad_req,
                )
            )  # fmt: skip
        host = all(one.device.xp is np for one in self.ctx)  # devices with queues of their own need no threads
        self._threads = ThreadPoolExecutor(len(self.train_execs)) if host and len(self.train_execs) > 1 else None
        self._ran = False

    def _part(self, desc: Any, rows: int) -> tuple[int, ...]:
        shape, axis = list(desc.shape), self._axis[desc.name]
        if axis >= len(shape) or shape[axis] != self.batch_size:
            raise ShapeError(
                f"input '{desc.name}' {format_shape(shape)} must have the {self.batch_size} rows of the batch on axis {axis} "
                f"(its layout is {getattr(desc, 'layout', None)!r})"
            )
        shape[axis] = rows
        return tuple(shape)

    # --- arrays ------------------------------------------------------------------------------------------------

    def _inputs(self, names: Sequence[str]) -> list[list[tuple[Any, Array]]]:
        arrays = [executor.arg_dict for executor in self.train_execs]
        rows = [self.slices[i] for i in self.devices]
        return [
            [(rows_of(self._axis[name], part), held[name]) for part, held in zip(rows, arrays, strict=True)]
            for name in names
        ]

    @property
    def data_arrays(self) -> list[list[tuple[Any, Array]]]:
        """For every data input, (rows, array) of every device."""
        return self._inputs(self.data_names)

    @property
    def label_arrays(self) -> list[list[tuple[Any, Array]]]:
        """For every label, (rows, array) of every device."""
        return self._inputs(self.label_names)

    @property
    def param_arrays(self) -> list[list[Array]]:
        """For every parameter, its array on every device."""
        held = [executor.own_arguments for executor in self.train_execs]
        return [[arrays[name] for arrays in held] for name in self.param_names]

    @property
    def grad_arrays(self) -> list[list[Array]]:
        """For every parameter, its gradient on every device."""
        held = [executor.grad_dict for executor in self.train_execs]
        return [[arrays[name] for arrays in held] for name in self.param_names]

    @property
    def aux_arrays(self) -> list[list[Array]]:
        """For every auxiliary state, its array on every device."""
        return [[executor.aux_dict[name] for executor in self.train_execs] for name in self.aux_names]

    # --- a step ------------------------------------------------------------------------------------------------

    def load_data_batch(self, data_batch: Any) -> None:
        """Copy a batch into the devices' inputs; ShapeError names what does not fit."""
        load_general(data_batch.data, self.data_arrays, self.data_names)
        if data_batch.label:
            load_general(data_batch.label, self.label_arrays, self.label_names)

    def _everywhere(self, call: Callable[[int], Any]) -> None:
        """``call(i)`` for every executor, side by side on processors; the first exception propagates."""
        if self._threads is None:
            for i in range(len(self.train_execs)):
                call(i)
            return
        with limited_blas(max(1, cores() // len(self.train_execs))):
            futures = [self._threads.submit(call, i) for i in range(len(self.train_execs))]
            errors = [future.exception() for future in futures]
        for error in errors:
            if error is not None:
                raise error

    def forward(self, is_train: bool = False, step: int | None = None, first_row: int = 0) -> None:
        """Run forward on every device; ``step`` and ``first_row`` (of the global batch) address the random streams."""

        def run(i: int) -> None:
            executor = self.train_execs[i]
            executor.first_row = first_row + self.slices[self.devices[i]].start
            if step is not None:
                executor.step = step
            executor.forward(is_train)

        self._everywhere(run)
        self._ran = True

    def backward(self, out_grads: Any = None, on_ready: Callable[[str], None] | None = None) -> None:
        """Run backward on every device. ``out_grads``: head gradients of the whole batch, cut like it.

        ``on_ready(name)``: called as soon as the gradient of an argument is finished (one device only).
        """
        given = list(out_grads) if isinstance(out_grads, list | tuple) else None if out_grads is None else [out_grads]

        def run(i: int) -> None:
            rows = self.slices[self.devices[i]]
            executor = self.train_execs[i]
            heads = None if given is None else [None if g is None else _on(executor.context, g[rows]) for g in given]
            executor.backward(heads, on_ready=on_ready)

        self._everywhere(run)

    def sum_gradients(self, names: Iterable[str]) -> None:
        """Add every device's gradients to the first device's, in device order."""
        held = [executor.grad_dict for executor in self.train_execs]
        for name in names if len(held) > 1 else ():
            first = held[0][name]
            context = self.train_execs[0].context
            for arrays in held[1:]:
                other = arrays[name]
                if not context.device.owns(other):
                    other = _on(context, other)
                with context.device.enter():
                    context.xp.add(first, other, out=first)

    def spread_parameters(self, names: Iterable[str], words: str) -> None:
        """Copy the first device's parameters to the others, and tell that the engine has written them."""
        held = [executor.own_arguments for executor in self.train_execs]
        for name in names:
            note_write(held[0][name], words)
            for arrays in held[1:]:
                copyto(arrays[name], held[0][name])
                note_write(arrays[name], words)

    def get_outputs(self, merge_multi_context: bool = True) -> list[Any]:
        """Copies of the outputs: NumPy arrays of the whole batch, or one list of device arrays an output."""
        self.check_ran("outputs")
        outputs = [executor.outputs for executor in self.train_execs]
        if not merge_multi_context:
            return [[part.copy() for part in parts] for parts in zip(*outputs, strict=True)]
        return [np.concatenate([asnumpy(part) for part in parts]) for parts in zip(*outputs, strict=True)]

    def check_ran(self, what: str) -> None:
        """NotBoundError unless forward has run."""
        if not self._ran:
            raise NotBoundError(f"{what}: run forward first")

    def update_metric(self, metric: Any, labels: Sequence[Any], pre_sliced: bool = False) -> None:
        """Count every device's outputs against its rows of ``labels`` (``pre_sliced``: lists by device already)."""
        self.check_ran("update_metric")
        axes = [self._axis[name] for name in self.label_names] or [0] * len(labels)
        for place, executor in enumerate(self.train_execs):
            rows = self.slices[self.devices[place]]
            if pre_sliced:
                mine = list(labels[place])
            else:
                mine = [label[rows_of(axis, rows)] for label, axis in zip(labels, axes, strict=False)]
            metric.update(mine, executor.outputs)


def _on(context: Context, array: Array) -> Array:
    """``array`` on ``context``: itself if it lies there, else a copy."""
    if context.device.owns(array):
        return array
    copy = context.empty(tuple(array.shape), array.dtype, "input")
    copyto(copy, array)
    return copy
