"""Modules whose computation is Python code on arrays: no symbol, no parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import ArgumentError, NotBoundError
from ..parallel.loading import describe
from ..train.initializer import Uniform
from .base_module import BOUND, WITH_PARAMS, BaseModule

Array = Any


class PythonModule(BaseModule):
    """A subclass gives ``forward backward get_outputs get_input_grads`` and `_compute_output_shapes`."""

    def __init__(
        self, data_names: Sequence[str], label_names: Sequence[str] | None, output_names: Sequence[str],
        logger: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(logger)
        self._data_names, self._label_names = list(data_names), list(label_names or ())
        self._output_names = list(output_names)
        self._data_shapes: list[Any] = []
        self._label_shapes: list[Any] | None = None
        self._output_shapes: list[tuple[str, tuple[int, ...]]] = []
        self._pad = 0  # rows of the last batch that only fill it up

    @property
    def data_names(self) -> list[str]:
        """Names of the data inputs."""
        return self._data_names

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs."""
        return self._output_names

    @property
    def data_shapes(self) -> list[Any]:
        """Descriptions of the data inputs."""
        return self._data_shapes

    @property
    def label_shapes(self) -> list[Any] | None:
        """Descriptions of the labels; None where there are none."""
        return self._label_shapes

    @property
    def output_shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        """Name and shape of every output."""
        return self._output_shapes

    def bind(
        self, data_shapes: Sequence[Any], label_shapes: Sequence[Any] | None = None, for_training: bool = True,
        inputs_need_grad: bool = False, force_rebind: bool = False, shared_module: Any = None, grad_req: Any = "write",
    ) -> None:  # fmt: skip
        """Take note of the shapes. Raises ArgumentError for other names, and another ``grad_req`` than 'write'."""
        if self.binded and not force_rebind:
            return
        if grad_req != "write":
            raise ArgumentError(f"bind: grad_req of a {type(self).__name__} must be 'write', but it is {grad_req!r}")
        self._data_shapes = [describe(item) for item in data_shapes]
        self._label_shapes = [describe(item) for item in label_shapes] if label_shapes else None
        names = [item.name for item in self._data_shapes]
        if names != self._data_names:
            raise ArgumentError(f"bind: data_shapes must describe data_names {self._data_names}, but describe {names}")
        self.for_training, self.inputs_need_grad = for_training, inputs_need_grad
        self._output_shapes = self._compute_output_shapes()
        self.binded = True

    def trained_parts(self) -> list[tuple[Any, Any]]:
        """There are none."""
        return []

    def _compute_output_shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        """Name and shape of every output, from `data_shapes`."""
        raise self._is_missing("_compute_output_shapes")

    def init_params(
        self, initializer: Any = Uniform(0.01), arg_params: Mapping[str, Array] | None = None,  # noqa: B008
        aux_params: Mapping[str, Array] | None = None, allow_missing: bool = False, force_init: bool = False,
        allow_extra: bool = False,
    ) -> None:  # fmt: skip
        """There are no parameters."""
        self._require("init_params", BOUND)
        self.params_initialized = True

    def get_params(self) -> tuple[dict[str, Array], dict[str, Array]]:
        """There are no parameters."""
        return {}, {}

    def init_optimizer(
        self, kvstore: Any = "local", optimizer: Any = "sgd", optimizer_params: Any = (("learning_rate", 0.01),),
        force_init: bool = False,
    ) -> None:  # fmt: skip
        """There is nothing to update."""
        self._require("init_optimizer", BOUND, WITH_PARAMS)
        self.optimizer_initialized = True

    def update(self) -> None:
        """There is nothing to update."""

    def update_metric(self, eval_metric: Any, labels: Sequence[Array], pre_sliced: bool = False) -> None:
        """Count the outputs, if there are labels; rows that only fill up the batch do not count."""
        if self._label_shapes is None:
            return
        if pre_sliced:
            raise ArgumentError(f"update_metric: pre_sliced must be False for a {type(self).__name__}, but it is True")
        outputs = self.get_outputs()
        if self._pad:
            labels, outputs = ([array[: len(array) - self._pad] for array in arrays] for arrays in (labels, outputs))
        eval_metric.update(labels, outputs)

    def install_monitor(self, mon: Any) -> None:
        """There is nothing to watch."""


class PythonLossModule(PythonModule):
    """A loss: the output is the data; ``grad_func(data, label)`` (or `_backward_impl`) gives its gradient.

    Data, output and gradient have one shape. Raises ArgumentError for several inputs or labels, NotBoundError for calls
    out of order.
    """

    def __init__(
        self, name: str = "pyloss", data_names: Sequence[str] = ("data",),
        label_names: Sequence[str] = ("softmax_label",), logger: Any = None,
        grad_func: Callable[[Array, Array], Array] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(data_names, label_names, [f"{name}_output"], logger)
        if len(data_names) != 1 or len(label_names) != 1:
            raise ArgumentError("PythonLossModule: there must be one name of data and one of labels")
        if grad_func is not None and not callable(grad_func):
            raise ArgumentError(f"PythonLossModule: grad_func must be a function, but it is {grad_func!r}")
        self._name, self._grad_func = name, grad_func
        self._scores: Array = None
        self._labels: Array = None
        self._scores_grad: Array = None

    def _compute_output_shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        return [(self._output_names[0], tuple(self._data_shapes[0].shape))]

    def forward(self, data_batch: Any, is_train: bool | None = None) -> None:
        """Take scores, and labels where there are some."""
        self._require("forward", BOUND, WITH_PARAMS)
        self._scores, self._pad = data_batch.data[0], getattr(data_batch, "pad", None) or 0
        self._labels = data_batch.label[0] if data_batch.label else None

    def get_outputs(self, merge_multi_context: bool = True) -> list[Any]:
        """The scores."""
        if self._scores is None:
            raise NotBoundError("get_outputs: run forward first")
        return [self._scores] if merge_multi_context else [[self._scores]]

    def backward(self, out_grads: Any = None) -> None:
        """Compute the gradient of the scores."""
        if out_grads is not None:
            raise ArgumentError(f"backward: a {type(self).__name__} is a loss: it takes no out_grads")
        if self._labels is None:
            raise NotBoundError("backward: run forward on a batch with labels first")
        self._backward_impl()

    def _backward_impl(self) -> None:
        if self._grad_func is None:
            raise self._is_missing("grad_func")
        self._scores_grad = self._grad_func(self._scores, self._labels)

    def get_input_grads(self, merge_multi_context: bool = True) -> list[Any]:
        """The gradient of the scores."""
        if self._scores_grad is None:
            raise NotBoundError("get_input_grads: run backward first")
        return [self._scores_grad] if merge_multi_context else [[self._scores_grad]]
