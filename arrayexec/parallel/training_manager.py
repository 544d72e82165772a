"""A manager with what modules ask for: requests by name, gradients of inputs, shared parameters, first values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from ..comm import Communicator
from ..context import Context, asnumpy, context_of, copyto
from ..errors import ArgumentError, DeviceError, near_miss
from .executor_group import DataParallelExecutorGroup
from .executor_manager import DataParallelExecutorManager
from .loading import Described
from .manager_checks import bucket_key
from .replicas import KINDS, Replicas

Array = Any
FirstValue = Callable[[Any, str, Array], None]
"""``(symbol, name, host array)``: fills the array of a parameter or state that has no value yet."""


class TrainingManager(DataParallelExecutorManager):
    """See `DataParallelExecutorManager`; all its options by keyword, and:

    ``grad_req``: that of all parameters, or a dict (parameters that it has not: write); ``fixed`` ones have null.
    ``input_grads``: arguments that are no parameters and yet get gradients, by ``grad_req``, too. ``group2ctxs``: a
    dict a device, see ``Symbol.bind``. ``shared``: a manager whose parameters, states and memory are used, by name.
    ``loss_weighting``: ``samples`` multiplies the gradients of every device by its share of the rows, for losses that
    divide by the rows of their own device; ``devices`` just adds them up. ``names``: of data and labels of batches of
    the default bucket that do not say theirs.
    """

    _binds_few_rows = True

    def __init__(
        self, symbol: Any, ctx: Sequence[Context], train_data: Any, *, grad_req: str | Mapping[str, str] = "write",
        fixed: Collection[str] = (), input_grads: Collection[str] = (),
        group2ctxs: Sequence[Mapping[str, Context] | None] | None = None, shared: TrainingManager | None = None,
        loss_weighting: str = "devices", names: tuple[Sequence[str] | None, Sequence[str] | None] = (None, None),
        **options: Any,
    ) -> None:  # fmt: skip
        self._requests, self._fixed, self._input_grads = grad_req, frozenset(fixed), input_grads
        self._group2ctxs, self._shared = group2ctxs, shared
        self._aux_given: set[str] = set()
        self._residuals: dict[tuple[int, str], Array] = {}
        self.compression: Any = None
        """Rounds the gradients of a device, or with ranks their sum; the rest is added to those of the next step."""
        self.first_value: FirstValue | None = None
        """Gives values to what a bucket brings and nobody gave a value for."""
        if shared is not None and shared.ctx != list(ctx):
            raise DeviceError(f"shared: the other manager must have the contexts {list(ctx)}, but it has {shared.ctx}")
        if group2ctxs is not None and len(group2ctxs) != len(ctx):
            raise DeviceError(f"group2ctxs has {len(group2ctxs)} dicts for {len(ctx)} contexts")
        if loss_weighting not in ("devices", "samples"):
            raise ArgumentError(f"loss_weighting must be 'devices' or 'samples', but it is {loss_weighting!r}")
        self._by_rows = loss_weighting == "samples"
        requests = [grad_req] if isinstance(grad_req, str) else grad_req.values()
        if self._by_rows and "add" in requests:
            raise ArgumentError("loss_weighting='samples' needs grad_req 'write', but it is 'add'")
        super().__init__(symbol, ctx, train_data, grad_req="add" if "add" in requests else "write", **options)
        if symbol is not None:
            self._generated[self._default] = (symbol, *names)
        if self.sym_gen is None:  # no bucket that could be named larger: inputs grow without a word
            self._replicas.lead.grown.update(self._inputs)

    def _make_replicas(self) -> Replicas:
        return super()._make_replicas() if self._shared is None else self._shared._replicas

    def _group_options(self, parameters: Sequence[str]) -> dict[str, Any]:
        wanted = {name: self._request(name) for name in (*parameters, *self._input_grads)}
        return {"grad_req": wanted, "group2ctxs": self._group2ctxs}

    def _request(self, name: str) -> str:
        if name in self._fixed:
            return "null"
        return self._requests if isinstance(self._requests, str) else self._requests.get(name, "write")

    @property
    def progress(self) -> tuple[int, dict[tuple[int, str], Array]]:
        """What another manager of the same parameters goes on from: steps so far, rests of rounded gradients."""
        return self.step, self._residuals

    @progress.setter
    def progress(self, given: tuple[int, dict[tuple[int, str], Array]]) -> None:
        self.step, self._residuals = given

    def make_current(self, key: Any, described: Described) -> None:
        """Make the group of a bucket, without a batch."""
        self.curr_execgrp = self._group(bucket_key(key), described)

    @property
    def _changes_gradients(self) -> bool:  # type: ignore[override]
        return self.compression is not None or self._by_rows

    def _weigh(self, group: DataParallelExecutorGroup) -> None:
        """Multiply the gradients of every device by its share of the rows of the global batch."""
        ranks = 1 if self.comm is None else self.comm.size
        rows = getattr(self._batch, "global_rows", None) if ranks > 1 else None
        for device in group.devices:
            share = (group.slices[device].stop - group.slices[device].start) / (rows or ranks * group.batch_size)
            for name in self._used:
                gradient = self.stores[device].gradients[name]
                with context_of(gradient).enter():
                    gradient *= share

    def _sum(self) -> None:
        if self._by_rows and self.curr_execgrp is not None:
            self._weigh(self.curr_execgrp)
        if self.compression is None or (self.comm is None and len(self.ctx) == 1):
            super()._sum()
            return
        if self.comm is None:
            for device in self._ran:
                self._round(device)
            super()._sum()
            return
        self._replicas.sum_gradients(self._used, self._ran)
        self._round(self.stores.index(self._replicas.lead))
        self._exchange(self.comm)

    def _exchange(self, comm: Communicator) -> None:
        """Sum the rounded gradients of all ranks, which travel in the bits that they need, with who has used them."""
        held = self._replicas.lead.gradients
        ends = np.cumsum([len(held), *(self.compression.packed_size(gradient.size) for gradient in held.values())])
        own = np.zeros(int(ends[-1]), np.uint8)
        for number, (name, gradient) in enumerate(held.items()):
            if name in self._used:
                own[number] = 1
                own[ends[number] : ends[number + 1]] = self.compression.pack(asnumpy(gradient))
        rows = np.empty((comm.size, own.size), np.uint8)
        comm.start_gather(own, rows, "rounded gradients").wait()
        used: Any = rows[:, : len(held)].any(axis=0)
        for number, gradient in enumerate(held.values()):
            if used[number]:
                parts = [self.compression.unpack(row[ends[number] : ends[number + 1]], gradient.size) for row in rows]
                copyto(gradient, sum(parts).reshape(gradient.shape))
        self._used = dict.fromkeys(name for name, mine in zip(held, used, strict=True) if mine)
        self._summed = True

    def _round(self, device: int) -> None:
        """Round the gradients of a device; what is left is kept for the next time."""
        for name in self._used:
            gradient = self.stores[device].gradients[name]
            context = context_of(gradient)
            shape, kind = tuple(gradient.shape), np.promote_types(gradient.dtype, np.float32)
            if (device, name) not in self._residuals:
                self._residuals[device, name] = context.zeros(shape, kind, "gradient")
            sent = context.empty(shape, kind, "gradient")
            self.compression.send(gradient, self._residuals[device, name], sent)
            copyto(gradient, sent)

    def held(self, kind: str) -> dict[str, Array]:
        """The leading device's ``parameters`` (or ``aux``) of all buckets bound so far."""
        return dict(getattr(self._replicas.lead, kind))

    def kept(self, kind: str) -> dict[str, Array]:
        """Values that were given for names that no bucket bound so far has."""
        return {n: a for n, a in self._kept.items() if (n in self._aux_given) == (kind == "aux")}

    def set_params(self, arg_params: Mapping[str, Any], aux_params: Mapping[str, Any] | None = None) -> None:
        """See `DataParallelExecutorManager.set_params`; ``first_value`` gives the values that are still missing."""
        self._aux_given |= (aux_params or {}).keys()
        self._fill(self.symbol, {("parameters", name) for name in arg_params} | {("aux", n) for n in aux_params or {}})
        super().set_params(arg_params, aux_params)

    def _bring(self, symbol: Any) -> None:
        self._fill(symbol, set())

    def _fill(self, symbol: Any, given: set[tuple[str, str]]) -> None:
        if self.first_value is None:
            return
        for kind in KINDS:
            for name, array in self.held(kind).items():
                if (kind, name) not in self._replicas.written | given:
                    host = np.zeros(array.shape, array.dtype)
                    self.first_value(symbol, name, host)
                    near = near_miss(name, self._kept, shown=0)
                    if near:
                        self.logger.warning("'%s' got a first value, since none was given%s", name, near)
                    self._replicas.write(kind, name, host, "the first value")

    def _check_values(self, key: Any, names: Collection[str]) -> None:
        if self.first_value is None:
            super()._check_values(key, names)
