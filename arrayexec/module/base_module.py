"""What all modules share: training, scoring and predicting on top of forward, backward and update."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..context import context_of
from ..errors import ArgumentError, CheckpointError, NotBoundError, ShapeError
from ..files import load, save
from ..parallel.loading import Described, first_rows
from ..parallel.merging import merged
from ..train import metric as metrics
from ..train.batch import DataBatch, DataDesc
from ..train.callback import BatchEndParam
from ..train.initializer import Uniform
from .checkpoint import FitKeeper

Array = Any
Callbacks = Callable[..., Any] | Iterable[Callable[..., Any]] | None
BOUND, WITH_PARAMS, WITH_OPTIMIZER = "binded", "params_initialized", "optimizer_initialized"
"""The flags of a module, in the order in which they are set: MXNet's words."""
_BEFORE = {
    BOUND: "be bound first: call bind(data_shapes, label_shapes)",
    WITH_PARAMS: "have parameters first: call init_params() or set_params(…)",
    WITH_OPTIMIZER: "have an optimizer first: call init_optimizer()",
}


class StopTraining(Exception):
    """Raised by a callback of an epoch's end or of an evaluation's end: that epoch is the last one of `fit`."""


def listed(callbacks: Callbacks) -> list[Callable[..., Any]]:
    """One callback, or all of several."""
    return [callbacks] if callable(callbacks) else list(callbacks or ())


def call_all(callbacks: Callbacks, *arguments: Any) -> None:
    """Call one callback, or all of several."""
    for callback in listed(callbacks):
        callback(*arguments)


class BaseModule:
    """A computation that is bound, given parameters and an optimizer, and then run on batches.

    A subclass gives ``bind init_params init_optimizer forward backward update get_outputs get_input_grads
    update_metric get_params`` and the properties below. Flags tell what has been done: ``binded for_training
    inputs_need_grad params_initialized optimizer_initialized``.
    """

    symbol: Any = None

    def __init__(self, logger: Any = None) -> None:
        self.logger = logger if logger is not None else logging.getLogger("arrayexec")
        self.binded = self.for_training = self.inputs_need_grad = False
        self.params_initialized = self.optimizer_initialized = False

    def _require(self, call: str, *flags: str) -> None:
        """NotBoundError unless all that is needed has been done."""
        for flag in flags:
            if not getattr(self, flag):
                raise self._lacks(call, flag)

    def __getstate__(self) -> Any:
        if self.binded:
            raise ArgumentError(
                f"{type(self).__name__}: a module that is bound cannot be pickled or copied: send "
                "module.symbol.tojson() and module.get_params(), or save_checkpoint, and bind another one"
            )
        return super().__getstate__()

    @staticmethod
    def _lacks(call: str, flag: str) -> NotBoundError:
        return NotBoundError(f"{call}: the module must {_BEFORE[flag]}")

    def _is_missing(self, method: str) -> NotBoundError:
        return NotBoundError(f"{type(self).__name__} has no {method}: its class must define it")

    # --- what a subclass says of itself ------------------------------------------------------------------------

    @property
    def data_names(self) -> list[str]:
        """Names of the data inputs."""
        raise self._is_missing("data_names")

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs."""
        raise self._is_missing("output_names")

    @property
    def data_shapes(self) -> Sequence[Any]:
        """Descriptions of the data inputs."""
        raise self._is_missing("data_shapes")

    @property
    def label_shapes(self) -> Sequence[Any] | None:
        """Descriptions of the labels; None where there are none."""
        raise self._is_missing("label_shapes")

    @property
    def output_shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        """Name and shape of every output."""
        raise self._is_missing("output_shapes")

    def bind(
        self, data_shapes: Sequence[Any], label_shapes: Sequence[Any] | None = None, for_training: bool = True,
        inputs_need_grad: bool = False, force_rebind: bool = False, shared_module: Any = None, grad_req: Any = "write",
    ) -> None:  # fmt: skip
        """Make executors for inputs of these shapes."""
        raise self._is_missing("bind")

    def init_params(
        self, initializer: Any = Uniform(0.01), arg_params: Mapping[str, Array] | None = None,  # noqa: B008
        aux_params: Mapping[str, Array] | None = None, allow_missing: bool = False, force_init: bool = False,
        allow_extra: bool = False,
    ) -> None:  # fmt: skip
        """Give parameters and auxiliary states their first values."""
        raise self._is_missing("init_params")

    def init_optimizer(
        self, kvstore: Any = "local", optimizer: Any = "sgd", optimizer_params: Any = (("learning_rate", 0.01),),
        force_init: bool = False,
    ) -> None:  # fmt: skip
        """Make the optimizer, and say how gradients are summed."""
        raise self._is_missing("init_optimizer")

    def forward(self, data_batch: Any, is_train: bool | None = None) -> None:
        """Run forward on a batch."""
        raise self._is_missing("forward")

    def backward(self, out_grads: Any = None) -> None:
        """Run backward."""
        raise self._is_missing("backward")

    def update(self) -> None:
        """Update the parameters by the gradients."""
        raise self._is_missing("update")

    def get_outputs(self, merge_multi_context: bool = True) -> list[Any]:
        """Outputs of the last forward."""
        raise self._is_missing("get_outputs")

    def get_input_grads(self, merge_multi_context: bool = True) -> list[Any]:
        """Gradients of the data inputs, of the last backward."""
        raise self._is_missing("get_input_grads")

    def update_metric(self, eval_metric: Any, labels: Sequence[Array], pre_sliced: bool = False) -> None:
        """Count the outputs of the last forward against labels."""
        raise self._is_missing("update_metric")

    def get_params(self) -> tuple[dict[str, Array], dict[str, Array]]:
        """Parameters and auxiliary states by name, copies in host memory."""
        raise self._is_missing("get_params")

    def install_monitor(self, mon: Any) -> None:
        """Let a monitor watch all executors."""
        raise self._is_missing("install_monitor")

    def prepare(self, data_batch: Any, sparse_row_id_fn: Any = None) -> None:
        """Get ready for a batch that is not run yet; there is nothing to do."""

    def get_states(self, merge_multi_context: bool = True) -> list[Any]:
        """The inputs that are kept from batch to batch; there are none."""
        self._require("get_states", BOUND, WITH_PARAMS)
        return []

    def set_states(self, states: Any = None, value: float | None = None) -> None:
        """Write the inputs that are kept from batch to batch; there are none."""
        self._require("set_states", BOUND, WITH_PARAMS)

    def trained_parts(self) -> list[tuple[Any, Any]]:
        """For checkpoints: every manager of executors with the updater of its parameters (None: there is none yet)."""
        raise self._is_missing("trained_parts")

    def _before_inference(self) -> None:
        """Called on all ranks before a run of batches is looked at."""

    def _total(self, metric: Any) -> None:
        """Make a metric that of all ranks."""

    def _output_axes(self) -> list[int | None]:
        """The axis of every output that has the rows of the batch."""
        return [0] * len(self.output_names)

    @staticmethod
    def _merged(parts: Sequence[Array], axis: int | None) -> Array:
        """One array of the outputs of several batches."""
        return merged(parts, axis, context_of(parts[0]))

    def _has_ranks(self) -> bool:
        """Whether gradients are summed over ranks."""
        return False

    def _speaks(self) -> bool:
        """Whether this rank writes logs and files."""
        return True

    # --- parameters --------------------------------------------------------------------------------------------

    def set_params(
        self, arg_params: Mapping[str, Array] | None, aux_params: Mapping[str, Array] | None,
        allow_missing: bool = False, force_init: bool = True, allow_extra: bool = False,
    ) -> None:  # fmt: skip
        """Give parameters and auxiliary states values by name; see `init_params`."""
        self.init_params(
            initializer=None, arg_params=arg_params, aux_params=aux_params, allow_missing=allow_missing,
            force_init=force_init, **_only_if(allow_extra=allow_extra),
        )  # fmt: skip

    def save_params(self, fname: str) -> None:
        """Write parameters and auxiliary states to a ``.params`` file (rank 0 does)."""
        held = self.get_params()
        if self._speaks():
            save(fname, joined_params(*held))

    def load_params(self, fname: str) -> None:
        """Give parameters and auxiliary states the values of a ``.params`` file."""
        arg_params, aux_params = split_params(load(fname), fname)
        self.set_params(arg_params, aux_params)

    # --- runs over many batches --------------------------------------------------------------------------------

    def forward_backward(self, data_batch: Any) -> None:
        """Training forward, then backward."""
        self.forward(data_batch, is_train=True)
        self.backward()

    def score(
        self, eval_data: Any, eval_metric: Any, num_batch: int | None = None, batch_end_callback: Callbacks = None,
        score_end_callback: Callbacks = None, reset: bool = True, epoch: int = 0, sparse_row_id_fn: Any = None, *,
        drop_pad: bool = True,
    ) -> list[tuple[str, float]]:  # fmt: skip
        """The metric of the outputs for ``eval_data``, as ``[(name, value)]``; with ranks that of all ranks' rows.

        Rows that only fill up a batch do not count, unless ``drop_pad`` is False.
        """
        self._require("score", BOUND, WITH_PARAMS)
        eval_metric = metrics.create(eval_metric)
        eval_metric.reset()
        number = -1
        for number, batch in self._batches(eval_data, num_batch, reset):
            eval_batch = self._without_pad(batch, drop_pad)
            if eval_batch is not None:
                self.forward(eval_batch, is_train=False)
                self.update_metric(eval_metric, eval_batch.label)
            call_all(batch_end_callback, BatchEndParam(epoch, number, eval_metric, locals()))
        self._total(eval_metric)
        call_all(score_end_callback, BatchEndParam(epoch, number + 1, eval_metric, locals()))
        return list(eval_metric.get_name_value())

    def iter_predict(
        self, eval_data: Any, num_batch: int | None = None, reset: bool = True, sparse_row_id_fn: Any = None
    ) -> Iterator[tuple[list[Array], int, Any]]:
        """``(outputs, number, batch)`` for every batch; outputs are copies without the rows that only fill it up."""
        self._require("iter_predict", BOUND, WITH_PARAMS)
        for number, batch in self._batches(eval_data, num_batch, reset):
            predicted = self._without_pad(batch)
            if predicted is not None:
                self.forward(predicted, is_train=False)
                yield self.get_outputs(), number, batch

    def predict(
        self, eval_data: Any, num_batch: int | None = None, merge_batches: bool = True, reset: bool = True,
        always_output_list: bool = False, sparse_row_id_fn: Any = None,
    ) -> Any:  # fmt: skip
        """The outputs for an iterator's batches, or an array: one array an output, of all rows (of this rank).

        A single output comes alone unless ``always_output_list``; without ``merge_batches`` there is a list of outputs
        for every batch. Raises ShapeError where outputs of several batches cannot be put together.
        """
        self._require("predict", BOUND, WITH_PARAMS)
        if hasattr(eval_data, "shape"):
            self.forward(DataBatch([eval_data]), is_train=False)
            outputs = self.get_outputs()
            return outputs if always_output_list or len(outputs) > 1 else outputs[0]
        batches = [outputs for outputs, _, _ in self.iter_predict(eval_data, num_batch, reset)]
        if not batches or not merge_batches:
            return batches
        found = []
        for parts, axis in zip(zip(*batches, strict=True), self._output_axes(), strict=True):
            others = {_without(part.shape, axis) for part in parts}
            if len(others) > 1:
                raise ShapeError(
                    f"predict: the outputs of all batches must fit together, but their shapes are "
                    f"{', '.join(str(part.shape) for part in parts[:4])}: give merge_batches=False"
                )
            found.append(self._merged(parts, axis))
        return found if always_output_list or len(found) > 1 else found[0]

    def fit(
        self, train_data: Any, eval_data: Any = None, eval_metric: Any = "acc", epoch_end_callback: Callbacks = None,
        batch_end_callback: Callbacks = None, kvstore: Any = "local", optimizer: Any = "sgd",
        optimizer_params: Any = (("learning_rate", 0.01),), eval_end_callback: Callbacks = None,
        eval_batch_end_callback: Callbacks = None, initializer: Any = Uniform(0.01),  # noqa: B008
        arg_params: Mapping[str, Array] | None = None, aux_params: Mapping[str, Array] | None = None,
        allow_missing: bool = False, force_rebind: bool = False, force_init: bool = False, begin_epoch: int = 0,
        num_epoch: int | None = None, validation_metric: Any = None, monitor: Any = None, sparse_row_id_fn: Any = None,
        *, allow_extra: bool = False, checkpoint: Any = None, resume: bool = False,
    ) -> None:  # fmt: skip
        """Bind, initialise and train for the epochs ``begin_epoch`` … ``num_epoch`` − 1.

        Callbacks get a `BatchEndParam` after a batch, and (epoch, symbol, arg_params, aux_params) after an epoch; what
        they change (the optimizer's learning rate, say) counts from the next step on. One that raises `StopTraining`
        at the end of an epoch or of an evaluation makes that epoch the last one. Metrics leave out rows that only
        fill up a batch; with ranks they are those of all ranks at the end of an epoch.
        ``checkpoint``: a directory, or `Checkpoints`, where all is saved after every epoch (and between, see there);
        with ``resume`` training goes on from the newest one there, if there is one.
        """
        if num_epoch is None:
            raise ArgumentError("fit: num_epoch must be given, the number of the epoch before which training ends")
        if resume and checkpoint is None:
            raise ArgumentError("fit: resume=True needs checkpoint, the directory to go on from")
        if not hasattr(train_data, "provide_data"):
            what = type(train_data).__name__
            raise ArgumentError(f"fit: train_data must be an iterator (io.NDArrayIter of arrays), but it is a {what}")
        self._announce(train_data)
        self.bind(train_data.provide_data, train_data.provide_label, for_training=True, force_rebind=force_rebind)
        if monitor is not None:
            self.install_monitor(monitor)
        if force_init or not self.params_initialized:
            self.init_params(
                initializer=initializer, arg_params=arg_params, aux_params=aux_params, allow_missing=allow_missing,
                force_init=force_init, **_only_if(allow_extra=allow_extra),
            )  # fmt: skip
        if force_init or not self.optimizer_initialized:
            self.init_optimizer(kvstore, optimizer, optimizer_params, force_init)
        eval_metric = metrics.create(eval_metric)
        validation_metric = eval_metric if validation_metric is None else validation_metric
        if eval_data is None and (eval_end_callback is not None or eval_batch_end_callback is not None):
            self.logger.warning("fit: without eval_data callbacks of evaluations are never called")
        log = self.logger.info if self._speaks() else _quiet
        callbacks = map(listed, (batch_end_callback, epoch_end_callback, eval_end_callback, eval_batch_end_callback))
        keeper = FitKeeper(checkpoint, self, train_data, eval_metric, itertools.chain.from_iterable(callbacks))
        begin_epoch, begin_batch = keeper.begin(begin_epoch, resume)
        for epoch in range(begin_epoch, num_epoch):
            start = time.perf_counter()
            if not begin_batch:
                eval_metric.reset()
            nbatch = begin_batch - 1
            for nbatch, data_batch in enumerate(train_data, begin_batch):
                if monitor is not None:
                    monitor.tic()
                self.forward_backward(data_batch)
                self.update()
                self.update_metric(eval_metric, data_batch.label)
                if monitor is not None:
                    monitor.toc_print()
                call_all(batch_end_callback, BatchEndParam(epoch, nbatch, eval_metric, locals()))
                keeper.after_batch(epoch, nbatch + 1)
            if nbatch < 0:
                raise ArgumentError(f"fit: train_data must give batches, but it gives none in epoch {epoch}")
            self._total(eval_metric)
            for name, value in eval_metric.get_name_value():
                log("Epoch[%d] Train-%s=%f", epoch, name, value)
            log("Epoch[%d] Time cost=%.3f", epoch, time.perf_counter() - start)
            arg_params, aux_params = self.get_params()
            self._before_inference()
            stopped = None
            try:
                call_all(epoch_end_callback, epoch, self.symbol, arg_params, aux_params)
                if eval_data is not None:
                    found = self.score(
                        eval_data, validation_metric, score_end_callback=eval_end_callback,
                        batch_end_callback=eval_batch_end_callback, epoch=epoch,
                    )  # fmt: skip
                    for name, value in found:
                        log("Epoch[%d] Validation-%s=%f", epoch, name, value)
            except StopTraining as reason:
                stopped = reason
            train_data.reset()
            begin_batch = 0
            keeper.after_epoch(epoch)
            if stopped is not None:
                log("Epoch[%d] Training ends: %s", epoch, stopped)
                return

    def _announce(self, train_data: Any) -> None:
        """Called with the iterator before a training is bound."""

    def _batches(self, source: Any, count: int | None, reset: bool) -> Iterator[tuple[int, Any]]:
        if reset and hasattr(source, "reset"):
            getattr(source, "hard_reset", source.reset)()
        self._before_inference()
        for number, batch in enumerate(source):
            if number == count:
                return
            yield number, batch

    def _without_pad(self, batch: Any, drop: bool = True) -> Any:
        """The batch without the rows that only fill it up (or as if they did not); None where no row is left."""
        pad = getattr(batch, "pad", None) or 0
        if not pad:
            return batch
        part = self._first_rows(batch, pad * drop)
        return part if part.rows > 0 else None

    def _first_rows(self, batch: Any, pad: int) -> DataBatch:
        """The batch without its last ``pad`` rows."""
        labels = self.label_shapes or [DataDesc(f"_{i}_label", a.shape) for i, a in enumerate(batch.label or ())]
        described = Described.of(self.data_shapes, labels).of_batch(batch)
        rows = max(0, described.rows - pad)
        part, described = first_rows(batch, described, rows), described.with_rows(rows)
        return DataBatch(
            part.data, part.label, 0, getattr(batch, "index", None), getattr(batch, "bucket_key", None),
            list(described.provide_data), list(described.provide_label), getattr(batch, "first_row", 0),
            getattr(batch, "global_rows", None),
        )  # fmt: skip


def _only_if(**options: bool) -> dict[str, bool]:
    """The options that are set: methods of subclasses that were written before there were such do without."""
    return {name: value for name, value in options.items() if value}


def _quiet(*_: object) -> None:
    """Logs nothing."""


def _without(shape: Sequence[int], axis: int | None) -> tuple[int, ...]:
    return (*shape[: axis or 0], *shape[(axis or 0) + 1 :])


def joined_params(arg_params: Mapping[str, Array], aux_params: Mapping[str, Array]) -> dict[str, Array]:
    """Parameters and auxiliary states under their names in a parameter file."""
    return {f"arg:{n}": a for n, a in arg_params.items()} | {f"aux:{n}": a for n, a in aux_params.items()}


def split_params(loaded: Any, where: str) -> tuple[dict[str, Array], dict[str, Array]]:
    """Parameters and auxiliary states of a file: names ``arg:…`` and ``aux:…``; others count as parameters.

    Raises CheckpointError where arrays have no names, or one name twice.
    """
    if not isinstance(loaded, Mapping):
        raise CheckpointError(f"{where!r}: the arrays of a parameter file must have names, but they have none")
    arg_params: dict[str, Array] = {}
    aux_params: dict[str, Array] = {}
    for name, array in loaded.items():
        held = aux_params if name.startswith("aux:") else arg_params
        bare = name.partition(":")[2] if name.startswith(("arg:", "aux:")) else name
        if bare in held:
            raise CheckpointError(f"{where!r}: names must differ, but {bare!r} stands with and without 'arg:'")
        held[bare] = array
    return arg_params, aux_params
