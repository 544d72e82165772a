"""One symbol, or one a bucket, trained on several devices and ranks: the module that most programs use."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from ..context import Context, current_context
from ..errors import ArgumentError, CheckpointError, UnknownNameError, near_miss
from ..files import load
from ..parallel.loading import Described, batch_axis
from ..parallel.training_manager import TrainingManager
from ..symbol import Symbol
from ..train import optimizer as optimizers
from ..train.initializer import InitDesc, Uniform
from ..train.states_from_mxnet import from_mxnet
from . import kvstore as kvstores
from .base_module import BOUND, WITH_OPTIMIZER, WITH_PARAMS
from .bound_module import BoundModule
from .model_files import load_checkpoint, save_checkpoint
from .rank_files import by_rank_0, load_together, save_together
from .symbol_changes import labels_of_losses, with_frozen_statistics

Array = Any


class Module(BoundModule):
    """A symbol on the devices ``context``, each with its rows of every batch, by ``work_load_list``.

    ``data_names`` and ``label_names`` (None: none) are the inputs of batches; ``state_names`` are inputs that are kept
    from batch to batch; all other arguments are parameters, of which ``fixed_param_names`` are not trained. With
    ``freeze_aux`` layers whose parameters are all fixed keep their running statistics, and use them in training, too.
    ``group2ctxs``: a dict (or one a device) that says where the ``ctx_group``s run. ``compression_params``: see
    ``KVStore.set_gradient_compression``. ``loss_weighting='samples'`` is for losses that divide by the rows of their
    own device (``normalization='batch'``): it trains as one device would.
    Batches may have any number of rows, fewer than devices, too; ``max_groups`` kinds of batches stay bound.
    Raises UnknownNameError for names that the symbol does not have.
    """

    def __init__(
        self, symbol: Any, data_names: Sequence[str] | None = ("data",),
        label_names: Sequence[str] | None = ("softmax_label",), logger: Any = None,
        context: Context | Sequence[Context] | None = None, work_load_list: Sequence[float] | None = None,
        fixed_param_names: Sequence[str] | None = None, state_names: Sequence[str] | None = None,
        group2ctxs: Any = None, compression_params: Mapping[str, Any] | None = None, *,
        freeze_aux: bool = False, loss_weighting: str = "devices", max_groups: int | None = 16,
    ) -> None:  # fmt: skip
        super().__init__(symbol, logger)
        context = current_context() if context is None else context
        self._context = [context] if isinstance(context, Context) else list(context)
        self._work_load_list = work_load_list
        self._data_names, self._label_names = list(data_names or ()), list(label_names or ())
        self._state_names, self._fixed = list(state_names or ()), list(fixed_param_names or ())
        self._compression, self._freeze_aux, self._max_groups = compression_params, freeze_aux, max_groups
        self._loss_weighting = loss_weighting
        self._group2ctxs = group2ctxs if group2ctxs is None or not isinstance(group2ctxs, Mapping) else (
            [group2ctxs] * len(self._context)
        )  # fmt: skip
        if not isinstance(symbol, Symbol):
            who, what = type(self).__name__, type(symbol).__name__
            raise ArgumentError(f"{who}: the symbol must be a Symbol, but it is a {what}")
        arguments = symbol.list_arguments()
        self._check_names("data_names", self._data_names, arguments)
        self._check_names("state_names", self._state_names, arguments)
        self._check_names("fixed_param_names", self._fixed, arguments)
        for name in self._label_names:
            if name not in arguments and name != "softmax_label":
                self.logger.warning("label_names: the symbol has no argument '%s'%s", name, near_miss(name, arguments))
        self._params: tuple[dict[str, Array], dict[str, Array]] | None = None  # before bind: what load has read
        self._optimizer: Any = None
        self._initializer: Any = None
        self._states_file: tuple[str, str | None] | None = None
        self._announced: Any = None

    @staticmethod
    def _check_names(title: str, names: Sequence[str], known: Sequence[str]) -> None:
        stranger = next((name for name in names if name not in known), None)
        if stranger is not None:
            raise UnknownNameError(f"{title}: the symbol has no argument '{stranger}'{near_miss(stranger, known)}")

    @classmethod
    def load(cls, prefix: str, epoch: int, load_optimizer_states: bool | str = False, **options: Any) -> Any:
        """The module of a checkpoint: ``prefix-symbol.json`` and ``prefix-%04d.params``.

        With ``load_optimizer_states`` (True, or a format as below) also of ``prefix-%04d.states``, by `init_optimizer`.
        """
        symbol, arg_params, aux_params = load_checkpoint(prefix, epoch)
        module = cls(symbol, **options)
        module._params, module.params_initialized = (arg_params, aux_params), True
        if load_optimizer_states:
            form = None if load_optimizer_states is True else str(load_optimizer_states)
            module._states_file = f"{prefix}-{epoch:04d}.states", form
        return module

    def save_checkpoint(
        self, prefix: str, epoch: int, save_optimizer_states: bool = False, remove_amp_cast: bool = True
    ) -> None:
        """Write symbol, parameters and, if asked for, the optimizer's state; collective with ranks."""
        arg_params, aux_params = self.get_params()
        by_rank_0(
            self._comm,
            lambda: save_checkpoint(prefix, epoch, self.symbol, arg_params, aux_params, remove_amp_cast),
            "writing a checkpoint",
        )
        if save_optimizer_states:
            self.save_optimizer_states(f"{prefix}-{epoch:04d}.states")

    # --- what it is --------------------------------------------------------------------------------------------

    @property
    def optimizer(self) -> Any:
        """The optimizer, whose learning rate may change at any time."""
        self._require("optimizer", WITH_OPTIMIZER)
        return self._optimizer

    # --- binding -----------------------------------------------------------------------------------------------

    def bind(
        self, data_shapes: Sequence[Any], label_shapes: Sequence[Any] | None = None, for_training: bool = True,
        inputs_need_grad: bool = False, force_rebind: bool = False, shared_module: Any = None, grad_req: Any = "write",
    ) -> None:  # fmt: skip
        """Make executors for batches that look like this; a module that is bound stays so unless ``force_rebind``.

        ``inputs_need_grad``: data get gradients, too. ``shared_module``: a module that is bound, whose parameters,
        states, memory and optimizer this one uses. ``grad_req``: write, add or null; a list in the order of the
        arguments; or a dict (names that it has not: write). ``add`` sums up gradients until `zero_grad`.
        Raises ArgumentError, UnknownNameError, ShapeError, DeviceError.
        """
        if self.binded and not force_rebind:
            if for_training and not self.for_training:
                self.logger.warning("bind: the module is bound for inference already; force_rebind=True binds it anew")
            return
        if inputs_need_grad and not for_training:
            raise ArgumentError("bind: inputs_need_grad=True needs for_training=True, but it is False")
        held = self.get_params() if self.params_initialized else None
        shapes = Described.of(data_shapes, label_shapes)
        self._check_shapes(shapes)
        if held is not None and shared_module is None:
            self._check_held(held)
        shared = None
        if shared_module is not None:
            if not isinstance(shared_module, Module):
                raise ArgumentError(f"bind: shared_module must be a Module, but it is a {type(shared_module).__name__}")
            shared = shared_module._bound("bind: shared_module")
            self._initializer = shared_module._initializer
        self._shapes, self._requests, self._shared = shapes, grad_req, shared
        arguments = {*self._symbol.list_arguments()}
        self._labels_read = [item.name for item in shapes.provide_label if item.name in arguments]
        self.for_training, self.inputs_need_grad = for_training, inputs_need_grad
        self.binded, self._params = False, held  # a bind that fails loses no parameters
        self._make_manager(shared.comm if shared is not None else self._comm)
        self.binded = True
        if shared_module is not None and shared_module.params_initialized:
            self._set(({}, {}))  # what this symbol alone has gets its first values
        elif held is not None:
            self._set(held)
            self._params = None
        if shared_module is not None and shared_module.optimizer_initialized:
            self.borrow_optimizer(shared_module)

    def _check_shapes(self, shapes: Described) -> None:
        """ArgumentError unless all data are described, and with labels all that the symbol has."""
        arguments = self._symbol.list_arguments()
        data, labels = ([item.name for item in items] for items in (shapes.provide_data, shapes.provide_label))
        wanted = [name for name in self._label_names if name in arguments]
        if sorted(data) != sorted(self._data_names):
            raise ArgumentError(f"bind: data_shapes must describe data_names {self._data_names}, but describe {data}")
        if labels and sorted(wanted) != sorted(name for name in labels if name in arguments):  # others nobody reads
            raise ArgumentError(f"bind: label_shapes must describe label_names {wanted}, but describe {labels}")

    def _check_held(self, params: tuple[Mapping[str, Array], Mapping[str, Array]]) -> None:
        """CheckpointError where a file that was loaded has not all that the symbol has."""
        for names, given in zip((self._parameters, self._symbol.list_auxiliary_states()), params, strict=True):
            missing = next((name for name in names if name not in given), None)
            if missing is not None:
                told = f"the checkpoint must have '{missing}'{near_miss(missing, given)}"
                raise CheckpointError(f"bind: {told}\n  to do without it use load_checkpoint, and allow_missing=True")

    @property
    def _parameters(self) -> list[str]:
        """The arguments that are no inputs."""
        inputs = {*self._data_names, *self._label_names, *self._state_names, *labels_of_losses(self._symbol)}
        return [name for name in self._symbol.list_arguments() if name not in inputs]

    def _make_manager(self, comm: Any) -> None:
        """Bind anew, with nothing but zeros for parameters."""
        arguments = self._symbol.list_arguments()
        request: Any = "write"
        if not self.for_training:
            request = "null"
        elif isinstance(self._requests, str):
            request = self._requests
        elif isinstance(self._requests, Mapping):
            self._check_requests(list(self._requests))
            request = dict(self._requests)
        else:
            if len(self._requests) != len(arguments):
                what = f"{len(self._requests)} requests for {len(arguments)} arguments"
                raise ArgumentError(f"bind: grad_req must have one request an argument, but it has {what}")
            request = dict(zip(arguments, self._requests, strict=True))
        requests = [request] if isinstance(request, str) else request.values()
        for one in requests:
            if one not in ("write", "add", "null"):
                raise ArgumentError(f"bind: grad_req must be write, add or null, but it is {one!r}")
        shapes, names = self._shapes, [item.name for item in self._shapes.provide_data]
        labels = [item.name for item in shapes.provide_label] or self._label_names
        source = self._announced
        progress = self._manager.progress if self._manager is not None else None
        self._manager = None  # its memory is free before more is taken
        self._manager = TrainingManager(
            self._run(self._symbol), self._context,
            SimpleNamespace(
                provide_data=shapes.provide_data, provide_label=shapes.provide_label,
                default_bucket_key=self._default_key, buckets=getattr(source, "buckets", None),
                describe=getattr(source, "describe", None), num_batches=getattr(source, "num_batches", None),
            ),
            param_names=self._parameters, work_load_list=self._work_load_list, logger=self.logger, grad_req=request,
            fixed=self._fixed, input_grads=names if self.inputs_need_grad else (), group2ctxs=self._group2ctxs,
            shared=self._shared, names=(names, labels), comm=comm, max_groups=self._max_groups,
            loss_weighting=self._loss_weighting,
            transport=self._kvstore.transport if comm is not None and self._kvstore is not None else None,
            **self._more_options(),
        )  # fmt: skip
        if progress is not None:
            self._manager.progress = progress
        self._manager.compression = getattr(self._kvstore, "two_bit", None)
        self._let_fill(self._manager)
        if self._monitor is not None:
            self._manager.install_monitor(self._monitor)

    _default_key: Any = None

    def _more_options(self) -> dict[str, Any]:
        return {}

    def _check_requests(self, names: Sequence[str]) -> None:
        self._check_names("grad_req", names, self._symbol.list_arguments())

    @property
    def _run(self) -> Callable[[Any], Any]:
        """Gives the symbol that is run for a symbol: where asked for, fixed layers use their running statistics."""
        fixed = self._fixed if self._freeze_aux else None
        return lambda symbol: symbol if fixed is None else with_frozen_statistics(symbol, fixed)

    def reshape(self, data_shapes: Sequence[Any], label_shapes: Sequence[Any] | None = None) -> None:
        """Expect batches that look like this; `forward` takes other ones as well."""
        self._require("reshape", BOUND)
        self._shapes = Described.of(data_shapes, label_shapes)
        self._bound("reshape").curr_execgrp = None

    # --- parameters --------------------------------------------------------------------------------------------

    def init_params(
        self, initializer: Any = Uniform(0.01), arg_params: Mapping[str, Array] | None = None,  # noqa: B008
        aux_params: Mapping[str, Array] | None = None, allow_missing: bool = False, force_init: bool = False,
        allow_extra: bool = False,
    ) -> None:  # fmt: skip
        """Give parameters and auxiliary states their values: those given, and by the initializer where none are given.

        With ``arg_params`` all parameters must be among them unless ``allow_missing``, and nothing else may be unless
        ``allow_extra`` (so with ``aux_params``). Without an initializer missing ones stay as they are. Raises
        ArgumentError, CheckpointError, UnknownNameError, ShapeError; nothing has changed then.
        """
        if self.params_initialized and not force_init:
            self.logger.warning("init_params: there are parameters already; force_init=True gives them new values")
            return
        manager = self._bound("init_params")
        if isinstance(initializer, str | type):
            fact = f"init_params: initializer must be an object such as init.Xavier(), but it is {initializer!r}"
            raise ArgumentError(fact)
        if initializer is not None:
            self._initializer = initializer
        found: list[dict[str, Array]] = []
        for kind, title, given in (("parameters", "arg_params", arg_params), ("aux", "aux_params", aux_params)):
            values, held = {}, manager.held(kind)
            for name, array in held.items():
                value = None if given is None else given.get(name)
                if value is not None:
                    values[name] = value
                elif given is not None and not allow_missing:
                    near = near_miss(name, given)
                    raise CheckpointError(f"init_params: {title} must have '{name}' (or allow_missing=True){near}")
                elif initializer is not None:
                    values[name] = np.zeros(array.shape, array.dtype)
                    _first_value(initializer, self._symbol, name, values[name])
            for name in given or ():
                if name not in held and self._keeps(name):
                    values[name] = given[name]  # type: ignore[index]
                elif name not in held and not allow_extra:
                    near = near_miss(name, held)
                    raise UnknownNameError(f"init_params: {title} has '{name}', which the symbol has not{near}")
            found.append(values)
        self._let_fill(manager)
        self._set((found[0], found[1]))

    def _let_fill(self, manager: TrainingManager) -> None:
        """Let the initializer give values to what buckets bring."""
        if self._initializer is not None:  # no bound method: a module that is dropped is gone at once
            manager.first_value = functools.partial(_first_value, self._initializer)

    def _keeps(self, name: str) -> bool:
        """Whether a value that no bucket bound so far has is kept for one that may come."""
        return False

    def _set(self, params: tuple[Mapping[str, Array], Mapping[str, Array]]) -> None:
        self._bound("set_params").set_params(*params)
        self.params_initialized = True

    def get_params(self) -> tuple[dict[str, Array], dict[str, Array]]:
        """Parameters and auxiliary states by name (the mean over devices; states: also over ranks), copies on the host.

        Collective with ranks if there are states.
        """
        self._require("get_params", WITH_PARAMS)
        if self._manager is None:
            held = self._params or ({}, {})
            return dict(held[0]), dict(held[1])
        arg_params, aux_params = (
            {name: np.empty(array.shape, array.dtype) for name, array in self._manager.held(kind).items()}
            for kind in ("parameters", "aux")
        )
        self._manager.copy_to(arg_params, aux_params)
        return self._manager.kept("parameters") | arg_params, self._manager.kept("aux") | aux_params

    # --- the optimizer -----------------------------------------------------------------------------------------

    def _warn_of_two_divisions(self, rescale: float) -> None:
        """Say which losses divide by the rows of a batch, as the default of ``rescale_grad`` does."""
        fact = "init_optimizer: '%s' has normalization='%s'; rescale_grad divides by %g too: give rescale_grad=1"
        for node in self._symbol.graph.nodes:
            how = getattr(node.op, "normalization", "null")
            if how != "null":
                self.logger.warning(fact, node.name, how, 1 / rescale)

    def init_optimizer(
        self, kvstore: Any = "local", optimizer: Any = "sgd", optimizer_params: Any = (("learning_rate", 0.01),),
        force_init: bool = False,
    ) -> None:  # fmt: skip
        """Make the optimizer from its name and options (or take one), and join the ranks of ``kvstore``.

        ``kvstore``: None, 'local', 'device' or 'nccl' for the devices of this process, 'dist_sync' or 'mpi' for ranks
        as well, or a store that `kvstore.create` made. Gradients are always summed over all of them. ``rescale_grad``
        is 1 / (rows of a batch on all ranks) unless given. Collective with ranks, which then have rank 0's parameters.
        """
        self._require("init_optimizer", BOUND, WITH_PARAMS)
        if self.optimizer_initialized and not force_init:
            self.logger.warning("init_optimizer: there is an optimizer already; force_init=True makes another one")
            return
        store = kvstores.create(kvstore) if isinstance(kvstore, str) else kvstore
        if store is not None and self._compression is not None:
            store.set_gradient_compression(self._compression)
        before, self._kvstore = self._comm, store
        if self._comm is not before and self._comm is not None:
            if self._shared is not None:
                raise ArgumentError("init_optimizer: a shared_module must join the ranks before this one is bound")
            held = self.get_params()
            self._make_manager(self._comm)
            self._set(held)
        manager = self._bound("init_optimizer")
        manager.compression = getattr(store, "two_bit", None)
        first = self._shapes.provide_data[0]
        rows = np.array([first.shape[batch_axis(first)]], np.int64)
        if self._comm is not None:
            self._comm.allreduce(rows)
        rescale = 1.0 / int(rows[0])
        if isinstance(optimizer, str):
            given = dict(optimizer_params or ())
            if "rescale_grad" not in given and rescale != 1 and self._speaks():
                self._warn_of_two_divisions(rescale)
            optimizer = optimizers.create(optimizer, **{"rescale_grad": rescale, "sym": self._symbol, **given})
        elif not isinstance(optimizer, optimizers.Optimizer):
            raise ArgumentError(f"init_optimizer: optimizer must be a name or an Optimizer, but it is {optimizer!r}")
        elif optimizer.rescale_grad != rescale:
            fact = "init_optimizer: the optimizer's rescale_grad is %g, not 1 / rows of a batch, %g"
            self.logger.warning(fact, optimizer.rescale_grad, rescale)
        optimizer.idx2name = optimizer.idx2name or dict(enumerate(self._bound("init_optimizer").held("parameters")))
        self._optimizer, self._updater = optimizer, optimizers.get_updater(optimizer)
        self.optimizer_initialized = True
        if self._states_file is not None:
            self.load_optimizer_states(*self._states_file)
            self._states_file = None

    def borrow_optimizer(self, shared_module: Any) -> None:
        """Use the optimizer of another module, with its state."""
        shared_module._require("borrow_optimizer: shared_module", WITH_OPTIMIZER)
        self._optimizer, self._updater = shared_module._optimizer, shared_module._updater
        self._kvstore, self.optimizer_initialized = shared_module._kvstore, True

    def save_optimizer_states(self, fname: str) -> None:
        """Write the optimizer's state and counts to a file (rank 0 does); collective with ranks."""
        self._require("save_optimizer_states", WITH_OPTIMIZER)
        save_together(self._comm, fname, self._updater.get_states())

    def load_optimizer_states(self, fname: str, format: str | None = None) -> None:
        """Go on from what `save_optimizer_states` wrote; collective with ranks.

        With ``format="mxnet-pickle"`` from what MXNet's wrote: nothing of the pickle is run, and each rank reads it.
        """
        self._require("load_optimizer_states", WITH_OPTIMIZER)
        if format is None:
            states = load_together(self._comm, fname)
        else:
            states = from_mxnet(load(fname, format=format), self._updater.optimizer, repr(fname))
        self._updater.set_states(states)


def _first_value(initializer: Any, symbol: Any, name: str, array: Array) -> None:
    """Fill the array of a parameter or state by an initializer."""
    initializer(InitDesc(name, symbol.attr_dict().get(name, {})), array)
