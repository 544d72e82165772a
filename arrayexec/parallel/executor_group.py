"""One executor a device: a batch is cut over them, each runs its rows, gradients and outputs stay with their device."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from ..context import Context, brought, copyto
from ..errors import BindError, NotBoundError, ShapeError, format_shape
from ..executor import Executor, note_write
from ..threads import cores, limited_blas
from .binding import DeviceStore, bind_exec, ignored_parameters
from .loading import Described, batch_axis, load_general, rows_of
from .merging import first_part, merged, row_axes

Array = Any


class DataParallelExecutorGroup:
    """Executors of one symbol on several devices, each with its slice of the batch.

    ``train_data`` gives ``provide_data`` and ``provide_label`` (descriptions of the whole batch); ``shared_group``
    lends parameters, gradients, states and memory by name. Devices whose slice is empty have no executor.
    ``grad_req``: that of all parameters, or one a name (absent: null). ``group2ctxs``: a `group2ctx` a device.
    Attributes are MXNet's: ``train_execs slices data_names label_names param_names aux_names param_idx data_arrays
    label_arrays param_arrays grad_arrays aux_arrays shared_data_arrays`` (one mapping a device).
    """

    def __init__(
        self, sym: Any, arg_names: Sequence[str], param_names: Sequence[str], ctx: Sequence[Context],
        slices: Sequence[slice], train_data: Any, shared_group: DataParallelExecutorGroup | None = None,
        grad_req: str | Mapping[str, str] = "write", *,
        stores: Sequence[DeviceStore] | None = None, logger: Any = logging,
        group2ctxs: Sequence[Mapping[str, Context] | None] | None = None,
    ) -> None:  # fmt: skip
        self.symbol = sym
        self.ctx = list(ctx)
        self.slices = list(slices)
        self.batch_size = self.slices[-1].stop
        self.left_out = 0
        """Rows of the loaded batch that are not here (they only filled it up), but in its labels."""
        self.described = described = Described.of(train_data.provide_data, train_data.provide_label)
        arguments = set(arg_names)
        self._axis = {item.name: batch_axis(item) for item in described.all}
        self._labels = [item.name for item in described.provide_label]
        self.data_names = [item.name for item in described.provide_data]
        self.label_names = [name for name in self._labels if name in arguments]  # without a loss nobody reads labels
        self.aux_names = sym.list_auxiliary_states()
        wanted = set(param_names)
        self.param_idx = [i for i, name in enumerate(arg_names) if name in wanted]
        self.param_names = [arg_names[i] for i in self.param_idx]
        every = dict.fromkeys(self.param_names, grad_req) if isinstance(grad_req, str) else grad_req
        requests = {n: request for n, request in every.items() if n in arguments and request != "null"}
        ignored = ignored_parameters(sym)
        self.trained_names = [name for name in self.param_names if name in requests and name not in ignored]
        """Parameters that an update changes: with a gradient, and with values that count for something."""
        if stores is None:
            stores = shared_group.stores if shared_group is not None else [DeviceStore(one) for one in self.ctx]
        self.stores: list[DeviceStore] = list(stores)
        self.shared_data_arrays = [store.inputs for store in self.stores]
        self.devices = [i for i, rows in enumerate(self.slices) if rows.stop > rows.start]
        inputs = [item for item in described.all if item.name in (*self.data_names, *self.label_names)]
        self.train_execs: list[Executor] = [
            bind_exec(
                sym, self.ctx[i], {item.name: self._part(item, self.slices[i]) for item in inputs},
                self.param_names, requests.keys(), None, self.stores[i].inputs,
                {item.name: item.dtype for item in inputs}, logger, store=self.stores[i], grad_req=requests,
                group2ctx=group2ctxs[i] if group2ctxs else None,
            )
            for i in self.devices
        ]  # fmt: skip
        self._ran = False

    def _part(self, desc: Any, rows: slice) -> tuple[int, ...]:
        shape, axis = list(desc.shape), self._axis[desc.name]
        if axis >= len(shape) or shape[axis] != self.batch_size:
            raise ShapeError(
                f"input '{desc.name}' {format_shape(shape)} must have the {self.batch_size} rows of the batch "
                f"on axis {axis} (its layout is {desc.layout!r})"
            )
        shape[axis] = rows.stop - rows.start
        return tuple(shape)

    @property
    def execs(self) -> list[Executor]:
        """Another name of ``train_execs``."""
        return self.train_execs

    # --- arrays ------------------------------------------------------------------------------------------------

    def _inputs(self, names: Sequence[str]) -> list[list[tuple[Any, Array]]]:
        rows, held = [self.slices[i] for i in self.devices], [executor.arg_dict for executor in self.train_execs]
        return [
            [(rows_of(self._axis[name], part), array) for part, array in zip(rows, arrays, strict=True)]
            for name, arrays in zip(names, _by_name(names, held), strict=True)
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
        return _by_name(self.param_names, [executor.own_arguments for executor in self.train_execs])

    @property
    def grad_arrays(self) -> list[list[Array]]:
        """For every parameter, its gradient on every device."""
        return _by_name(self.param_names, [executor.grad_dict for executor in self.train_execs])

    @property
    def aux_arrays(self) -> list[list[Array]]:
        """For every auxiliary state, its array on every device."""
        return _by_name(self.aux_names, [executor.aux_dict for executor in self.train_execs])

    # --- a step ------------------------------------------------------------------------------------------------

    def load_data_batch(self, data_batch: Any) -> None:
        """Copy a batch into the devices' inputs; ShapeError names what does not fit."""
        load_general(data_batch.data, self.data_arrays, self.data_names)
        labels = list(data_batch.label or ())
        if len(labels) == len(self._labels):
            labels = [array for name, array in zip(self._labels, labels, strict=True) if name in self.label_names]
        if labels:
            load_general(labels, self.label_arrays, self.label_names)

    def _everywhere(self, call: Callable[[int], Any]) -> None:
        """``call(i)`` for every executor, side by side on processors; the first exception propagates."""
        count = len(self.train_execs)
        # Devices with queues of their own need no threads, and callbacks run on the caller's.
        if count == 1 or any(one.is_watched or one.context.device.xp is not np for one in self.train_execs):
            for i in range(count):
                call(i)
            return
        with limited_blas(max(1, cores() // count)):
            futures = [_threads(count).submit(call, i) for i in range(count)]
            errors = [future.exception() for future in futures]
        for executor, error in zip(self.train_execs, errors, strict=True):
            if error is not None:
                error.add_note(f"on {executor.context}, one of {count} devices")
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
        self._check_ran("backward")
        given = () if out_grads is None else out_grads
        heads = list(given) if isinstance(given, list | tuple) else [given]
        parts: list[list[Array]] = [[] for _ in self.train_execs]
        for number, head in enumerate(heads):
            for mine, part in zip(parts, self._cut_head(number, head), strict=True):
                mine.append(part)
        self._everywhere(lambda i: self.train_execs[i].backward(parts[i] or None, on_ready=on_ready))

    def _cut_head(self, number: int, head: Array | None) -> list[Array | None]:
        """The part of a head gradient that each device gets: as many rows as its output has."""
        if head is None:
            return [None] * len(self.train_execs)
        if not hasattr(head, "shape"):
            kind = type(head).__name__
            raise BindError(f"backward: head gradient {number} must be an array, but it is a {kind}")
        outputs = [executor.outputs for executor in self.train_execs]
        if number >= len(outputs[0]):
            return [head] * len(outputs)  # one too many, as the executors will say
        if len(outputs) == 1:
            return [brought(head, self.train_execs[0].context, "input")]
        axis = self.output_axes[number] or 0
        rows = [mine[number].shape[axis] for mine in outputs]
        if head.shape[axis : axis + 1] != (sum(rows),):
            raise ShapeError(
                f"backward: head gradient {number} must have the {sum(rows)} rows of all devices, but its shape is "
                f"{format_shape(head.shape)}"
            )
        return self._cut(head, axis, rows)

    def _cut(self, array: Array, axis: int, rows: Sequence[int]) -> list[Array]:
        """Consecutive ``rows`` of an array, each where its device is."""
        ends = np.cumsum(rows).tolist()
        return [
            brought(array[rows_of(axis, slice(end - count, end))], executor.context, "input")
            for executor, count, end in zip(self.train_execs, rows, ends, strict=True)
        ]

    @functools.cached_property
    def _row_axes(self) -> tuple[dict[str, int | None], list[int | None]]:
        return row_axes(self.symbol, self.described)

    @property
    def output_axes(self) -> list[int | None]:
        """For every output the axis that has the rows of the batch; None where there is none."""
        return self._row_axes[1]

    def get_outputs(self, merge_multi_context: bool = True, copy: bool = True) -> list[Any]:
        """Copies of the outputs, each of the whole batch on the first device, or one list of device arrays an output.

        Without ``copy`` what lies on one device is the executor's own array, which the next forward overwrites.
        """
        self._check_ran("outputs")
        outputs = [list(parts) for parts in zip(*(one.outputs for one in self.train_execs), strict=True)]
        axes = self.output_axes if merge_multi_context and len(self.train_execs) > 1 else [None] * len(outputs)
        return [self._handed(*one, merge_multi_context, copy) for one in zip(outputs, axes, strict=True)]

    def get_arguments(
        self, names: Sequence[str], gradients: bool = False, merge_multi_context: bool = True, copy: bool = True
    ) -> list[Any]:
        """Arguments, or their gradients, as `get_outputs` gives outputs."""
        axes = self._row_axes[0] | self._axis
        held = [one.grad_dict if gradients else one.arg_dict for one in self.train_execs]
        parts = _by_name(names, held)
        return [
            self._handed(mine, axes[name], merge_multi_context, copy) for name, mine in zip(names, parts, strict=True)
        ]

    def _handed(self, parts: list[Array], axis: int | None, merge: bool, copy: bool) -> Any:
        if merge and len(parts) > 1:
            return merged(parts, axis, self.train_execs[0].context)
        handed = [part.copy() for part in parts] if copy else parts
        return handed[0] if merge else handed

    def set_arguments(self, names: Sequence[str], values: Sequence[Any]) -> None:
        """Write arguments: each value a number, an array of the whole batch, or a list of arrays by device."""
        axes = self._row_axes[0] | self._axis
        held = _by_name(names, [executor.arg_dict for executor in self.train_execs])
        for name, value, targets in zip(names, values, held, strict=True):
            if hasattr(value, "shape"):
                axis = axes[name] or 0
                value = self._cut(value, axis, [target.shape[axis] for target in targets])
            parts = value if isinstance(value, list | tuple) else [value] * len(targets)
            for target, part in zip(targets, parts, strict=True):
                copyto(target, np.broadcast_to(part, target.shape) if isinstance(part, int | float) else part)
                note_write(target, "set_states")

    def _check_ran(self, what: str) -> None:
        if not self._ran:
            raise NotBoundError(f"{what}: run forward first")

    def update_metric(
        self, metric: Any, labels: Sequence[Any], pre_sliced: bool = False, valid: int | None = None
    ) -> None:
        """Count every device's outputs against its rows of ``labels`` (``pre_sliced``: lists by device already).

        Only the first ``valid`` rows of the batch count (None: all). A metric that knows ``update_dict`` is given
        labels and outputs by name.
        """
        self._check_ran("update_metric")
        axes = [self._axis[name] for name in self._labels]
        if not pre_sliced:
            for name, axis, label in zip(self._labels, axes, labels, strict=False):
                shape = np.shape(label)
                if shape[axis : axis + 1] not in ((self.batch_size,), (self.batch_size + self.left_out,)):
                    raise ShapeError(
                        f"update_metric: label '{name}' must have the {self.batch_size} rows of the batch on axis "
                        f"{axis}, but it is {format_shape(shape)}"
                    )
        axes += [0] * (len(labels) - len(axes))
        names = self.symbol.list_outputs()
        named = hasattr(metric, "update_dict") and len(set(names)) == len(names) and not pre_sliced
        for place, executor in enumerate(self.train_execs):
            rows = self.slices[self.devices[place]]
            end = rows.stop if valid is None else min(rows.stop, valid)
            if end <= rows.start:
                continue
            outputs = executor.outputs
            if end < rows.stop:
                part, count = end - rows.start, rows.stop - rows.start
                pairs = zip(outputs, self.output_axes, strict=True)
                outputs = [first_part(output, axis, part, count) for output, axis in pairs]
            mine = labels[place] if pre_sliced else [
                label[rows_of(axis, slice(rows.start, end))] for label, axis in zip(labels, axes, strict=False)
            ]  # fmt: skip
            if named and len(mine) == len(self._labels):
                metric.update_dict(dict(zip(self._labels, mine, strict=True)), dict(zip(names, outputs, strict=True)))
            else:
                metric.update(list(mine), outputs)


def _by_name(names: Sequence[str], held: Sequence[Mapping[str, Array]]) -> list[list[Array]]:
    return [[arrays[name] for arrays in held] for name in names]


@functools.cache
def _threads(count: int) -> ThreadPoolExecutor:
    """The threads of all groups of ``count`` devices."""
    return ThreadPoolExecutor(count, "arrayexec-device")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_threads.cache_clear)  # a child has none of its parent's threads
