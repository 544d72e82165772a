"""``mx.mod``: the modules of the engine, which take and hand out NDArrays.

A program's class may stand on any of them: what it defines itself is called with NDArrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ... import module as _core
from ...parallel.merging import merged
from ...train.batch import DataBatch
from .array import unwrap, wrap, wrap_all
from .executor import Executor
from .io import wrapped
from .symbol import own

__path__: list[str] = []  # programs import from modules inside this one
__all__ = ["BaseModule", "BucketingModule", "Module", "PythonLossModule", "PythonModule", "SequentialModule"]


class BaseModule(_core.BaseModule):
    """What all modules share: training, scoring and predicting on top of forward, backward and update."""

    def predict(
        self, eval_data: Any, num_batch: int | None = None, merge_batches: bool = True, reset: bool = True,
        always_output_list: bool = False, sparse_row_id_fn: Any = None, **_: Any,
    ) -> Any:  # fmt: skip
        """The outputs for an iterator's batches, or an array, without rows that only fill up a batch."""
        given = wrap(eval_data) if hasattr(eval_data, "shape") else eval_data
        return super().predict(given, num_batch, merge_batches, reset, always_output_list)

    @staticmethod
    def _merged(parts: Sequence[Any], axis: int | None) -> Any:
        context = parts[0].context
        return wrap(merged(unwrap(list(parts)), axis, context), context)

    def _without_pad(self, batch: Any, *others: Any) -> Any:
        found = super()._without_pad(plain_batch(batch), *others)
        if found is not None:
            found.data, found.label = wrapped(found.data), wrapped(found.label)
        return found


def plain_batch(batch: Any) -> Any:
    """A batch with plain arrays."""
    names = ("pad", "index", "bucket_key", "provide_data", "provide_label")
    held: dict[str, Any] = {name: getattr(batch, name, None) for name in names}
    found = DataBatch([], **held)
    found.data, found.label = unwrap(list(batch.data)), batch.label and unwrap(list(batch.label))
    for name in ("first_row", "_global_rows"):
        if hasattr(batch, name):
            setattr(found, name, getattr(batch, name))
    return found


def _step(name: str) -> Callable[..., Any]:
    """A method of the engine's module, called with plain arrays; what it gives comes out as NDArrays."""

    def method(self: Any, *args: Any, **keywords: Any) -> Any:
        function = getattr(super(_Handed, self), name)
        if self._inside:  # called by another method of the engine
            return function(*args, **keywords)
        self._inside = True
        try:
            return wrap_all(function(*unwrap(args), **unwrap(keywords)))
        finally:
            self._inside = False

    method.__name__ = name
    method.__doc__ = getattr(getattr(_core.Module, name), "__doc__", None)
    return method


class _Handed(BaseModule):
    """A module of the engine that takes and hands out NDArrays."""

    _inside = False
    bind, reshape, borrow_optimizer = _step("bind"), _step("reshape"), _step("borrow_optimizer")
    init_params, set_params, get_params = _step("init_params"), _step("set_params"), _step("get_params")
    init_optimizer, install_monitor = _step("init_optimizer"), _step("install_monitor")
    forward, backward, update = _step("forward"), _step("backward"), _step("update")
    get_outputs, get_input_grads = _step("get_outputs"), _step("get_input_grads")
    get_states, set_states, update_metric = _step("get_states"), _step("set_states"), _step("update_metric")
    save_params, load_params, save_checkpoint = _step("save_params"), _step("load_params"), _step("save_checkpoint")
    save_optimizer_states = _step("save_optimizer_states")
    load_optimizer_states = _step("load_optimizer_states")

    def _taken(self, batch: Any) -> Any:
        found = super()._taken(batch)  # type: ignore[misc]
        found.data, found.label = unwrap(list(found.data)), found.label and unwrap(list(found.label))
        return found

    @property
    def _exec_group(self) -> Any:
        """The executors of the current batch's bucket, under the name by which old programs reach for them."""
        manager = self._bound("_exec_group")  # type: ignore[attr-defined]
        return _Group(manager.curr_execgrp or manager.execgrp)

    @property
    def symbol(self) -> Any:
        """The symbol (of the default bucket)."""
        return own(super().symbol)

    @property
    def _data_shapes(self) -> Any:
        """`data_shapes`, or None before `bind`."""
        return self.data_shapes if self.binded else None

    @property
    def _label_shapes(self) -> Any:
        """`label_shapes`, or None before `bind`."""
        return self.label_shapes if self.binded else None

    @property
    def _param_names(self) -> list[str]:
        """Names of the arguments that are no inputs."""
        inputs = {*self.data_names, *self.label_names, *self._state_names}  # type: ignore[attr-defined]
        return [name for name in self.symbol.list_arguments() if name not in inputs]


class _Group:
    """A group of executors whose arrays are NDArrays: ``param_arrays``, ``grad_arrays``, … and ``execs``."""

    def __init__(self, core: Any) -> None:
        self._core = core

    @property
    def execs(self) -> list[Executor]:
        """The executors, one a device."""
        return [Executor(one) for one in self._core.train_execs]

    def __getattr__(self, name: str) -> Any:
        return wrap_all(getattr(self._core, name))


class Module(_Handed, _core.Module):
    """A symbol on one or several devices, with its parameters and its optimizer."""


class BucketingModule(_Handed, _core.BucketingModule):
    """One symbol a bucket, all on the same parameters, by name."""

    @property
    def _curr_module(self) -> Any:
        """This module: it stands for those of its buckets."""
        return self


class SequentialModule(BaseModule, _core.SequentialModule):
    """Modules in a chain, each on the outputs of the one before."""


class PythonModule(BaseModule, _core.PythonModule):
    """A computation in Python code on NDArrays."""


class PythonLossModule(PythonModule, _core.PythonLossModule):
    """A loss in Python code: ``grad_func(scores, labels)`` gives the gradient of the scores."""
