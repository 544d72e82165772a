"""`parallelize`: a net is built once a device, and becomes one model that trains on all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from ..errors import ArgumentError, ParallelizeError
from ..symbol import Symbol
from ..train.model_helper import ModelHelper, Net
from .model_checks import check_builders, check_graphs, check_losses, check_model, check_nets, check_options
from .parallel_model import ParallelModel

Builder = Callable[..., Any]
Model = TypeVar("Model", bound=ParallelModel)


def parallelize(
    model_helper_obj: ModelHelper, input_builder_fun: Builder | None, forward_pass_builder_fun: Builder,
    param_update_builder_fun: Builder | None = None, optimizer_builder_fun: Builder | None = None,
    post_sync_builder_fun: Builder | None = None, pre_grad_net_transformer_fun: Builder | None = None,
    net_transformer_fun: Builder | None = None, devices: Sequence[int] | None = None, rendezvous: Any = None,
    net_type: str = "dag", broadcast_computed_params: bool | str = True, optimize_gradient_memory: bool = False,
    dynamic_memory_management: bool = False, blobs_to_keep: Sequence[str] | None = None, use_nccl: bool | str = False,
    max_concurrent_distributed_ops: int = 16, cpu_device: bool = False, ideep: bool = False,
    num_threads_per_device: int = 4, shared_model: bool = False, combine_spatial_bn: bool | str = False,
    barrier_net_timeout_sec: float = 300, *, loss_weighting: str = "devices",
    uneven: str = "error", plan_hook_fun: Builder | None = None, transport: str | None = None,
    sharded_update: bool = False,
) -> ParallelModel:  # fmt: skip
    """Build a model on every device and give what trains them together (without an update: what runs them).

    Builders, in the order in which they are called:

    - ``input_builder_fun(model)`` and ``forward_pass_builder_fun(model, loss_scale)`` on each device, in its scope. The
      losses that the second gives are to be multiplied by ``loss_scale`` = 1 / (devices · ranks).
    - ``pre_grad_net_transformer_fun(model)``, then ``net_transformer_fun(model, devices, prefix, type)``: may change
      ``model.nets[prefix].graph``, or give other graphs by prefix. Its first outputs are the losses.
    - ``param_update_builder_fun(model)`` on each device, or ``optimizer_builder_fun(model)`` once.
    - ``post_sync_builder_fun(model)`` on each device: what it assigns is done when `ParallelModel.init` has given all
      devices the same parameters.
    - ``plan_hook_fun(parallel_model)`` as soon as the plan is complete: when shapes of inputs are known.

    ``devices``: numbers in any order, the first is the master (None: all). ``rendezvous``: ranks (None: this process
    alone), a communicator of ours or of MPI, or a dict (engine mpi or nccl, num_shards, shard_id, comm, timeout_sec).
    ``net_type``: simple runs devices in turn, dag side by side; the bits are the same. ``broadcast_computed_params``:
    True gives all the running statistics of the master, ``"average"`` their mean. ``optimize_gradient_memory`` lets
    gradients of activations share memory, ``dynamic_memory_management`` everything that is not needed any more but
    ``blobs_to_keep``; the bits are the same. ``use_nccl``: True only on GPUs. ``max_concurrent_distributed_ops``:
    gradient buckets in flight. ``num_threads_per_device``: threads of one matrix product, fewer where devices share
    the cores.
    ``shared_model``: devices share the master's parameters (processors only). ``combine_spatial_bn``: statistics of
    all devices and ranks together; ``"host"``: of the devices of a rank. ``barrier_net_timeout_sec``: how long a run
    waits for ranks that have not begun theirs. ``loss_weighting``: ``"devices"`` counts every device alike,
    ``"samples"`` by its rows. ``uneven``: what a run does where readers of some ranks are at their end: ``"error"``
    raises StopIteration there, ``"drop"`` on all ranks, ``"join"`` goes on with those that have a batch until none has.
    ``transport``: ``"float16"`` or ``"bfloat16"``, in which gradients travel between hosts; sums are of 32 bits.
    ``sharded_update``: each rank of a host updates its part of the parameters for all of them, with the states of that
    part alone (ZeRO-1); the bits are the same. Gradients of other parts are no sums then, and ``checkpoint_params
    save`` are collective.

    Raises ParallelizeError and its kin (DeviceError, RendezvousError, AlreadyParallelizedError), ArgumentError for what
    is no model or no function, BackendUnavailableError without a GPU unless ``cpu_device``.
    """
    return build(
        ParallelModel, model_helper_obj, input_builder_fun, forward_pass_builder_fun, param_update_builder_fun,
        optimizer_builder_fun, post_sync_builder_fun, pre_grad_net_transformer_fun, net_transformer_fun, plan_hook_fun,
        devices=devices, rendezvous=rendezvous, net_type=net_type, cpu_device=cpu_device, ideep=ideep,
        broadcast_computed_params=broadcast_computed_params, optimize_gradient_memory=optimize_gradient_memory,
        dynamic_memory_management=dynamic_memory_management, blobs_to_keep=blobs_to_keep, use_nccl=use_nccl,
        max_concurrent_distributed_ops=max_concurrent_distributed_ops, num_threads_per_device=num_threads_per_device,
        shared_model=shared_model, combine_spatial_bn=combine_spatial_bn,
        barrier_net_timeout_sec=barrier_net_timeout_sec, loss_weighting=loss_weighting,
        uneven=uneven, transport=transport, sharded_update=sharded_update,
    )  # fmt: skip


def build(
    kind: type[Model], model: ModelHelper, inputs: Builder | None, forward: Builder, update: Builder | None,
    optimize: Builder | None, post_sync: Builder | None = None, pre_gradient: Builder | None = None,
    transform: Builder | None = None, plan_hook: Builder | None = None, **options: Any,
) -> Model:  # fmt: skip
    """See `parallelize`; ``kind`` is the class of the model that is made."""
    check_model(model)
    if update is not None and optimize is not None:
        raise ParallelizeError("parallelize: take one of param_update_builder_fun and optimizer_builder_fun, not both")
    check_builders(
        input_builder_fun=(inputs, True), forward_pass_builder_fun=(forward, False),
        param_update_builder_fun=(update, True), optimizer_builder_fun=(optimize, True),
        post_sync_builder_fun=(post_sync, True), pre_grad_net_transformer_fun=(pre_gradient, True),
        net_transformer_fun=(transform, True), plan_hook_fun=(plan_hook, True),
    )  # fmt: skip
    trains = update is not None or optimize is not None
    checked = check_options(trains, **options)
    ranks = checked.comm.size if checked.comm is not None else 1
    scale = 1.0 / (len(checked.prefixes) * ranks)
    model.trains = trains
    model.combines_spatial_bn = bool(checked.combine_spatial_bn) and len(checked.prefixes) * ranks > 1
    nets = [Net(prefix) for prefix in checked.prefixes]
    model.nets = {net.prefix: net for net in nets}
    for net in nets:
        with model.on(net):
            if inputs is not None:
                inputs(model)
            losses = check_losses(model, net, forward(model, scale), trains)
            net.take_common(model.common)
            net.close(losses)
    check_nets(model, nets)
    if pre_gradient is not None:
        _replace(model, pre_gradient(model))
    if transform is not None:
        prefix = checked.prefixes[0].partition("_")[0]
        _replace(model, transform(model, len(nets), prefix, checked.contexts[0].device_type))
    if trains:
        check_graphs(model, nets)
    if optimize is not None:
        model.optimizer = optimize(model) or model.optimizer
        if model.optimizer is None:
            raise ParallelizeError(
                f"parallelize: model '{model.name}': optimizer_builder_fun must build an optimizer, such as "
                "model.build_sgd(0.1)"
            )
    if checked.sharded_update and (model.optimizer is None or model.optimizer.max_gradient_norm is not None):
        raise ParallelizeError(
            f"parallelize: model '{model.name}': with sharded_update every number moves by itself: it needs "
            "optimizer_builder_fun, without max_gradient_norm"
        )
    for net in nets if update is not None else ():
        with model.on(net):
            update(model)  # type: ignore[misc]
    for net in nets if post_sync is not None else ():
        updates, net.updates = net.updates, {}
        with model.on(net):
            post_sync(model)  # type: ignore[misc]
        net.after_init, net.updates = net.updates, updates
    model.parallel = found = kind(model, checked, plan_hook)
    return found


def _replace(model: ModelHelper, graphs: Mapping[str, Any] | None) -> None:
    """Take the graphs that a transformer gave, by prefix."""
    listed = isinstance(graphs, Mapping | None)
    if not listed or not all(isinstance(graph, Symbol) for graph in (graphs or {}).values()):
        raise ArgumentError(f"parallelize: a transformer must give None or Symbols by prefix, but it gave {graphs!r}")
    for prefix, graph in (graphs or {}).items():
        if prefix not in model.nets:
            raise ParallelizeError(
                f"parallelize: a transformer gave a graph for '{prefix}', but the devices are {', '.join(model.nets)}"
            )
        model.nets[prefix].graph = graph


def optimize_gradient_memory(
    model: ParallelModel, input_shapes: Mapping[str, Sequence[int]] | None = None, excluded_blobs: Sequence[str] = (),
    recycle_activations: bool = False,
) -> dict[str, dict[str, int]]:  # fmt: skip
    """`ParallelModel.optimize_gradient_memory` under Caffe2's name."""
    return model.optimize_gradient_memory(input_shapes, excluded_blobs, recycle_activations)


def parallelize_gpu(*args: Any, **kwargs: Any) -> ParallelModel:
    """`parallelize` on GPUs."""
    return parallelize(*args, **{**kwargs, "cpu_device": False, "ideep": False})


def parallelize_cpu(*args: Any, **kwargs: Any) -> ParallelModel:
    """`parallelize` on processors: devices are logical, each a thread."""
    return parallelize(*args, **{**kwargs, "cpu_device": True, "ideep": False})


def parallelize_ideep(*args: Any, **kwargs: Any) -> ParallelModel:
    """`parallelize` on processors under Caffe2's names for its accelerated library: blobs are ``ideep_<id>/<name>``."""
    return parallelize(*args, **{**kwargs, "cpu_device": False, "ideep": True})
