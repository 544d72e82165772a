"""``mx.model``: files of models, and `FeedForward`, the older face of training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy

from ...module import model as _core
from ...module.bucketing_module import BucketingModule as _CoreBucketing
from ...train.callback import BatchEndParam
from .array import NDArray, unwrap, wrap_all
from .module import BucketingModule, Module
from .symbol import own
from .training_steps import create_kvstore as _create_kvstore
from .training_steps import initialize_kvstore as _initialize_kvstore
from .training_steps import update_params as _update_params
from .training_steps import update_params_on_kvstore as _update_params_on_kvstore

__all__ = [
    "BatchEndParam", "FeedForward", "_create_kvstore", "_initialize_kvstore", "_update_params",
    "_update_params_on_kvstore", "load_checkpoint", "load_params", "save_checkpoint",
]  # fmt: skip


def save_checkpoint(
    prefix: str, epoch: int, symbol: Any, arg_params: Mapping[str, Any], aux_params: Mapping[str, Any] | None = None,
    remove_amp_cast: bool = True,
) -> None:  # fmt: skip
    """Write ``prefix-symbol.json`` (unless there is no symbol) and ``prefix-%04d.params``."""
    _core.save_checkpoint(prefix, epoch, symbol, unwrap(arg_params), unwrap(aux_params), remove_amp_cast)


def load_params(prefix: str, epoch: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parameters and auxiliary states of ``prefix-%04d.params``."""
    found: tuple[dict[str, Any], dict[str, Any]] = wrap_all(_core.load_params(prefix, epoch))
    return found


def load_checkpoint(prefix: str, epoch: int) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Symbol, parameters and auxiliary states that `save_checkpoint` wrote."""
    symbol, arg_params, aux_params = _core.load_checkpoint(prefix, epoch)
    return own(symbol), wrap_all(arg_params), wrap_all(aux_params)


class FeedForward(_core.FeedForward):
    """A symbol, its parameters and how it is trained, for iterators and arrays."""

    def _module(self, *args: Any, **keywords: Any) -> Any:
        found = super()._module(*args, **keywords)
        found.__class__ = BucketingModule if isinstance(found, _CoreBucketing) else Module
        return found

    def _iterator(self, data: Any, label: Any, training: bool) -> Any:
        plain = isinstance(data, numpy.ndarray) and not isinstance(data, NDArray)
        return super()._iterator(numpy.asarray(data, numpy.float32) if plain else unwrap(data), unwrap(label), training)

    def predict(self, X: Any, num_batch: int | None = None, return_data: bool = False, reset: bool = True) -> Any:
        """The outputs of all rows as NumPy arrays; with ``return_data`` also the data and the labels."""
        return unwrap(super().predict(X, num_batch, return_data, reset))

    def save(self, prefix: str, epoch: int | None = None, remove_amp_cast: bool = True) -> None:
        """Write a checkpoint; ``epoch`` None: the number of epochs trained."""
        held = self.arg_params, self.aux_params
        self.arg_params, self.aux_params = unwrap(held)
        try:
            super().save(prefix, epoch, remove_amp_cast)
        finally:
            self.arg_params, self.aux_params = held

    @staticmethod
    def load(prefix: str, epoch: int, ctx: Any = None, **kwargs: Any) -> FeedForward:
        """The model of a checkpoint, whose training goes on with that epoch."""
        symbol, arg_params, aux_params = load_checkpoint(prefix, epoch)
        return FeedForward(symbol, ctx, arg_params=arg_params, aux_params=aux_params, begin_epoch=epoch, **kwargs)

    @staticmethod
    def create(  # type: ignore[override]
        symbol: Any, X: Any, y: Any = None, ctx: Any = None, **keywords: Any
    ) -> FeedForward:
        """Make a model and train it; options of `FeedForward` and of its ``fit`` by keyword."""
        names = (
            "eval_data", "eval_metric", "epoch_end_callback", "batch_end_callback", "kvstore", "logger",
            "work_load_list", "eval_end_callback", "eval_batch_end_callback",
        )  # fmt: skip
        fitting = {name: keywords.pop(name) for name in names if name in keywords}
        model = FeedForward(symbol, ctx, **keywords)
        model.fit(X, y, **fitting)
        return model
