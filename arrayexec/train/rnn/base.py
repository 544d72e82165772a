"""What all recurrent cells have in common: their parameters, their first states and unrolling step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ... import symbol as sym
from ...context import Array, namespace
from ...errors import AttributeValueError, CompositionError, UnknownNameError, near_miss
from ...symbol import Symbol

Arrays = dict[str, Array]
StateInfo = dict[str, Any]
Unrolled = tuple[Any, list[Symbol]]
"""Outputs (one symbol, or a list with one for each step) and the states after the last step."""


class RNNParams:
    """Variables by name, each made once: cells that share an RNNParams, and all steps of a cell, share weights."""

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._params: dict[str, Symbol] = {}

    def get(self, name: str, **options: Any) -> Symbol:
        """The variable ``prefix + name``; ``options`` go to `Variable` when it is made."""
        name = self._prefix + name
        if name not in self._params:
            self._params[name] = sym.Variable(name, **options)
        return self._params[name]

    def update(self, other: RNNParams) -> None:
        """Take over all variables of ``other``."""
        self._params.update(other._params)


class BaseRNNCell:
    """``output, states = cell(inputs, states)`` adds one step to the graph; `unroll` adds many."""

    def __init__(self, prefix: str = "", params: RNNParams | None = None) -> None:
        self._own_params = params is None
        self._prefix = prefix
        self._params = RNNParams(prefix) if params is None else params
        self._modified = False  # a modifier stands before this cell and makes its first states
        self._counter = self._init_counter = -1

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._prefix!r}>"

    def reset(self) -> None:
        """Number steps and first states from 0 again, before the cell is used in another graph."""
        self._counter = self._init_counter = -1

    @property
    def params(self) -> RNNParams:
        """The variables of the cell, to be given to another one as ``params=``."""
        self._own_params = False
        return self._params

    @property
    def state_info(self) -> list[StateInfo]:
        """Shape (0: the batch) and ``__layout__`` of every state."""
        raise CompositionError(f"{self!r} has no states: its class must define state_info")

    @property
    def state_shape(self) -> list[tuple[int, ...]]:
        """Shape of every state; 0 is the batch."""
        return [info["shape"] for info in self.state_info]

    def __call__(self, inputs: Symbol, states: Sequence[Symbol]) -> tuple[Symbol, list[Symbol]]:
        """Output (n, num_hidden) and new states of one step for inputs (n, …)."""
        raise CompositionError(f"{self!r} cannot take single steps; use unroll")

    def begin_state(self, func: Callable[..., Symbol] | None = None, **options: Any) -> list[Symbol]:
        """Symbols for the states before the first step: zeros, whose batch and type follow from their use.

        ``func(name=, shape=, __layout__=, **options)`` makes others; with ``sym.Variable`` they are inputs. Raises
        CompositionError for a cell that a modifier stands before.
        """
        if self._modified:
            raise CompositionError(f"{self!r} belongs to a modifier cell; call that one instead")
        made = []
        for info in self.state_info:
            self._init_counter += 1
            name = f"{self._prefix}begin_state_{self._init_counter}"
            made.append((func or sym._zeros)(name=name, **{**options, **info}))
        return made

    def unroll(
        self, length: int, inputs: Any, begin_state: Sequence[Symbol] | None = None, layout: str = "NTC",
        merge_outputs: bool | None = None,
    ) -> Unrolled:  # fmt: skip
        """Outputs and last states of ``length`` steps.

        ``inputs``: a symbol in ``layout`` (T: the time axis), or one (n, …) for each step. ``merge_outputs``: True for
        one symbol in ``layout``, False for a list, None for whichever is at hand. Raises CompositionError for another
        number of inputs, AttributeValueError for a layout without T.
        """
        self.reset()
        steps = as_steps(self, length, inputs, layout)
        states = list(self.begin_state() if begin_state is None else begin_state)
        outputs = []
        for step in steps:
            output, states = self(step, states)
            outputs.append(output)
        return (merge(outputs, layout) if merge_outputs else outputs), states

    # --- weights of the gates, together and each by its name ------------------------------------

    _num_hidden = 0
    _gate_names: Sequence[str] = ()
    """Endings that tell the gates apart, in the order in which they lie in the weights."""

    def unpack_weights(self, args: Mapping[str, Array]) -> Arrays:
        """A copy of ``args`` with a weight and a bias for each gate (``lstm_i2h_f_weight``) in place of those for all.

        Raises UnknownNameError for a missing array.
        """
        args = dict(args)
        for group, kind in self._gated():
            whole = taken(self, args, f"{self._prefix}{group}_{kind}")
            for number, gate in enumerate(self._gate_names):
                rows = slice(number * self._num_hidden, (number + 1) * self._num_hidden)
                args[f"{self._prefix}{group}{gate}_{kind}"] = whole[rows].copy()
        return args

    def pack_weights(self, args: Mapping[str, Array]) -> Arrays:
        """The inverse of `unpack_weights`."""
        args = dict(args)
        for group, kind in self._gated():
            pieces = [taken(self, args, f"{self._prefix}{group}{gate}_{kind}") for gate in self._gate_names]
            args[f"{self._prefix}{group}_{kind}"] = namespace(pieces[0]).concatenate(pieces)
        return args

    def _gated(self) -> list[tuple[str, str]]:
        kinds = [(group, kind) for group in ("i2h", "h2h") for kind in ("weight", "bias")]
        return kinds if self._gate_names else []


def taken(cell: BaseRNNCell, args: Arrays, name: str) -> Array:
    """Take the array ``name`` out of ``args``; UnknownNameError if it is not there."""
    if name not in args:
        raise UnknownNameError(f"{cell!r} needs the array '{name}', but it is not given{near_miss(name, args)}")
    return args.pop(name)


def check_states(cell: BaseRNNCell, states: Any) -> None:
    """Raise CompositionError unless there are as many ``states`` as ``cell`` has."""
    wanted, counted = len(cell.state_info), hasattr(states, "__len__")
    if not counted or len(states) != wanted:
        given = len(states) if counted else repr(states)
        raise CompositionError(f"{cell!r} takes a list of {wanted} states, but it was given {given}")


def time_axis(layout: str) -> int:
    """The place of T in ``layout``; AttributeValueError if there is none."""
    axis = layout.find("T")
    if axis < 0:
        raise AttributeValueError(f"unroll: layout must have a time axis T, as 'NTC', but it is {layout!r}")
    return axis


def as_steps(cell: BaseRNNCell, length: int, inputs: Any, layout: str) -> list[Symbol]:
    """The inputs of each of ``length`` steps; a symbol is cut along the time axis."""
    axis = time_axis(layout)
    if isinstance(inputs, Symbol):
        if len(inputs) != 1:
            raise CompositionError(
                f"{cell!r}: unroll takes one value in layout {layout} or a list of them, but {inputs!r} has "
                f"{len(inputs)} outputs; hand over list(symbol)"
            )
        return list(sym.split(inputs, axis=axis, num_outputs=length, squeeze_axis=1))
    listed = isinstance(inputs, (list, tuple))
    if not listed or len(inputs) != length:
        given = f"{len(inputs)} inputs" if listed else repr(inputs)
        raise CompositionError(
            f"{cell!r}: unroll of {length} steps takes one symbol or a list of {length}, but it was given {given}"
        )
    return list(inputs)


def merge(outputs: Any, layout: str) -> Symbol:
    """One symbol in ``layout`` of the outputs of all steps."""
    if isinstance(outputs, Symbol):
        return outputs
    axis = time_axis(layout)
    with_time: list[Symbol] = [sym.expand_dims(output, axis=axis) for output in outputs]
    return sym.Concat(*with_time, dim=axis)  # type: ignore[no-any-return]
