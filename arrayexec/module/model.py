"""The public face of models: `FeedForward`, the older face of training, and the functions of `model_files`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..context import Context, asnumpy
from ..errors import ArgumentError, NotBoundError
from ..symbol import Symbol
from ..train.callback import BatchEndParam
from ..train.initializer import Uniform
from ..train.io import NDArrayIter, ResizeIter
from .base_module import Callbacks, call_all
from .bucketing_module import BucketingModule
from .model_files import load_checkpoint, load_params, save_checkpoint
from .module import Module

__all__ = ["BatchEndParam", "FeedForward", "load_checkpoint", "load_params", "save_checkpoint"]

Array = Any


class FeedForward:
    """A symbol (or one a bucket, ``symbol(key)``), its parameters and how it is trained, for iterators and arrays.

    ``numpy_batch_size``: rows of a batch of arrays; ``epoch_size``: batches of an epoch (None: all); further options
    are the optimizer's. ``arg_params`` and ``aux_params`` are those of the last epoch. Batch callbacks count from 1.
    """

    def __init__(
        self, symbol: Symbol | Callable[[Any], Any], ctx: Any = None, num_epoch: int | None = None,
        epoch_size: int | None = None, optimizer: Any = "sgd", initializer: Any = Uniform(0.01),  # noqa: B008
        numpy_batch_size: int = 128, arg_params: Mapping[str, Array] | None = None,
        aux_params: Mapping[str, Array] | None = None, allow_extra_params: bool = False, begin_epoch: int = 0,
        **kwargs: Any,
    ) -> None:  # fmt: skip
        self.sym_gen = None if isinstance(symbol, Symbol) else symbol
        self.symbol = symbol if isinstance(symbol, Symbol) else None
        if self.symbol is None and not callable(symbol):
            raise ArgumentError(f"FeedForward: symbol must be a Symbol or a function of the bucket key, not {symbol!r}")
        self.ctx: Context | list[Context] | None = ctx
        self.num_epoch, self.begin_epoch, self.epoch_size = num_epoch, begin_epoch, epoch_size
        self.optimizer, self.initializer, self.kwargs = optimizer, initializer, kwargs
        self.numpy_batch_size, self.allow_extra_params = numpy_batch_size, allow_extra_params
        self.arg_params, self.aux_params = arg_params, aux_params
        self._label_names: list[str] = []  # of the last training
        self._predictor: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_predictor": None}  # made anew when it is needed

    # --- training ----------------------------------------------------------------------------------------------

    def fit(
        self, X: Any, y: Any = None, eval_data: Any = None, eval_metric: Any = "acc",
        epoch_end_callback: Callbacks = None, batch_end_callback: Callbacks = None, kvstore: Any = "local",
        logger: Any = None, work_load_list: Any = None, monitor: Any = None, eval_end_callback: Callbacks = None,
        eval_batch_end_callback: Callbacks = None,
    ) -> FeedForward:  # fmt: skip
        """Train on an iterator, or on arrays ``X`` and ``y``; ``eval_data``: an iterator or a pair of arrays."""
        data = self._iterator(X, y, training=True)
        if isinstance(eval_data, list | tuple) and len(eval_data) == 2:
            eval_data = self._iterator(eval_data[0], eval_data[1], training=True)
        if self.num_epoch is None:
            raise ArgumentError("FeedForward.fit: num_epoch must be given to FeedForward")
        self._label_names = [item[0] for item in data.provide_label or ()]
        module = self._module(data, self._label_names, work_load_list, logger)
        if self.epoch_size is not None:
            data = ResizeIter(data, self.epoch_size, reset_internal=False)

        def keep(epoch: int, symbol: Any, arg_params: dict[str, Array], aux_params: dict[str, Array]) -> None:
            self.symbol, self.arg_params, self.aux_params = symbol, arg_params, aux_params
            call_all(epoch_end_callback, epoch, symbol, arg_params, aux_params)

        module.fit(
            data, eval_data, eval_metric, keep, _from_one(batch_end_callback), kvstore, self.optimizer, self.kwargs,
            eval_end_callback, _from_one(eval_batch_end_callback), self.initializer, self.arg_params, self.aux_params,
            allow_missing=True, allow_extra=self.allow_extra_params, begin_epoch=self.begin_epoch,
            num_epoch=self.num_epoch, monitor=monitor,
        )  # fmt: skip
        self.symbol = module.symbol
        self._predictor = None
        return self

    def _module(self, data: Any, label_names: list[str], work_load_list: Any = None, logger: Any = None) -> Module:
        options: dict[str, Any] = {"context": self.ctx, "logger": logger, "work_load_list": work_load_list}
        data_names = [item[0] for item in data.provide_data]
        if self.sym_gen is None:
            return Module(self.symbol, data_names, label_names, **options)
        generate = self.sym_gen

        def named(key: Any) -> Any:
            made = generate(key)
            return made if isinstance(made, tuple) else (made, data_names, label_names)

        return BucketingModule(named, data.default_bucket_key, **options)

    def _iterator(self, data: Any, label: Any, training: bool) -> Any:
        if hasattr(data, "provide_data"):
            return data
        array = asnumpy(data)
        if label is None:
            if training:
                raise ArgumentError("FeedForward: y must be given with an array X")
            label = np.zeros(len(array), np.float32)
        labels = asnumpy(label)
        if labels.ndim > 1 and labels.shape[1:] == (1,):
            labels = labels.reshape(-1)
        if labels.ndim != 1:
            raise ArgumentError(f"FeedForward: y must have one number a row, but its shape is {labels.shape}")
        size = min(len(array), self.numpy_batch_size)
        return NDArrayIter(
            array, labels, size, shuffle=training, last_batch_handle="roll_over" if training else "pad"
        )  # fmt: skip

    # --- use ---------------------------------------------------------------------------------------------------

    def _ready(self, data: Any, labels: Any) -> Module:
        """A module bound for inference, with the parameters that there are."""
        if self.arg_params is None:
            raise NotBoundError("FeedForward: there are no parameters: call fit, or give arg_params")
        key = self.arg_params, bool(labels)
        if self._predictor is None or self._predictor[0][0] is not key[0] or self._predictor[0][1] != key[1]:
            names = [item[0] for item in labels or ()]
            if self.symbol is not None:
                arguments = [name for name in self.symbol.list_arguments() if name not in {*names, *self.arg_params}]
                names += [name for name in arguments if name in self._label_names or name.endswith("label")]
            module = self._module(data, names)
            module.bind(data.provide_data, labels or None, for_training=False)
            module.init_params(
                self.initializer, self.arg_params, self.aux_params, allow_extra=self.allow_extra_params
            )  # fmt: skip
            self._predictor = key, module
        return self._predictor[1]  # type: ignore[no-any-return]

    def predict(
        self, X: Any, num_batch: int | None = None, return_data: bool = False, reset: bool = True
    ) -> Any:  # fmt: skip
        """The outputs of all rows: an array, or a list of them; with ``return_data`` also the data and the labels."""
        data = self._iterator(X, None, training=False)
        module = self._ready(data, data.provide_label if data is X else None)  # those of an array are made up
        if not return_data:
            return module.predict(data, num_batch, reset=reset)
        outputs, inputs, labels = list[Any](), list[Any](), list[Any]()
        for found, _, batch in module.iter_predict(data, num_batch, reset):
            whole = module._without_pad(batch)
            outputs.append(found)
            inputs.append([asnumpy(array) for array in whole.data])
            labels.append([asnumpy(array) for array in whole.label or ()])
        return _joined(outputs), _joined(inputs), _joined(labels)

    def score(
        self, X: Any, eval_metric: Any = "acc", num_batch: int | None = None,
        batch_end_callback: Callbacks = None, reset: bool = True,
    ) -> Any:  # fmt: skip
        """The value of a metric for an iterator's batches."""
        data = self._iterator(X, None, training=True)
        module = self._ready(data, data.provide_label)
        found = module.score(data, eval_metric, num_batch, _from_one(batch_end_callback), reset=reset)
        return found[0][1] if len(found) == 1 else [value for _, value in found]

    # --- files -------------------------------------------------------------------------------------------------

    def save(self, prefix: str, epoch: int | None = None, remove_amp_cast: bool = True) -> None:
        """Write a checkpoint; ``epoch`` None: the number of epochs trained."""
        epoch = self.num_epoch if epoch is None else epoch
        if epoch is None or self.arg_params is None:
            raise NotBoundError("FeedForward.save: there must be parameters and a number of the epoch")
        save_checkpoint(prefix, epoch, self.symbol, self.arg_params, self.aux_params, remove_amp_cast)

    @staticmethod
    def load(prefix: str, epoch: int, ctx: Any = None, **kwargs: Any) -> FeedForward:
        """The model of a checkpoint, whose training goes on with that epoch."""
        symbol, arg_params, aux_params = load_checkpoint(prefix, epoch)
        return FeedForward(
            symbol, ctx, arg_params=arg_params, aux_params=aux_params, begin_epoch=epoch, **kwargs
        )  # fmt: skip

    @staticmethod
    def create(
        symbol: Any, X: Any, y: Any = None, ctx: Any = None, num_epoch: int | None = None,
        epoch_size: int | None = None, optimizer: Any = "sgd", initializer: Any = Uniform(0.01),  # noqa: B008
        eval_data: Any = None, eval_metric: Any = "acc", epoch_end_callback: Callbacks = None,
        batch_end_callback: Callbacks = None, kvstore: Any = "local", logger: Any = None, work_load_list: Any = None,
        eval_end_callback: Callbacks = None, eval_batch_end_callback: Callbacks = None, **kwargs: Any,
    ) -> FeedForward:  # fmt: skip
        """Make a model and train it."""
        model = FeedForward(symbol, ctx, num_epoch, epoch_size, optimizer, initializer, **kwargs)
        return model.fit(
            X, y, eval_data, eval_metric, epoch_end_callback, batch_end_callback, kvstore, logger, work_load_list,
            eval_end_callback=eval_end_callback, eval_batch_end_callback=eval_batch_end_callback,
        )  # fmt: skip


def _from_one(callbacks: Callbacks) -> Callbacks:
    """Batch callbacks that count from 1."""
    if callbacks is None:
        return None
    return lambda param: call_all(callbacks, param._replace(nbatch=param.nbatch + 1))


def _joined(batches: list[list[Any]]) -> Any:
    """Arrays of all batches: one, or a list."""
    found = [np.concatenate([asnumpy(part) for part in parts]) for parts in zip(*batches, strict=True)]
    return found[0] if len(found) == 1 else found
