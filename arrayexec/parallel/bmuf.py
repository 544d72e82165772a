"""Block momentum (BMUF): devices train by themselves, and meet after a block of steps; for slow networks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..context import asnumpy, copyto
from ..errors import ParallelizeError
from ..train.model_helper import ModelHelper
from .data_parallel_model import build
from .parallel_model import ParallelModel

Builder = Callable[..., Any]


class BlockModel(ParallelModel):
    """What `parallelize_bmuf` gives: ``run(n)`` is n steps of each device by itself, then one block step.

    With N the number of devices of all ranks: ``avg = sum / N``, ``v = bm·v + blr·(avg - g)``, ``g += v``; Nesterov
    then ``g -= bm·(v - v_before)``; ``g`` becomes the parameters of all. Blobs: ``<parameter>_g``, ``<parameter>_v``.
    """

    reduces = False
    block_learning_rate = 1.0
    block_momentum = 0.0
    nesterov = False
    reset_momentum_sgd = False

    def init(self) -> BlockModel:
        """As `ParallelModel.init`; the block's parameters begin as the parameters."""
        super().init()
        for name in ("v", "g"):
            self.master.add_state(name, f"_{name}", self.trained)
        self._take_block()
        return self

    def _take_block(self) -> None:
        for cut in self._cuts:
            copyto(cut.of(self.master.blocks["g"]), cut.of(self.master.blocks["parameter"]))

    def run(self, iterations: int = 1, *, check: str | None = None) -> BlockModel:
        """That many steps of every device by itself, then one block step; collective with ranks."""
        super().run(iterations, check=check)
        self._block_step()
        return self

    def warmup(self) -> BlockModel:
        """``warmup_iterations`` steps by themselves, then the master's parameters for all, and as those of the block.

        Raises ParallelizeError for a model that was made without them.
        """
        super().warmup()
        self.sync_parameters()
        self._take_block()
        return self

    def _block_step(self) -> None:
        count = len(self.devices) * (self.comm.size if self.comm is not None else 1)
        momentum = self.block_momentum
        for cut in self._cuts:
            held = [cut.of(device.blocks["parameter"]) for device in self.devices]
            mean = np.array(asnumpy(held[0]))
            for other in held[1:]:
                mean += asnumpy(other)
            if self.comm is not None:
                self.comm.allreduce(mean)
            mean /= count
            g, v = (np.array(asnumpy(cut.of(self.master.blocks[name]))) for name in ("g", "v"))
            before, v = v, momentum * v + self.block_learning_rate * (mean - g)
            g = g + v - momentum * (v - before) if self.nesterov else g + v
            for name, value in (("g", g), ("v", v)):
                copyto(cut.of(self.master.blocks[name]), value)
            for target in held:
                copyto(target, g)
        self._sync_blobs()
        optimizer = self.model.optimizer
        if self.reset_momentum_sgd and "momentum" in optimizer.used_states():
            for device in self._updated():
                with device.context.enter():
                    device.blocks["momentum"].fill(0)


def parallelize_bmuf(
    model_helper_obj: ModelHelper, input_builder_fun: Builder | None, forward_pass_builder_fun: Builder,
    param_update_builder_fun: Builder | None = None, block_learning_rate: float = 1.0,
    block_momentum: float | None = None, devices: Sequence[int] | None = None, rendezvous: Any = None,
    net_type: str = "dag", master_device: int | None = None, use_nccl: bool | str = False, nesterov: bool = False,
    optimize_gradient_memory: bool = False, reset_momentum_sgd: bool = False, warmup_iterations: int | None = None,
    max_concurrent_distributed_ops: int = 4, add_blobs_to_sync: Sequence[str] | None = None,
    num_threads_per_device: int = 4, cpu_device: bool = False, barrier_net_timeout_sec: float = 300, *,
    optimizer_builder_fun: Builder | None = None,
) -> BlockModel:  # fmt: skip
    """`parallelize` by blocks: no gradient travels; ``run(n)`` is n steps of each device, then one block step.

    ``block_momentum``: None is 1 - 1 / N for N devices of all ranks. ``master_device``: which of ``devices`` is the
    master (None: the first). ``add_blobs_to_sync``: blobs that all take from the master after a block.
    ``reset_momentum_sgd`` sets the momentum of SGD to zero after a block. Raises ParallelizeError and its kin.
    """
    for name, value in (("block_learning_rate", block_learning_rate), ("block_momentum", block_momentum)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise ParallelizeError(f"parallelize_bmuf: {name} must be a number, but it is {value!r}")
    if param_update_builder_fun is None and optimizer_builder_fun is None:
        raise ParallelizeError("parallelize_bmuf: give optimizer_builder_fun or param_update_builder_fun")
    ids = None if devices is None else list(devices)
    if ids is not None and master_device is not None:
        if master_device not in ids:
            raise ParallelizeError(f"parallelize_bmuf: master_device must be one of {ids}, but it is {master_device!r}")
        ids.sort(key=lambda one: one != master_device)
    found = build(
        BlockModel, model_helper_obj, input_builder_fun, forward_pass_builder_fun, param_update_builder_fun,
        optimizer_builder_fun, devices=ids, rendezvous=rendezvous, net_type=net_type, use_nccl=use_nccl,
        max_concurrent_distributed_ops=max_concurrent_distributed_ops, num_threads_per_device=num_threads_per_device,
        cpu_device=cpu_device, barrier_net_timeout_sec=barrier_net_timeout_sec, broadcast_computed_params=False,
        optimize_gradient_memory=optimize_gradient_memory,
    )  # fmt: skip
    count = len(found.devices) * (found.comm.size if found.comm is not None else 1)
    found.block_learning_rate, found.nesterov = block_learning_rate, nesterov
    found.block_momentum = 1 - 1 / count if block_momentum is None else block_momentum
    found.reset_momentum_sgd, found.warmup_iterations = reset_momentum_sgd, warmup_iterations
    if add_blobs_to_sync:
        found.add_blob_sync(add_blobs_to_sync)
    return found
