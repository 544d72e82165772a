"""Modules in a chain: the outputs of each are the data of the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import ArgumentError, UnknownNameError, near_miss
from ..parallel.loading import describe
from ..train.batch import DataBatch, DataDesc
from ..train.initializer import Uniform
from .base_module import BOUND, WITH_OPTIMIZER, WITH_PARAMS, BaseModule

Array = Any


class SequentialModule(BaseModule):
    """``add`` modules in order; with ``take_labels`` a module gets the labels, too (a loss needs them).

    ``auto_wiring``: a module's data have the names that it wants, in the order of the outputs before it.
    """

    META_TAKE_LABELS = "take_labels"
    META_AUTO_WIRING = "auto_wiring"

    def __init__(self, logger: Any = None) -> None:
        super().__init__(logger)
        self._modules: list[BaseModule] = []
        self._metas: list[dict[str, bool]] = []
        self._label_shapes: Sequence[Any] | None = None
        self._labels: Sequence[Array] | None = None  # of the rows that were run, where that is not all of the batch

    def add(self, module: BaseModule, **kwargs: bool) -> SequentialModule:
        """Put a module at the end; gives the chain, so that calls can be chained, too.

        Raises ArgumentError for options other than ``take_labels`` and ``auto_wiring``.
        """
        known = (self.META_TAKE_LABELS, self.META_AUTO_WIRING)
        for name in kwargs:
            if name not in known:
                raise ArgumentError(f"SequentialModule.add: there is no option {name!r}{near_miss(name, known)}")
        self._modules.append(module)
        self._metas.append(dict(kwargs))
        self.binded = self.params_initialized = self.optimizer_initialized = False
        return self

    def _takes_labels(self, number: int) -> bool:
        return self._metas[number].get(self.META_TAKE_LABELS, False)

    def _chain(self, call: str, *flags: str) -> list[BaseModule]:
        if not self._modules:
            raise ArgumentError(f"{call}: a chain must have a module at least: add one")
        self._require(call, *flags)
        return self._modules

    @property
    def data_names(self) -> list[str]:
        """Names of the data inputs: those of the first module."""
        return self._chain("data_names")[0].data_names

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs: those of the last module."""
        return self._chain("output_names")[-1].output_names

    @property
    def data_shapes(self) -> Sequence[Any]:
        """Descriptions of the data inputs."""
        return self._chain("data_shapes", BOUND)[0].data_shapes

    @property
    def label_shapes(self) -> Sequence[Any] | None:
        """Descriptions of the labels; None where there are none."""
        self._require("label_shapes", BOUND)
        return self._label_shapes

    @property
    def output_shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        """Name and shape of every output."""
        return self._chain("output_shapes", BOUND)[-1].output_shapes

    def bind(
        self, data_shapes: Sequence[Any], label_shapes: Sequence[Any] | None = None, for_training: bool = True,
        inputs_need_grad: bool = False, force_rebind: bool = False, shared_module: Any = None, grad_req: Any = "write",
    ) -> None:  # fmt: skip
        """Bind all modules; see `Module.bind`. A chain has no ``shared_module``.

        Raises ArgumentError where it has no modules, or outputs do not fit what the next one wants.
        """
        modules = self._chain("bind")
        if self.binded and not force_rebind:
            return
        if inputs_need_grad and not for_training:
            raise ArgumentError("bind: inputs_need_grad=True needs for_training=True, but it is False")
        if shared_module is not None:
            raise ArgumentError("bind: a SequentialModule cannot have a shared_module")
        takes = any(map(self._takes_labels, range(len(modules))))
        self._label_shapes = [describe(item) for item in label_shapes or ()] if takes else []
        shapes = [describe(item) for item in data_shapes]
        for number, module in enumerate(modules):
            if self._metas[number].get(self.META_AUTO_WIRING):
                shapes = self._wired(module, shapes)
            labels = (label_shapes or None) if self._takes_labels(number) else None
            needs = inputs_need_grad or (for_training and number > 0)
            module.bind(shapes, labels, for_training, needs, force_rebind, None, grad_req)
            if number + 1 < len(modules):
                shapes = [DataDesc(name, shape) for name, shape in module.output_shapes]
        self._label_shapes = self._label_shapes or None
        self.binded, self.for_training, self.inputs_need_grad = True, for_training, inputs_need_grad

    @staticmethod
    def _wired(module: BaseModule, shapes: Sequence[DataDesc]) -> list[DataDesc]:
        names = module.data_names
        if len(names) != len(shapes):
            wanted = f"{len(names)} inputs ({', '.join(names)})"
            raise ArgumentError(f"bind: auto_wiring: a module wants {wanted}, but there are {len(shapes)}")
        return [DataDesc(name, s.shape, s.dtype, s.layout) for name, s in zip(names, shapes, strict=True)]

    def init_params(
        self, initializer: Any = Uniform(0.01), arg_params: Mapping[str, Array] | None = None,  # noqa: B008
        aux_params: Mapping[str, Array] | None = None, allow_missing: bool = False, force_init: bool = False,
        allow_extra: bool = False,
    ) -> None:  # fmt: skip
        """Give the parameters of all modules values, see `Module.init_params`; ArgumentError for a name twice."""
        modules = self._chain("init_params", BOUND)
        if self.params_initialized and not force_init:
            return
        owners: dict[str, int] = {}
        for number, module in enumerate(modules):
            module.init_params(initializer, arg_params, aux_params, allow_missing, force_init, allow_extra=True)
            for name in (name for held in module.get_params() for name in held):
                if name in owners:
                    raise ArgumentError(
                        f"init_params: parameters must have different names, but modules {owners[name]} and {number} "
                        f"both have '{name}'"
                    )
                owners[name] = number
        stranger = next((n for n in {**(arg_params or {}), **(aux_params or {})} if n not in owners), None)
        if stranger is not None and not allow_extra:
            raise UnknownNameError(f"init_params: no module has '{stranger}'{near_miss(stranger, owners)}")
        self.params_initialized = True

    def get_params(self) -> tuple[dict[str, Array], dict[str, Array]]:
        """Parameters and auxiliary states of all modules by name."""
        arg_params, aux_params = dict[str, Array](), dict[str, Array]()
        for module in self._chain("get_params", WITH_PARAMS):
            mine = module.get_params()
            arg_params |= mine[0]
            aux_params |= mine[1]
        return arg_params, aux_params

    def init_optimizer(
        self, kvstore: Any = "local", optimizer: Any = "sgd", optimizer_params: Any = (("learning_rate", 0.01),),
        force_init: bool = False,
    ) -> None:  # fmt: skip
        """Make the optimizer of every module."""
        for module in self._chain("init_optimizer", BOUND, WITH_PARAMS):
            module.init_optimizer(kvstore, optimizer, optimizer_params, force_init)
        self.optimizer_initialized = True

    def forward(self, data_batch: Any, is_train: bool | None = None) -> None:
        """Run all modules, each on the outputs of the one before."""
        modules = self._chain("forward", BOUND, WITH_PARAMS)
        pad = getattr(data_batch, "pad", None) or 0
        leaves_out = pad and self._has_ranks() and (self.for_training if is_train is None else is_train)
        self._labels = None
        if leaves_out:  # what the modules would leave out, all at once
            data_batch = self._first_rows(data_batch, pad)
            self._labels = data_batch.label
        batch = data_batch
        for number, module in enumerate(modules):
            module.forward(batch, is_train)
            if number + 1 < len(modules):
                outputs = module.get_outputs()
                shapes = [DataDesc(n, a.shape, a.dtype) for n, a in zip(module.output_names, outputs, strict=True)]
                if self._metas[number + 1].get(self.META_AUTO_WIRING):
                    shapes = self._wired(modules[number + 1], shapes)
                takes = self._takes_labels(number + 1)
                batch = DataBatch(
                    outputs, data_batch.label if takes else None, getattr(data_batch, "pad", None),
                    provide_data=shapes, provide_label=getattr(data_batch, "provide_label", None) if takes else None,
                )  # fmt: skip

    def backward(self, out_grads: Any = None) -> None:
        """Run all modules backward, each on the gradients of the inputs of the one behind."""
        modules = self._chain("backward", BOUND, WITH_PARAMS)
        for number in reversed(range(len(modules))):
            modules[number].backward(out_grads)
            if number > 0:
                out_grads = modules[number].get_input_grads()

    def update(self) -> None:
        """Update the parameters of all modules."""
        for module in self._chain("update", BOUND, WITH_PARAMS, WITH_OPTIMIZER):
            module.update()

    def get_outputs(self, merge_multi_context: bool = True) -> list[Any]:
        """Outputs of the last module."""
        return self._chain("get_outputs", BOUND, WITH_PARAMS)[-1].get_outputs(merge_multi_context)

    def get_input_grads(self, merge_multi_context: bool = True) -> list[Any]:
        """Gradients of the data of the first module."""
        return self._chain("get_input_grads", BOUND, WITH_PARAMS)[0].get_input_grads(merge_multi_context)

    def update_metric(self, eval_metric: Any, labels: Sequence[Array], pre_sliced: bool = False) -> None:
        """Count the outputs of all modules that take labels; rows that only fill up the batch do not count."""
        if self._labels is not None:
            labels = self._labels
        for number, module in enumerate(self._chain("update_metric", BOUND, WITH_PARAMS)):
            if self._takes_labels(number):
                module.update_metric(eval_metric, labels, pre_sliced)

    def install_monitor(self, mon: Any) -> None:
        """Let a monitor watch all modules."""
        for module in self._chain("install_monitor", BOUND):
            module.install_monitor(mon)

    def trained_parts(self) -> list[tuple[Any, Any]]:
        """Those of all modules."""
        return [part for module in self._chain("checkpoint", BOUND) for part in module.trained_parts()]

    def _before_inference(self) -> None:
        for module in self._modules:
            module._before_inference()

    def _total(self, metric: Any) -> None:
        ranked = next((module for module in self._modules if module._has_ranks()), None)
        if ranked is not None:
            ranked._total(metric)

    def _output_axes(self) -> list[int | None]:
        return self._chain("predict")[-1]._output_axes()

    def _has_ranks(self) -> bool:
        return any(module._has_ranks() for module in self._modules)

    def _speaks(self) -> bool:
        return all(module._speaks() for module in self._modules)
