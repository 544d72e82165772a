"""The executor: owns the arrays of one symbol, binds plans to them, runs forward and backward."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, overload

from ..context import Context, copyto
from ..errors import (
    ArgumentError,
    BindError,
    NonFiniteError,
    NotBoundError,
    StaleForwardError,
    UnknownNameError,
    near_miss,
)
from ..plan import Plan, make_plan
from ..streams import RunPosition
from .arena import WriteMark, mark_arrays, write
from .bound import BoundPlan, Meeting
from .checks import check_values, check_writable
from .parts import Binding
from .watch import MonitorCallback, Watch, copy_of, watch_for

Array = Any

TRAIN, INFER, INFER_KEPT = "train", "inference", "inference with kept values"
WATCHED = ", watched"  # behind a mode: nothing fused, and what a step reads is still there when it is done


@dataclasses.dataclass(slots=True)
class _Run:
    """The last forward: what backward needs to know about it."""

    mode: str
    kept: bool  # whether the arena still holds what backward reads
    marks: dict[WriteMark, int] = dataclasses.field(default_factory=dict)
    stale: str = ""  # why its backward would be wrong
    finished: bool = False


def _moves_states(plan: Plan) -> bool:
    return any(step.phase == "update" for step in plan.steps)


class Executor:
    """One symbol bound to arrays; made by ``Symbol.bind`` and ``Symbol.simple_bind``.

    Arrays are plain and public: ``arg_dict grad_dict aux_dict outputs``. Outputs are valid until the next forward in
    the same memory. ``symbol``, ``context`` and ``grad_req`` (write, add or null, by argument) are what was bound;
    ``contexts`` are all that the groups of ``group2ctx`` add to ``context``.
    ``step`` counts training forwards and ``first_row`` is the place of the first row in the global batch; both address
    the random streams. ``title`` names the executor in errors.
    """

    def __init__(self, binding: Binding) -> None:
        self._binding = binding
        self.symbol, self.grad_req = binding.inferred.symbol, binding.grad_req
        self.contexts = binding.placement.contexts
        self.context = self.contexts[0]
        self._argument_names = self.symbol.list_arguments()
        self._arguments = dict(binding.arguments)
        self.arena = binding.arena
        self.title = f"the executor of '{self.symbol.name or 'a group'}' on {', '.join(map(str, self.contexts))}"
        self.step = self.first_row = 0
        self._position = RunPosition()  # that of the last forward
        self._plans: dict[str, Plan] = {}
        self._bound: dict[str, BoundPlan] = {}
        self._states: dict[int, Any] = {}
        self._run: _Run | None = None
        self._monitor: MonitorCallback | None = None
        self._monitor_all = False
        self._pid = os.getpid()
        self._marks: set[WriteMark] | None = None
        self._outputs: list[Array] | None = None
        self.arena.join(self)
        if binding.pool is not None:
            binding.pool.join(self)
        self._aux_copies = {n: a.copy() for n, a in binding.aux.items() if not a.flags.c_contiguous}

    # --- arrays ------------------------------------------------------------------------------------------------

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
        return {name: self._binding.aux[name] for name in self.symbol.list_auxiliary_states()}

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
        names = self.symbol.list_outputs()
        twice = [name for i, name in enumerate(names) if name in names[:i]]
        if twice:
            raise BindError(f"{self.title} has several outputs named '{twice[0]}': use outputs[i]")
        return dict(zip(names, self.outputs, strict=True))

    def drop_views(self, stale: str = "") -> None:
        """Forget arrays in shared memory, which grows; ``stale``: why a backward of the last forward would be wrong."""
        self._bound.clear()
        self._outputs = self._marks = None
        for name in self._binding.pooled:
            self._arguments.pop(name, None)
        if self._run is not None:
            self._run.kept, self._run.stale = False, stale or self._run.stale

    def bind_inputs(self) -> None:
        """Take views of the shared inputs; entries that are too small grow."""
        pool, pooled, specs = self._binding.pool, self._binding.pooled, self._binding.inferred.specs
        where = self._binding.placement.of
        if pool is None:
            return
        for name in pooled:  # grow first, so that no view taken below is dropped again
            if not pool.fits(name, *specs[name]):
                pool.view(name, *specs[name], where(name))
        for name in pooled:
            if name not in self._arguments:
                self._arguments[name] = pool.view(name, *specs[name], where(name))

    # --- plans -------------------------------------------------------------------------------------------------

    def plan(self, mode: str = TRAIN) -> Plan:
        """The plan of a mode ("train", "inference"): made when first asked for, runs nothing."""
        kind, watched = mode.removesuffix(WATCHED), mode.endswith(WATCHED)
        if mode not in self._plans:
            binding, inferred = self._binding, self._binding.inferred
            indirect = frozenset(n for n, g in binding.gradients.items() if not g.flags.c_contiguous)
            strided = frozenset(n for n, a in binding.arguments.items() if not a.flags.c_contiguous)
            self._plans[mode] = make_plan(
                inferred.graph, inferred.shapes, inferred.types, self.grad_req, is_train=kind == TRAIN,
                backward=kind != INFER, indirect=indirect, strided=strided,
                rewrites=binding.always if watched else binding.always + binding.rewrites, inplace=not watched,
                alignment=max(context.alignment for context in self.contexts), places=binding.placement.nodes,
                keep=binding.keep,
            )  # fmt: skip
        return self._plans[mode]

    def arena_needs(self, mode: str = TRAIN) -> dict[Context, int]:
        """Bytes that the plan of a mode needs in the arena, by context."""
        return dict(zip(self.contexts, self.plan(mode).arenas, strict=False))

    def _bind_plan(self, mode: str) -> BoundPlan:
        """The bound plan of a mode; shared memory grows here if it must."""
        plan = self.plan(mode)
        self.arena.reserve(self.arena_needs(mode))
        self.bind_inputs()
        if mode not in self._bound:
            if _moves_states(plan):
                for name, array in self._binding.aux.items():
                    check_writable(self.title, f"auxiliary state '{name}'", array)
            aux = {**self._binding.aux, **self._aux_copies}
            self._bound[mode] = BoundPlan(
                plan, self._binding, self.arena.blocks, self._arguments, aux, self._states, self._position
            )
        if self._marks is None:
            self._marks = mark_arrays(self._arguments.values())
        return self._bound[mode]

    # --- running -----------------------------------------------------------------------------------------------

    @overload
    def forward(
        self, is_train: bool = ..., *, check: str | None = ..., internals: None = ..., **inputs: Any
    ) -> list[Array]: ...

    @overload
    def forward(
        self, is_train: bool = ..., *, check: str | None = ..., internals: Sequence[str], **inputs: Any
    ) -> dict[str, Array]: ...

    def forward(
        self, is_train: bool = False, *, check: str | None = None, internals: Sequence[str] | None = None, **inputs: Any
    ) -> Any:
        """Run forward and give the outputs; ``inputs`` are copied into arguments of their names first.

        ``is_train=True`` moves auxiliary states and advances ``step``. ``check='finite'`` raises NonFiniteError at the
        first node that makes a NaN or an infinity; states and ``step`` stay as they were. ``internals``: names of
        values (as ``get_internals()`` lists them), copies of which are given by name instead of the outputs. Both run
        a plan of their own, step by step. Raises UnknownNameError and ShapeError for inputs that do not fit,
        BusyExecutorError if the executor or one that shares its memory is running.
        """
        self._check_process()
        watch = watch_for(self, self._monitor, check, internals)
        with self.arena.held_by(self):
            if inputs:
                self.bind_inputs()
                self._load(inputs)
            mode = (TRAIN if is_train else INFER) + (WATCHED if check or internals is not None else "")
            bound = self._bind_plan(mode)
            run = self._run = _Run(mode, kept=is_train)
            self._position.step, self._position.first_row = self.step, self.first_row
            states = {n: self._copy_of(n, a) for n, a in self._binding.aux.items()} if check else {}
            try:
                self._run_forward(bound, updates=True, watch=watch)
            except NonFiniteError:
                for name, state in states.items():
                    copyto(self._binding.aux[name], state)
                raise
            run.marks = {mark: mark.version for mark in self._marks or ()}
            run.finished = True
            self._outputs = bound.outputs
            if is_train:
                self.step += 1
        if watch is None or internals is None:
            return list(bound.outputs)
        held, found = {**self.arg_dict, **self._binding.aux}, watch.found
        return {name: found[name] if name in found else self._copy_of(name, held[name]) for name in internals}

    def value(self, name: str) -> Array | None:
        """A value of the last run by its name in the plan, ``d <name>`` a gradient; None where it was not kept."""
        bound = self._bound.get(self._run.mode) if self._run is not None else None
        return None if bound is None else bound.value(name)

    def stages(
        self, forward: bool, is_train: bool = True, heads: Sequence[Array | None] = (),
        on_ready: Callable[[str], None] | None = None, check: str | None = None,
    ) -> Iterator[Meeting]:  # fmt: skip
        """Run one direction up to the next step at which devices meet, whose arrays the caller then combines.

        As ``forward(is_train, check=…)`` and ``backward(heads, on_ready=…, check=…)`` right after it; states that a
        NonFiniteError has moved stay moved.
        """
        watch = watch_for(self, self._monitor, check)
        mode = (TRAIN if is_train else INFER) + (WATCHED if check else "")
        with self.arena.held_by(self):
            bound = self._bind_plan(mode)
            if forward:
                self._run = _Run(mode, kept=is_train)
                self._position.step, self._position.first_row = self.step, self.first_row
                self.arena.last = (self.title, id(self))
                self._show_arguments()
            else:
                for target, given in zip(bound.head_gradients, heads, strict=True):
                    if target is not None:
                        copyto(target, given)
            yield from bound.stages(forward, on_ready) if watch is None else watch.stages(bound, forward, on_ready)
            if forward and self._run is not None:
                self._run.finished, self._outputs = True, bound.outputs
                self.step += is_train
            elif self._run is not None:
                self._run.kept = False

    def _copy_of(self, name: str, array: Array) -> Array:
        """A copy of the array of a variable."""
        return copy_of(array, self._binding.placement.of(name))

    def _run_forward(self, bound: BoundPlan, updates: bool, watch: Watch | None = None) -> None:
        self.arena.last = (self.title, id(self))
        for name, private in self._aux_copies.items():
            copyto(private, self._binding.aux[name])
        with self._binding.placement.enter():
            if watch is None:
                bound.forward(updates)
            else:
                self._show_arguments()
                watch.run(bound, forward=True)
        if updates and self._aux_copies and _moves_states(bound.plan):
            for name, private in self._aux_copies.items():
                copyto(self._binding.aux[name], private)

    def _show_arguments(self) -> None:
        for name, array in {**self._arguments, **self._binding.aux}.items() if self._monitor_all else ():
            if self._monitor is not None:
                self._monitor(name, self._copy_of(name, array))

    def backward(
        self, out_grads: Any = None, is_train: bool = True, *, on_ready: Callable[[str], None] | None = None,
        check: str | None = None,
    ) -> None:  # fmt: skip
        """Write (or add) the gradients of all arguments that ask for one.

        ``out_grads``: the gradient of what is to be minimised with respect to each output (never the outputs
        themselves), an array, list or dict by output name; only loss heads need none. ``on_ready(argument)`` is called
        as soon as an argument's gradient is finished. ``check='finite'`` raises NonFiniteError at the first node that
        makes a gradient with a NaN or an infinity. Raises NotBoundError before any forward, StaleForwardError if what
        forward kept, or what it read, has been overwritten by the engine since, BindError for wrong head gradients.
        """
        self._check_process()
        watch = watch_for(self, self._monitor, check)
        with self.arena.held_by(self):
            run = self._run
            if run is None:
                raise NotBoundError(f"{self.title}: backward needs a forward first")
            heads = self._head_gradients(out_grads)
            if not any(request != "null" for request in self.grad_req.values()):
                return
            self._check_fresh(run)
            mode = run.mode.replace(INFER, INFER_KEPT) if run.mode.removesuffix(WATCHED) == INFER else run.mode
            if check:
                mode = mode.removesuffix(WATCHED) + WATCHED
            if mode != run.mode:
                run.mode, run.kept = mode, False
            bound = self._bind_plan(mode)
            if not run.kept:
                heads = [None if head is None else head.copy() for head in heads]  # they may be the outputs, changed
                self._run_forward(bound, updates=False)
                self._outputs = bound.outputs
            run.kept = False  # backward reuses the memory of what it has read
            for target, given in zip(bound.head_gradients, heads, strict=True):
                if target is not None:
                    copyto(target, given)
            with self._binding.placement.enter():
                if watch is None:
                    bound.backward(on_ready)
                else:
                    watch.run(bound, forward=False, on_ready=on_ready)

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise NotBoundError(
                f"{self.title} was made before this process was forked and cannot run here: bind the symbol again in "
                "the child, or start workers with 'spawn'"
            )

    def _check_fresh(self, run: _Run) -> None:
        """StaleForwardError unless backward would see what forward saw."""
        last, since = self.arena.last, "since the last forward"
        stale = run.stale if run.finished else "the last forward did not finish"
        if not stale and last[1] != id(self):
            stale = f"{last[0]} has run in the same memory {since}"
        for mark, version in run.marks.items():
            if not stale and mark.version != version:
                stale = f"{mark.words} has written arguments {since}"
        if stale:
            raise StaleForwardError(f"{self.title}: {stale}; run forward again before backward")

    def _head_gradients(self, given: Any) -> list[Array]:
        """One array (or None) an output, checked for count, names and shapes."""
        names, inferred = self.symbol.list_outputs(), self._binding.inferred
        if isinstance(given, Mapping):
            unknown = next((name for name in given if name not in names), None)
            if unknown is not None:
                near = near_miss(unknown, names)
                raise UnknownNameError(f"{self.title}: backward: there is no output '{unknown}'{near}")
            found = [given.get(name) for name in names]
        else:
            found = list(given) if isinstance(given, list | tuple) else [given]
            if len(found) > len(names):
                raise BindError(f"{self.title}: backward: {len(found)} head gradients for {len(names)} outputs")
            found += [None] * (len(names) - len(found))
        needed = self.plan().head_gradients
        for name, head, gradient, target in zip(names, inferred.graph.heads, found, needed, strict=True):
            if gradient is not None:
                check_values(f"{self.title}: the head gradient of '{name}'", gradient, inferred.shapes[head])
            elif target is not None:
                raise BindError(f"{self.title}: backward needs out_grads: output '{name}' is no loss head")
        return found

    def _load(self, inputs: Mapping[str, Any]) -> None:
        specs, hint = self._binding.inferred.specs, "; reshape(...) makes an executor for another shape"
        for name, array in inputs.items():
            if name not in self._arguments:
                near = near_miss(name, self._argument_names)
                raise UnknownNameError(f"{self.title}: forward has no argument '{name}'{near}")
            who = f"{self.title}: argument '{name}'"
            check_values(who, array, specs[name][0], "the array given to forward", hint)
        words = f"forward({'=…, '.join(inputs)}=…) of {self.title}"
        write([(self._arguments[name], array) for name, array in inputs.items()], words)

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
        kinds: Sequence[tuple[str, Any, Mapping[str, Array]]] = (
            ("argument", arg_params, self.arg_dict), ("auxiliary state", aux_params or {}, self._binding.aux),
        )  # fmt: skip
        for kind, given, held in kinds:
            if not isinstance(given, Mapping):
                what = type(given).__name__
                raise ArgumentError(f"{self.title}: {kind}s must be a dict of arrays by name, but they are a {what}")
            for name, array in given.items():
                if name in held:
                    who = f"{self.title}: {kind} '{name}'"
                    check_values(who, array, held[name].shape, "the array given")
                    pairs.append((held[name], array))
                elif not allow_extra_params:
                    raise UnknownNameError(f"{self.title}: there is no {kind} '{name}'{near_miss(name, held)}")
        write(pairs, f"copy_params_from of {self.title}")

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
        """Bytes by role (argument gradient aux arena), and the step of the training plan at which most are live.

        ``contexts``: the bytes by role of every context.
        """
        plan = self.plan(TRAIN)
        inference = self.plan(INFER).arena_bytes
        step = plan.steps[plan.peak_step] if plan.steps else None
        return {
            **plan.bytes_by_role(),
            "arena_inference": inference,
            "live": plan.live_bytes,
            "peak_step": f"{step.phase} of {step.name}" if step else "",
            "contexts": {str(context): plan.bytes_by_role(i) for i, context in enumerate(self.contexts)},
        }

    def debug_str(self) -> str:
        """The training plan as text, and the bytes of all roles."""
        total = sum(self.plan(TRAIN).bytes_by_role().values())
        return f"{self.plan(TRAIN)}\nTotal {total / 2**20:.3f} MiB allocated"

    def __reduce__(self) -> Any:
        raise TypeError(
            "an executor holds arrays and cannot be pickled: send its symbol (symbol.tojson()) and its parameters "
            "(arg_dict, aux_dict), and bind again"
        )
