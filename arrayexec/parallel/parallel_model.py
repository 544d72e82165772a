"""A model on several devices and ranks in training: start, steps, updates. Made by `parallelize`."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..comm import GradientBuckets
from ..context import add_to, asnumpy, copyto
from ..errors import AlreadyParallelizedError, ArgumentError, NotBoundError, ParallelizeError, near_miss
from ..executor import Meeting, bind
from ..symbol import Group
from ..threads import blas_threads, cores, limited_blas
from ..train.initializer import InitDesc
from ..train.model_helper import ModelHelper
from .device_net import DeviceNet, stretches
from .executor_group import _threads
from .feeding import Feeder
from .model_checks import Options
from .model_state import ModelState
from .shards import Shards
from .sparse import Rows, gather_rows, merged, update_rows
from .uneven import ranks_with_batch

Array = Any


class ParallelModel(ModelState):
    """What `parallelize` gives: ``init()`` once, then ``feed`` (or readers) and ``run``.

    ``check_every``: a number of steps after which `check_consistency` is called each time (0: never).
    """

    check_every = 0
    warmup_iterations: int | None = None

    def __init__(self, model: ModelHelper, options: Options, plan_hook: Callable[[ParallelModel], Any] | None) -> None:
        super().__init__(model, options)
        self._feeder = Feeder(model.name, self.devices, self.comm)
        self._plan_hook = plan_hook
        self._buckets: GradientBuckets | None = None
        self._rows: list[int] = []
        self._bound = self._absent = self._quiet = False
        self._added = 0  # rows whose gradients wait for an update
        self._group: Any = None  # GPUs that NCCL joins
        self._lock = threading.Lock()

    # --- start -------------------------------------------------------------------------------------------------

    def init(self) -> ParallelModel:
        """Take memory, fill parameters, give those of the master (of rank 0) to all; collective with ranks.

        Raises PlanMismatchError if ranks do not hold the same model or options, AlreadyParallelizedError if it has run.
        """
        net, options = self.master.net, self.options
        if self._started:
            raise AlreadyParallelizedError(
                f"init: the model '{self.model.name}' is started already; to begin anew set_params or load"
            )
        if self.comm is not None:
            self.comm.agree(self._description(), f"the model '{self.model.name}'")
        lender = self.model.shares
        if lender is not None and (lender.parallel is None or not lender.parallel.is_started):
            raise NotBoundError(f"model '{self.model.name}': init '{lender.name}' first, whose parameters it has")
        others = {} if lender is None else {device.net.prefix: device for device in lender.parallel.devices}
        for device in self.devices:
            if lender is not None:
                source = others.get(device.net.prefix, lender.parallel.master)
                device.allocate(self.trained, source, share_computed=True)
            else:
                shares = options.shared_model and device is not self.master
                ranks = self.comm if device is self.master and options.trains and self.reduces else None
                device.allocate(
                    self.trained, self.master if shares else None, comm=ranks, sharded=options.sharded_update
                )
        blocks = [self.master.blocks.get(kind) for kind in ("parameter", "gradient")]
        sharded = self.comm is not None and options.sharded_update and None not in map(self.comm.place, blocks)
        optimizer: Any = self.model.optimizer if options.trains else None
        for device in self._updated() if optimizer is not None else ():
            for name in optimizer.used_states():
                device.add_state(name, optimizer.blobs[name], {} if sharded else self.trained)
        if lender is None and self.model.init_params:
            for name, one in net.params.items():
                held = self.master.params.get(name, self.master.computed.get(name))
                one.initializer._init_weight(InitDesc(name), held)
        for device in self.devices:
            for name, one in device.net.states.items():
                one.initializer._init_weight(InitDesc(name), device.states[name])
        by_decay = bool(optimizer is not None and optimizer.weight_decay)
        self._cuts = stretches(self.trained, self.master.context.alignment, by_decay)
        self._started = True
        if lender is None:
            self.sync_parameters()
        if self.comm is None and options.use_nccl and options.trains and self.reduces:
            from ..comm.nccl import join

            self._group = join(options.contexts, options.use_nccl)
        if self.comm is not None and self.trained and self.reduces:
            flat = self.master.gradient_parts(stretches(self.trained, self.master.context.alignment, False))
            self._buckets = GradientBuckets(
                self.comm, self.master.gradients, flat, options.max_concurrent_distributed_ops,
                transport=options.transport, sharded=sharded,
            )  # fmt: skip
            self._shards = Shards(self.comm, self._buckets, self.master, optimizer) if sharded else None
        for device in self.devices:
            self._assign(device, device.net.after_init)
        if all(self._feeder.known(device) is not None for device in self.devices):
            self._bind([self._feeder.known(device) or {} for device in self.devices])
        return self

    def _bind(self, specs: Sequence[Mapping[str, Any]]) -> None:
        first, self._bound = not self._bound, True
        for device, given in zip(self.devices, specs, strict=True):
            device.bind(given, self.trained, self.options.trains, self._added > 0)
        if first:
            self._check_kept()
            if self._plan_hook is not None:
                self._plan_hook(self)

    def feed(self, name: str, array: Any, *, local: bool = False) -> None:
        """Give a global batch of an input, whose rows are cut over ranks, then devices; it stays until the next feed.

        The first parts have a row more where it does not divide evenly. ``local``: the rows of this rank alone. Raises
        UnknownNameError, ArgumentError, and ShapeError for a batch without a row for every device.
        """
        self._feeder.feed(name, array, local)

    def optimize_gradient_memory(
        self, input_shapes: Mapping[str, Sequence[int]] | None = None, excluded_blobs: Sequence[str] = (),
        recycle_activations: bool = False,
    ) -> dict[str, dict[str, int]]:  # fmt: skip
        """Let gradients of activations share memory from now on (all but ``excluded_blobs``), or activations, too.

        ``input_shapes``: those of a device, if no step was taken yet. Gives the bytes by role of the master, ``before``
        and ``after``. The bits stay. Raises NotBoundError while shapes are unknown, UnknownNameError for strangers.
        """
        self._check_started("optimize_gradient_memory")
        for name in excluded_blobs:
            self.master.check_known(name)
        given = {name: (tuple(shape), "float32") for name, shape in (input_shapes or {}).items()}
        specs = [given or device.specs() or self._feeder.known(device) for device in self.devices]
        if None in specs:
            raise NotBoundError("optimize_gradient_memory: give input_shapes, or run a step first")
        self._bind([one or {} for one in specs])
        before = self.master.nbytes()
        for device in self.devices:
            device.set_memory("outputs" if recycle_activations else "forward", excluded_blobs)
        self._bind([one or {} for one in specs])
        return {"before": before, "after": self.master.nbytes()}

    # --- steps -------------------------------------------------------------------------------------------------

    def warmup(self) -> ParallelModel:
        """Take the steps that a model of `parallelize_bmuf` was told to begin with; ParallelizeError for others."""
        if self.warmup_iterations is None:
            raise ParallelizeError(f"warmup: the model '{self.model.name}' was made without warmup_iterations")
        return ParallelModel.run(self, self.warmup_iterations)

    def run(self, iterations: int = 1, *, check: str | None = None) -> ParallelModel:
        """Take that many steps (a forward-only model: run forward); collective with ranks.

        ``check='finite'`` raises NonFiniteError at the first node that makes a NaN or an infinity; parameters and
        running statistics are then as before the step. Raises NotBoundError before `init` and for inputs without
        values, BarrierTimeoutError if ranks do not come.
        """
        self._check_started("run")
        if isinstance(iterations, bool) or not hasattr(iterations, "__index__") or iterations < 0:
            raise ArgumentError(f"run: iterations must be a whole number >= 0, but it is {iterations!r}")
        if self.comm is not None:
            self._barrier()
        share = max(1, cores() // (len(self.devices) if self.options.net_type == "dag" else 1))
        threads = min(self.options.num_threads_per_device, share)
        with limited_blas(min(threads, blas_threads() or threads)):  # ranks of a host share its cores, too
            for _ in range(iterations):
                self._say_where()
                self.check_for_failures()
                self._step(check)
        return self

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside, steps of `run` end with backward; the next step outside adds its gradients to theirs and updates.

        So n batches count as one n times as large, whose losses are to be scaled by 1 / n. Raises ParallelizeError for
        models whose gradients cannot add up.
        """
        if not (self.options.trains and self.reduces) or self.master.loose or self.master.net.taps:
            raise ParallelizeError(
                f"no_sync: the model '{self.model.name}' must train and sum its gradients, without sparse tables and "
                "dynamic_memory_management"
            )
        self._quiet = True
        try:
            yield
        finally:
            self._quiet = False

    def _barrier(self) -> None:
        """Wait for the ranks that have not begun their run yet."""
        self._say_where()
        with self.comm.deadline(self.options.barrier_net_timeout_sec):
            self.comm.barrier()

    def _say_where(self) -> None:
        if self.comm is not None:
            self.comm.where = f"step {self.iteration + 1} of the model '{self.model.name}'"

    def _step(self, check: str | None = None) -> None:
        batches = self._next_batches()
        self._feeder.agree()
        self._bind(
            [
                {n: (tuple(a.shape), self._feeder.input(device, n).dtype) for n, a in inputs.items()}
                for device, inputs in zip(self.devices, batches, strict=True)
            ]
        )
        rows = [max((len(a) for a in inputs.values() if a.ndim), default=0) for inputs in batches]
        self._rows = [0] * len(rows) if self._absent else rows
        starts = np.cumsum([self._added + self._feeder.first_row(sum(rows)), *rows])
        for device, inputs, start in zip(self.devices, batches, starts, strict=False):
            executor: Any = device.executor
            executor.first_row, executor.step = int(start), self.iteration
            arrays = executor.arg_dict
            for name, array in inputs.items():
                copyto(arrays[name], array)
        trains = self.options.trains
        with self._kept_computed(check):
            self._walk(lambda executor, _: executor.stages(True, trains, check=check))
            if not trains:
                return
            heads = [self._heads(*pair) for pair in zip(self.devices, self._seeds(), strict=True)]
            self._arrived = dict.fromkeys(self.trained, 0)
            ready = self._ready if self._buckets is not None and not self._quiet else None
            self._walk(lambda executor, i: executor.stages(False, heads=heads[i], on_ready=ready, check=check))
        self._sync_computed()
        self._added = self._added + self._feeder.global_rows(sum(rows)) if self._quiet else 0
        if self._quiet:
            return
        self.iteration += 1
        self._reduce()
        self._update()
        if self.reduces:
            self._sync_blobs()
        if self.comm is not None and self.iteration == 1:
            self.comm.first_step_done()
        if self.check_every and self.iteration % self.check_every == 0:
            self.check_consistency()

    @contextlib.contextmanager
    def _kept_computed(self, check: str | None) -> Iterator[None]:
        """Let running statistics be as before where this rank has no batch, or something was not finite inside."""
        alone = self._absent and self.options.combine_spatial_bn is not True  # else they are those of all ranks
        before = [{n: a.copy() for n, a in d.computed.items()} for d in self.devices] if alone or check else []
        failed = True
        try:
            yield
            failed = False
        finally:
            for device, computed in zip(self.devices, before if alone or failed else (), strict=False):
                for name, array in computed.items():
                    copyto(device.computed[name], array)

    def _next_batches(self) -> list[dict[str, Array]]:
        """The inputs of the next step. Raises StopIteration when readers are at their end; see ``uneven``."""
        try:
            found = self._feeder.batches()
        except StopIteration:
            if self.comm is None or self.options.uneven == "error":
                raise
            found = []
        self._absent = False
        if self.comm is not None and self.options.uneven != "error":
            if not ranks_with_batch(self.comm, bool(found), self.options.uneven)[0]:
                raise StopIteration
            if not found:  # takes part with its last batch, which counts for nothing
                self._absent, found = True, self._feeder.last
        return found

    def _seeds(self) -> list[float]:
        """What the gradient of each device's losses begins with: 1, or its share of the rows times all devices."""
        if self.options.loss_weighting == "devices":
            return [float(not self._absent)] * len(self.devices)
        total, parts = np.array([sum(self._rows), len(self.devices)], np.float64), len(self.devices)
        if self.comm is not None:
            self.comm.allreduce(total)
            parts = int(total[1])
        return [rows * parts / float(total[0]) for rows in self._rows]

    def _heads(self, device: DeviceNet, seed: float) -> list[Array | None]:
        outputs = device.executor.outputs[: len(device.net.losses)]  # type: ignore[union-attr]
        xp = device.context.xp
        with device.context.enter():
            heads: list[Array | None] = [xp.full(one.shape, seed, one.dtype) for one in outputs]
        return heads + [None] * (len(device.net.graph) - len(heads))  # type: ignore[arg-type]

    def _walk(self, start: Callable[[Any, int], Generator[Meeting]]) -> None:
        """Run one direction on all devices, from meeting to meeting."""
        walks = [start(device.executor, i) for i, device in enumerate(self.devices)]
        comm = self.comm if self.options.combine_spatial_bn is True else None
        try:
            while (meetings := self._everywhere(lambda i: next(walks[i], None)))[0] is not None:
                absent = [one.arrays for one in meetings if self._absent and comm is not None]
                for arrays in absent:
                    arrays["data"][1:] = 0  # squares and count of nothing
                meetings[0].op.meet(meetings[0].kind, comm, [meeting.arrays for meeting in meetings])
                for arrays in absent if meetings[0].kind == "backward" else ():
                    arrays["ddata"].fill(0)
        finally:
            for walk in walks:
                walk.close()  # after an exception on one device the others can be used again

    def _everywhere(self, call: Callable[[int], Any]) -> list[Any]:
        """``call(i)`` for every device: side by side on processors if the net type is dag."""
        count = len(self.devices)
        if count == 1 or self.options.net_type == "simple" or self.master.context.xp is not np or self._monitored:
            return [call(i) for i in range(count)]
        futures = [_threads(count).submit(call, i) for i in range(count)]
        errors = [future.exception() for future in futures]
        for device, error in zip(self.devices, errors, strict=True):
            if error is not None:
                error.add_note(f"on {device.net.prefix}, one of {count} devices")
                raise error
        return [future.result() for future in futures]

    def _ready(self, name: str) -> None:
        """A device has finished a gradient: the last one adds all up and lets ranks sum it."""
        if name not in self._arrived:  # rows of a table
            return
        with self._lock:
            self._arrived[name] += 1
            if self._arrived[name] < len(self.devices):
                return
            self._add_up([device.gradient(name) for device in self.devices])
            self._buckets.ready(name)  # type: ignore[union-attr]

    def _add_up(self, parts: Sequence[Array]) -> None:
        """Add the arrays of the other devices to the master's, in the devices' order."""
        for part in parts[1:]:
            add_to(parts[0], part)

    def _reduce(self) -> None:
        """Let the gradients be sums over devices and ranks, on every device that updates."""
        if not self.reduces:
            return
        held = [device.gradient_parts(self._cuts) for device in self.devices]
        if self._group is not None:
            for arrays in zip(*held, strict=True):
                self._group.allreduce(arrays)
            return
        if self._buckets is not None:
            self._buckets.finish()
        else:
            for arrays in zip(*held, strict=True):
                self._add_up(arrays)
        for mine in held[1 : len(self._updated())] if self._shards is None else ():
            for target, source in zip(mine, held[0], strict=True):
                copyto(target, source)

    # --- updates -----------------------------------------------------------------------------------------------

    def _update(self) -> None:
        optimizer = self.model.optimizer
        if optimizer is None:
            for device in self._updated():
                self._assign(device, device.net.updates)
            return
        names, devices = optimizer.used_states(), self._updated()
        cuts = self._cuts if self._shards is None else ()
        if self._shards is not None:
            self._shards.update(self.iteration, self.learning_rate())
            for device in devices[1:]:
                copyto(device.blocks["parameter"], self.master.blocks["parameter"])
        for device in devices if optimizer.weight_decay else ():
            for weight, grad, _, decays in device.pieces(cuts, ()):
                if decays:
                    optimizer.decay(device.context, weight, grad)
        tables, ratio = self.master.net.sparse, None
        rows = {table: gather_rows(self.devices, table, self.comm) for table in tables if self.reduces}
        for device in devices:
            if not self.reduces:
                rows = {table: gather_rows([device], table, None) for table in tables}
            if ratio is None or not self.reduces:
                ratio = self._norm_ratio(device, rows)
            rate = self.learning_rate() * ratio
            for weight, grad, states, _ in device.pieces(cuts, names):
                optimizer.apply(device.context, self.iteration, weight, grad, states, rate)
            for table, found in rows.items():
                update_rows(device, table, found, optimizer, self.iteration, rate)

    def _norm_ratio(self, device: DeviceNet, rows: Mapping[str, Rows]) -> float:
        """By what the learning rate is multiplied so that the gradient is not too long; each parameter counts once."""
        if self.model.optimizer.max_gradient_norm is None:
            return 1.0
        squares = sum(float(np.square(merged(found)[1], dtype=np.float64).sum()) for found in rows.values())
        with device.context.enter():
            for _, grad, _, _ in device.pieces(self._cuts, ()):
                size = 1 << 16 if device.context.xp is np else max(grad.size, 1)
                for start in range(0, grad.size, size):
                    piece = grad[start : start + size].astype(np.float64)
                    squares += float(asnumpy((piece * piece).sum()))
        return float(self.model.optimizer.norm_ratio(squares**0.5))

    def _assign(self, device: DeviceNet, values: Mapping[str, Any]) -> None:
        """Give parameters and states of a device the new values that were written by hand."""
        if not values:
            return
        graph = Group(list(values.values()))
        held = {**device.params, **device.computed, **device.states}
        held |= {f"{name}_grad": device.gradient(name) for name in self.trained}
        for name, rate in self.model.rates.items():
            held[name] = device.context.empty((1,), np.float32, "input")
            copyto(held[name], np.array([rate(self.iteration)], np.float32))
        arguments = graph.list_arguments()
        for name in (*arguments, *values):
            if name not in held:
                raise ParallelizeError(
                    f"model '{self.model.name}': an assigned value uses '{name}', which is no parameter, gradient or "
                    f"state{near_miss(name, held)}"
                )
        made = bind(graph, device.context, {name: held[name] for name in arguments}).forward()
        for name, value in zip(values, made, strict=True):
            copyto(held[name], value)
