"""The executor: owns the arrays of one symbol on one context, binds plans to them, runs forward and backward."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..context import Context, check_numbers, copyto
from ..errors import (
    ArgumentError,
    BindError,
    NotBoundError,
    ShapeError,
    StaleForwardError,
    UnknownNameError,
    format_shape,
    near_miss,
)
from ..plan import Plan, Rewrite, make_plan, needs_head_gradient
from ..registry import Known
from ..streams import RunPosition, Stream
from ..symbol.graph import Graph
from .arena import Arena, InputPool, WriteMark, apart, mark_arrays, note_write
from .bound import BoundPlan
from .watch import MonitorCallback, run_watched

Array = Any

TRAIN, INFER, INFER_KEPT = "train", "inference", "inference with kept values"


@dataclasses.dataclass(slots=True)
class _Run:
    """The last forward: what backward needs to know about it."""

    mode: str
    step: int
    first_row: int
    marks: dict[WriteMark, int]
    generation: int
    pool_generation: int
    kept: bool
    """True while the arena still holds what backward reads."""
    failed: bool = False


@dataclasses.dataclass(frozen=True)
class Binding:
    """What an executor is made of: the graph with known shapes and types, and its arrays by name."""

    symbol: Any
    graph: Graph
    context: Context
    shapes: Sequence[Any]
    types: Sequence[Any]
    grad_req: Mapping[str, str]
    arguments: dict[str, Array]
    gradients: dict[str, Array]
    aux: dict[str, Array]
    arena: Arena
    pool: InputPool | None = None
    pooled: tuple[str, ...] = ()
    rewrites: tuple[Rewrite, ...] = ()
    tier: str = "reference"
    threads: ThreadPoolExecutor | None = None


class Executor:
    """One symbol bound to arrays on one context; made by ``Symbol.bind`` and ``Symbol.simple_bind``.

    Arrays are plain and public: ``arg_dict grad_dict aux_dict outputs``. Outputs are valid until the next forward in
    the same memory. ``step`` counts training forwards and ``first_row`` is the place of the first row in the global
    batch; both address the random streams.
    """

    def __init__(self, binding: Binding) -> None:
        self._binding = binding
        graph = binding.graph
        self._names = [node.name for node in graph.nodes]
        self._argument_names = [graph.nodes[i].name for i in graph.arguments]
        self._aux_names = [graph.nodes[i].name for i in graph.auxiliary]
        self._entry_of = {graph.nodes[i].name: graph.first[i] for i in graph.arguments}
        self._shape_of = {name: tuple(binding.shapes[entry]) for name, entry in self._entry_of.items()}
        self._arguments = dict(binding.arguments)
        self.arena = binding.arena
        self.title = f"the executor of '{binding.symbol.name or 'a group'}' on {binding.context}"
        self.step = 0
        self.first_row = 0
        self._position = RunPosition()
        self._streams = [Stream(n, self._position, t) for n, t in zip(self._names, graph.twins, strict=True)]
        self._plans: dict[str, Plan] = {}
        self._bound: dict[str, BoundPlan] = {}
        self._states: dict[int, Any] = {}
        self._run: _Run | None = None
        self._monitor: MonitorCallback | None = None
        self._monitor_all = False
        self._pid = os.getpid()
        self._needs_head = needs_head_gradient(graph, binding.grad_req)
        self._marks: set[WriteMark] | None = None
        self._outputs: list[Array] | None = None
        self.arena.join(self)
        if binding.pool is not None:
            binding.pool.join(self)
        self._aux_copies = {n: a.copy() for n, a in binding.aux.items() if not a.flags.c_contiguous}

    # --- arrays ------------------------------------------------------------------------------------------------

    @property
    def symbol(self) -> Any:
        """The symbol that is bound."""
        return self._binding.symbol

    @property
    def context(self) -> Context:
        """Where the arrays lie."""
        return self._binding.context

    @property
    def grad_req(self) -> Mapping[str, str]:
        """Gradient request (write, add or null) of every argument."""
        return self._binding.grad_req

    @property
    def arg_dict(self) -> dict[str, Array]:
        """Arguments by name, in the symbol's order."""
        self.bind_inputs()
        return {name: self._arguments[name] for name in self._argument_names}

    @property
    def own_arguments(self) -> dict[str, Array]:
        """Arguments that do not lie in a shared input pool; asking for them binds nothing."""
        return {n: self._arguments[n] for n in self._argument_names if n not in self._binding.pooled}

    @property
    def grad_dict(self) -> dict[str, Array]:
        """Gradient arrays by name; None where no gradient is asked for."""
        return {name: self._binding.gradients.get(name) for name in self._argument_names}

    @property
    def aux_dict(self) -> dict[str, Array]:
        """Auxiliary states by name."""
        return {name: self._binding.aux[name] for name in self._aux_names}

    @property
    def arg_arrays(self) -> list[Array]:
        """Arguments in the symbol's order."""
        return list(self.arg_dict.values())

    @property
    def grad_arrays(self) -> list[Array]:
        """Gradient arrays in the order of the arguments; None where no gradient is asked for."""
        return list(self.grad_dict.values())

    @property
    def aux_arrays(self) -> list[Array]:
        """Auxiliary states in the symbol's order."""
        return list(self.aux_dict.values())

    @property
    def outputs(self) -> list[Array]:
        """Output arrays, overwritten by the next forward in the same memory."""
        if self._outputs is None:
            mode = self._run.mode if self._run is not None else INFER
            self._outputs = self._bind_plan(mode).outputs
        return list(self._outputs)

    @property
    def output_dict(self) -> dict[str, Array]:
        """Output arrays by name; BindError if two outputs have one name."""
        names = [self._binding.graph.entry_name(head) for head in self._binding.graph.heads]
        twice = [name for i, name in enumerate(names) if name in names[:i]]
        if twice:
            raise BindError(f"{self.title} has several outputs named '{twice[0]}': use outputs[i]")
        return dict(zip(names, self.outputs, strict=True))

    def drop_views(self) -> None:
        """Forget arrays in shared memory (called before it grows)."""
        self._bound.clear()
        self._outputs = None
        self._marks = None
        for name in self._binding.pooled:
            self._arguments.pop(name, None)

    def bind_inputs(self) -> None:
        """Take views of the shared inputs; entries that are too small grow."""
        binding = self._binding
        if binding.pool is None:
            return
        for name in binding.pooled:  # grow first, so that no view taken below is dropped again
            if not binding.pool.fits(name, self._shape_of[name], self._type_of(name)):
                binding.pool.view(name, self._shape_of[name], self._type_of(name))
        for name in binding.pooled:
            if name not in self._arguments:
                self._arguments[name] = binding.pool.view(name, self._shape_of[name], self._type_of(name))

    def _type_of(self, name: str) -> Any:
        return self._binding.types[self._entry_of[name]]

    # --- plans -------------------------------------------------------------------------------------------------

    def plan(self, mode: str = TRAIN) -> Plan:
        """The plan of a mode ("train", "inference"): made when first asked for, runs nothing."""
        if mode not in self._plans:
            binding = self._binding
            indirect = frozenset(n for n, g in binding.gradients.items() if not g.flags.c_contiguous)
            strided = frozenset(n for n, a in binding.arguments.items() if not a.flags.c_contiguous)
            self._plans[mode] = make_plan(
                binding.graph, binding.shapes, binding.types, binding.grad_req, is_train=mode == TRAIN,
                backward=mode != INFER, indirect=indirect, strided=strided, rewrites=binding.rewrites,
                alignment=binding.context.alignment,
            )  # fmt: skip
        return self._plans[mode]

    def _start_states(self) -> None:
        graph = self._binding.graph
        for number, node in enumerate(graph.nodes):
            if node.signature is not None and node.op is not None:
                entries = graph.values(number)
                shapes = [self._binding.shapes[e] for e in entries]
                known = Known(node.signature, shapes, [self._binding.types[e] for e in entries])
                self._states[number] = node.op.prepare(known, self._binding.context)

    def _bind_plan(self, mode: str) -> BoundPlan:
        """The bound plan of a mode; shared memory grows here if it must."""
        plan = self.plan(mode)
        self.arena.reserve(plan.arena_bytes)
        self.bind_inputs()
        bound = self._bound.get(mode)
        if bound is None:
            if not self._states:
                self._start_states()
            binding = self._binding
            bound = self._bound[mode] = BoundPlan(
                plan, binding.context, self.arena.buffer, self._arguments, binding.gradients,
                {**binding.aux, **self._aux_copies}, self._streams, self._states, binding.tier, binding.threads,
            )  # fmt: skip
        if self._marks is None:
            self._marks = mark_arrays(list(self._arguments.values()), WriteMark())
        return bound

    # --- running -----------------------------------------------------------------------------------------------

    def forward(self, is_train: bool = False, **inputs: Any) -> list[Array]:
        """Run forward and give the outputs; ``inputs`` are copied into arguments of their names first.

        ``is_train=True`` moves auxiliary states and advances ``step``. Raises UnknownNameError and ShapeError for
        inputs that do not fit, BusyExecutorError if the executor or one that shares its memory is running.
        """
        self._check_process()
        with self.arena.held_by(self):
            mode = TRAIN if is_train else INFER
            if inputs:
                self.bind_inputs()
                self._load(inputs)
            bound = self._bind_plan(mode)
            pool = self._binding.pool
            run = self._run = _Run(
                mode, self.step, self.first_row, {}, self.arena.generation,
                pool.generation if pool is not None else 0, kept=mode == TRAIN, failed=True,
            )  # fmt: skip
            self._run_forward(bound, run, updates=True)
            run.marks = {mark: mark.version for mark in self._marks or ()}
            run.failed = False
            self._outputs = bound.outputs
            if is_train:
                self.step += 1
        return list(bound.outputs)

    def _run_forward(self, bound: BoundPlan, run: _Run, updates: bool) -> None:
        self._position.step, self._position.first_row = run.step, run.first_row
        self.arena.last = (self.title, id(self))
        for name, private in self._aux_copies.items():
            copyto(private, self._binding.aux[name])
        with self._binding.context.device.enter():
            if self._monitor is not None and updates:
                self._watch(bound, forward=True)
            else:
                bound.forward(updates)
        for name, private in self._aux_copies.items():
            copyto(self._binding.aux[name], private)

    def backward(
        self, out_grads: Any = None, is_train: bool = True, *, on_ready: Callable[[str], None] | None = None
    ) -> None:
        """Write (or add) the gradients of all arguments that ask for one.

        ``out_grads``: array, list or dict by output name; only loss heads need none. ``on_ready(argument)`` is called
        as soon as an argument's gradient is finished. Raises NotBoundError before any forward, StaleForwardError if
        what forward kept, or what it read, has been overwritten by the engine since, BindError for wrong head
        gradients.
        """
        self._check_process()
        heads = self._head_gradients(out_grads)
        with self.arena.held_by(self):
            run = self._run
            if run is None:
                raise NotBoundError(f"{self.title}: backward needs a forward first")
            if not any(request != "null" for request in self._binding.grad_req.values()):
                return
            self._check_fresh(run)
            if run.mode == INFER:
                run.mode, run.kept = INFER_KEPT, False
            bound = self._bind_plan(run.mode)
            if self.arena.generation != run.generation:
                run.kept = False
            if not run.kept:
                heads = [None if head is None else head.copy() for head in heads]  # they may be the outputs, changed
                self._run_forward(bound, run, updates=False)
                self._outputs, run.generation = bound.outputs, self.arena.generation
            run.kept = False  # backward reuses the memory of what it has read
            for target, given in zip(bound.head_gradients, heads, strict=True):
                if target is not None:
                    copyto(target, given)
            with self._binding.context.device.enter():
                if self._monitor is not None:
                    self._watch(bound, forward=False)
                else:
                    bound.backward(on_ready)
            if self._monitor is not None and on_ready is not None:
                for _, names in bound.ready:
                    for name in names:
                        on_ready(name)

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise NotBoundError(
                f"{self.title} was made before this process was forked and cannot run here: bind the symbol again in "
                "the child, or start workers with 'spawn'"
            )

    def _check_fresh(self, run: _Run) -> None:
        """StaleForwardError unless backward would see what forward saw."""
        again = "; run forward again before backward"
        if run.failed:
            raise StaleForwardError(f"{self.title}: the last forward did not finish{again}")
        if self.arena.last[1] != id(self):
            raise StaleForwardError(
                f"{self.title}: {self.arena.last[0]} has run in the same memory since the last forward{again}"
            )
        pool = self._binding.pool
        if pool is not None and pool.generation != run.pool_generation:
            raise StaleForwardError(f"{self.title}: the shared inputs have grown since the last forward{again}")
        for mark, version in run.marks.items():
            if mark.version != version:
                raise StaleForwardError(
                    f"{self.title}: {mark.words} has written arguments since the last forward{again}"
                )

    def _head_gradients(self, given: Any) -> list[Array]:
        """One array (or None) an output, checked for count, names and shapes."""
        graph = self._binding.graph
        names = [graph.entry_name(head) for head in graph.heads]
        if isinstance(given, Mapping):
            unknown = next((name for name in given if name not in names), None)
            if unknown is not None:
                raise UnknownNameError(
                    f"{self.title}: backward: there is no output '{unknown}'{near_miss(unknown, names)}"
                )
            found = [given.get(name) for name in names]
        elif given is None:
            found = [None] * len(names)
        elif isinstance(given, list | tuple):
            if len(given) > len(names):
                raise BindError(f"{self.title}: backward: {len(given)} head gradients for {len(names)} outputs")
            found = [*given, *[None] * (len(names) - len(given))]
        else:
            found = [given, *[None] * (len(names) - 1)]
        for name, head, gradient, needed in zip(names, graph.heads, found, self._needs_head, strict=True):
            shape = tuple(self._binding.shapes[head])
            if gradient is None and needed:
                raise BindError(f"{self.title}: backward needs out_grads: output '{name}' is no loss head")
            if gradient is None:
                continue
            who = f"{self.title}: the head gradient of '{name}'"
            if not hasattr(gradient, "shape"):
                raise BindError(f"{who} must be an array, but it is a {type(gradient).__name__}")
            if tuple(gradient.shape) != shape:
                raise ShapeError(f"{who} must be {format_shape(shape)}, but it is {format_shape(gradient.shape)}")
            check_numbers(who, gradient)
        return found

    def _load(self, inputs: Mapping[str, Any]) -> None:
        for name, array in inputs.items():
            if name not in self._shape_of:
                raise UnknownNameError(
                    f"{self.title}: forward has no argument '{name}'{near_miss(name, self._argument_names)}"
                )
            if not hasattr(array, "shape"):
                raise BindError(f"{self.title}: argument '{name}' must be an array, but it is a {type(array).__name__}")
            shape = tuple(array.shape)
            if shape != self._shape_of[name]:
                raise ShapeError(
                    f"{self.title}: argument '{name}' must be {format_shape(self._shape_of[name])}, but the array "
                    f"given to forward is {format_shape(shape)}; reshape(...) makes an executor for another shape"
                )
            check_numbers(f"{self.title}: argument '{name}'", array)
        for target, array in apart([(self._arguments[name], array) for name, array in inputs.items()]):
            copyto(target, array)
        for name in inputs:
            note_write(self._arguments[name], f"forward({name}=…) of {self.title}")

    # --- monitors ----------------------------------------------------------------------------------------------

    def set_monitor_callback(self, callback: MonitorCallback | None, monitor_all: bool = False) -> None:
        """Call ``callback(name, copy of the array)`` for every node output in run order (None: no more).

        Gradients come as ``<node>_backward_output``; ``monitor_all`` adds the arguments. Exceptions propagate.
        """
        if callback is not None and not callable(callback):
            raise ArgumentError(f"{self.title}: the monitor callback must be callable, but it is {callback!r}")
        self._monitor, self._monitor_all = callback, monitor_all

    @property
    def is_watched(self) -> bool:
        """Whether a monitor's callback is set."""
        return self._monitor is not None

    def _watch(self, bound: BoundPlan, forward: bool) -> None:
        """Run a bound plan step by step for the monitor."""
        callback = self._monitor  # which it may change itself
        if callback is None:
            return
        if forward and self._monitor_all:
            for name, array in {**self._arguments, **self._binding.aux}.items():
                callback(name, array.copy())
        run_watched(bound, self._binding.graph, callback, forward)

    # --- parameters, other shapes ------------------------------------------------------------------------------

    def copy_params_from(
        self,
        arg_params: Mapping[str, Any],
        aux_params: Mapping[str, Any] | None = None,
        allow_extra_params: bool = False,
    ) -> None:
        """Copy arrays into arguments and auxiliary states by name; types are cast, missing names stay as they are.

        Raises UnknownNameError for a name that is not there (unless ``allow_extra_params``), ShapeError naming the
        first array that does not fit; nothing is copied then.
        """
        pairs = []
        arguments = self.arg_dict
        for kind, given, held in (
            ("argument", arg_params, arguments), ("auxiliary state", aux_params or {}, self._binding.aux),
        ):  # fmt: skip
            for name, array in given.items():
                if name not in held:
                    if allow_extra_params:
                        continue
                    raise UnknownNameError(f"{self.title}: there is no {kind} '{name}'{near_miss(name, held)}")
                if not hasattr(array, "shape"):
                    what = type(array).__name__
                    raise BindError(f"{self.title}: {kind} '{name}' must be an array, but it is a {what}")
                if tuple(array.shape) != tuple(held[name].shape):
                    raise ShapeError(
                        f"{self.title}: {kind} '{name}' must be {format_shape(held[name].shape)}, but the array given "
                        f"is {format_shape(array.shape)}"
                    )
                check_numbers(f"{self.title}: {kind} '{name}'", array)
                pairs.append((held[name], array))
        for target, array in apart(pairs):
            copyto(target, array)
            note_write(target, f"copy_params_from of {self.title}")

    def reshape(
        self, partial_shaping: bool = False, allow_up_sizing: bool = False, **shapes: Sequence[int]
    ) -> Executor:
        """An executor for other input shapes that shares this one's arrays.

        Equal shapes are the same storage, smaller ones a prefix of it; larger ones need ``allow_up_sizing``, a change
        of an argument that was not named needs ``partial_shaping``. Raises ShapeError otherwise.
        """
        from .bind import reshaped

        other = reshaped(self, partial_shaping, allow_up_sizing, shapes)
        other.step, other.first_row = self.step, self.first_row  # its random numbers go on, too
        return other

    def memory_plan(self) -> dict[str, Any]:
        """Bytes by role (argument gradient aux arena), and the step of the training plan at which most are live."""
        plan = self.plan(TRAIN)
        inference = self.plan(INFER).arena_bytes
        step = plan.steps[plan.peak_step] if plan.steps else None
        return {
            **plan.bytes_by_role(),
            "arena_inference": inference,
            "live": plan.live_bytes,
            "peak_step": f"{step.phase} of {step.name}" if step else "",
        }

    def debug_str(self) -> str:
        """The training plan as text, and the bytes of all roles."""
        total = sum(self.plan(TRAIN).bytes_by_role().values())
        return f"{self.plan(TRAIN)}\nTotal {total / 2**20:.3f} MiB allocated"

    @property
    def run_position(self) -> tuple[int, int]:
        """(step, first row) that the next forward uses."""
        return self.step, self.first_row

    def __reduce__(self) -> Any:
        raise TypeError(
            "an executor holds arrays and cannot be pickled: send its symbol (symbol.tojson()) and its parameters "
            "(arg_dict, aux_dict), and bind again"
        )
