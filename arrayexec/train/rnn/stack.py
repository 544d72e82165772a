"""Cells made of cells: one after another, in both directions, with dropout, zoneout or a way around."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ... import symbol as sym
from ...context import Array
from ...errors import CompositionError
from ...symbol import Symbol
from .base import Arrays, BaseRNNCell, RNNParams, StateInfo, Unrolled, as_steps, check_states, merge, time_axis
from .fused import FusedRNNCell


class _Compound(BaseRNNCell):
    """Base of cells that hand their states on to several others."""

    def __init__(self, prefix: str = "", params: RNNParams | None = None) -> None:
        super().__init__(prefix, params)
        self._cells: list[BaseRNNCell] = []
        self._override = params is not None

    def _take(self, cell: BaseRNNCell) -> None:
        if not isinstance(cell, BaseRNNCell):
            raise CompositionError(f"{self!r} is made of cells, but it was given {cell!r}")
        if self._override:
            if not cell._own_params:
                raise CompositionError(f"{self!r}: give params either to the outer cell or to {cell!r}, not to both")
            cell.params.update(self.params)
        self.params.update(cell.params)
        self._cells.append(cell)

    def reset(self) -> None:
        """Number steps and first states from 0 again, in all cells."""
        super().reset()
        for cell in self._cells:
            cell.reset()

    @property
    def state_info(self) -> list[StateInfo]:
        """Those of all cells, in order."""
        return [info for cell in self._cells for info in cell.state_info]

    def begin_state(self, func: Callable[..., Symbol] | None = None, **options: Any) -> list[Symbol]:
        """First states of all cells, in order; see `BaseRNNCell.begin_state`."""
        if self._modified:
            raise CompositionError(f"{self!r} belongs to a modifier cell; call that one instead")
        return [state for cell in self._cells for state in cell.begin_state(func, **options)]

    def unpack_weights(self, args: Mapping[str, Array]) -> Arrays:
        """Those of all cells; see `BaseRNNCell.unpack_weights`."""
        for cell in self._cells:
            args = cell.unpack_weights(args)
        return dict(args)

    def pack_weights(self, args: Mapping[str, Array]) -> Arrays:
        """The inverse of `unpack_weights`."""
        for cell in self._cells:
            args = cell.pack_weights(args)
        return dict(args)

    def _with_states(self, states: Sequence[Symbol]) -> Iterator[tuple[BaseRNNCell, list[Symbol]]]:
        """Every cell with its own share of ``states``."""
        check_states(self, states)
        start = 0
        for cell in self._cells:
            end = start + len(cell.state_info)
            yield cell, list(states[start:end])
            start = end


class SequentialRNNCell(_Compound):
    """Cells one after another: the outputs of one are the inputs of the next."""

    def __init__(self, params: RNNParams | None = None) -> None:
        super().__init__("", params)

    def add(self, cell: BaseRNNCell) -> None:
        """Put ``cell`` at the end. Raises CompositionError if both it and this cell were given params."""
        self._take(cell)

    def __call__(self, inputs: Symbol, states: Sequence[Symbol]) -> tuple[Symbol, list[Symbol]]:
        """Output of the last cell and the new states of all."""
        after: list[Symbol] = []
        for cell, own in self._with_states(states):
            inputs, own = cell(inputs, own)
            after += own
        return inputs, after

    def unroll(
        self, length: int, inputs: Any, begin_state: Sequence[Symbol] | None = None, layout: str = "NTC",
        merge_outputs: bool | None = None,
    ) -> Unrolled:  # fmt: skip
        """As `BaseRNNCell.unroll`, cell after cell."""
        self.reset()
        after: list[Symbol] = []
        for cell, own in self._with_states(self.begin_state() if begin_state is None else begin_state):
            last = cell is self._cells[-1]
            inputs, own = cell.unroll(length, inputs, own, layout, merge_outputs if last else None)
            after += own
        return inputs, after


class BidirectionalCell(_Compound):
    """``l_cell`` forwards and ``r_cell`` backwards through time; their outputs side by side: (n, 2·num_hidden)."""

    def __init__(
        self, l_cell: BaseRNNCell, r_cell: BaseRNNCell, params: RNNParams | None = None, output_prefix: str = "bi_"
    ) -> None:
        super().__init__("", params)
        self._output_prefix = output_prefix
        for cell in (l_cell, r_cell):
            self._take(cell)

    def unroll(
        self, length: int, inputs: Any, begin_state: Sequence[Symbol] | None = None, layout: str = "NTC",
        merge_outputs: bool | None = None,
    ) -> Unrolled:  # fmt: skip
        """As `BaseRNNCell.unroll`; states of the forward cell, then of the backward one."""
        self.reset()
        steps = as_steps(self, length, inputs, layout)
        forward, backward = self._with_states(self.begin_state() if begin_state is None else begin_state)
        left, left_states = forward[0].unroll(length, steps, forward[1], layout, merge_outputs)
        right, right_states = backward[0].unroll(length, steps[::-1], backward[1], layout, False)
        states = [*left_states, *right_states]
        right = right[::-1]
        if merge_outputs:
            outputs = sym.Concat(left, merge(right, layout), dim=2, name=f"{self._output_prefix}out")
            return outputs, states
        pairs = enumerate(zip(as_steps(self, length, left, layout), right, strict=True))
        return [sym.Concat(*pair, dim=1, name=f"{self._output_prefix}t{i}") for i, pair in pairs], states


class DropoutCell(BaseRNNCell):
    """Dropout of the outputs of the cell before it; no states."""

    def __init__(self, dropout: float, prefix: str = "dropout_", params: RNNParams | None = None) -> None:
        super().__init__(prefix, params)
        self.dropout = dropout

    @property
    def state_info(self) -> list[StateInfo]:
        """None."""
        return []

    def __call__(self, inputs: Symbol, states: Sequence[Symbol]) -> tuple[Symbol, list[Symbol]]:
        """The inputs, each dropped with probability ``dropout`` in training."""
        return (sym.Dropout(inputs, p=self.dropout) if self.dropout > 0 else inputs), list(states)

    def unroll(
        self, length: int, inputs: Any, begin_state: Sequence[Symbol] | None = None, layout: str = "NTC",
        merge_outputs: bool | None = None,
    ) -> Unrolled:  # fmt: skip
        """As `BaseRNNCell.unroll`; a symbol of all steps is dropped at once."""
        self.reset()
        if isinstance(inputs, list | tuple) and merge_outputs:
            inputs = merge(as_steps(self, length, inputs, layout), layout)
        if isinstance(inputs, Symbol) and merge_outputs is not False:
            time_axis(layout)
            return self(inputs, [])
        return super().unroll(length, inputs, begin_state, layout, merge_outputs)


class ModifierCell(BaseRNNCell):
    """Base of cells that change what ``base_cell`` gives; parameters and states are its own."""

    def __init__(self, base_cell: BaseRNNCell) -> None:
        own = base_cell._own_params
        super().__init__(base_cell._prefix, base_cell.params)
        self._own_params = own
        base_cell._modified = True
        self.base_cell = base_cell

    def reset(self) -> None:
        """Number steps and first states from 0 again."""
        super().reset()
        self.base_cell.reset()

    @property
    def params(self) -> RNNParams:
        """Those of the cell inside."""
        self._own_params = False
        return self.base_cell.params

    @property
    def state_info(self) -> list[StateInfo]:
        """Those of the cell inside."""
        return self.base_cell.state_info

    def begin_state(self, func: Callable[..., Symbol] | None = None, **options: Any) -> list[Symbol]:
        """Those of the cell inside; see `BaseRNNCell.begin_state`."""
        if self._modified:
            raise CompositionError(f"{self!r} belongs to a modifier cell; call that one instead")
        self.base_cell._modified = False
        try:
            return self.base_cell.begin_state(func, **options)
        finally:
            self.base_cell._modified = True

    def unpack_weights(self, args: Mapping[str, Array]) -> Arrays:
        """Those of the cell inside; see `BaseRNNCell.unpack_weights`."""
        return self.base_cell.unpack_weights(args)

    def pack_weights(self, args: Mapping[str, Array]) -> Arrays:
        """The inverse of `unpack_weights`."""
        return self.base_cell.pack_weights(args)


class ZoneoutCell(ModifierCell):
    """In training, an output keeps its previous value with probability ``zoneout_outputs``, a state with the other.

    Before the first step the previous output is 0. Krueger et al., "Zoneout", 2016. Raises CompositionError for a cell
    that cannot take single steps.
    """

    def __init__(self, base_cell: BaseRNNCell, zoneout_outputs: float = 0.0, zoneout_states: float = 0.0) -> None:
        if isinstance(base_cell, FusedRNNCell | BidirectionalCell):
            raise CompositionError(
                f"ZoneoutCell works step by step, but {base_cell!r} cannot; unfuse() it, or put ZoneoutCell around the "
                "cells inside"
            )
        super().__init__(base_cell)
        self.zoneout_outputs = zoneout_outputs
        self.zoneout_states = zoneout_states
        self._previous: Symbol | None = None

    def reset(self) -> None:
        """Number steps from 0 again and forget the previous output."""
        super().reset()
        self._previous = None

    def __call__(self, inputs: Symbol, states: Sequence[Symbol]) -> tuple[Symbol, list[Symbol]]:
        """Output and new states, partly those of the step before."""
        output, after = self.base_cell(inputs, states)
        if self.zoneout_outputs > 0:
            output = _zoned(self.zoneout_outputs, output, self._previous)
        if self.zoneout_states > 0:
            after = [_zoned(self.zoneout_states, new, old) for new, old in zip(after, states, strict=True)]
        self._previous = output
        return output, after


def _zoned(p: float, new: Symbol, old: Symbol | None) -> Symbol:
    """``old`` with probability ``p`` in training, else ``new``; exactly the one or the other."""
    moves = sym.Dropout(sym.ones_like(new), p=p) != 0
    kept: Symbol = moves * new if old is None else moves * new + (1.0 - moves) * old
    return kept


class ResidualCell(ModifierCell):
    """``out = base_cell(input) + input``; both must have one shape."""

    def __call__(self, inputs: Symbol, states: Sequence[Symbol]) -> tuple[Symbol, list[Symbol]]:
        """Output with the input added, and the new states."""
        output, after = self.base_cell(inputs, states)
        return _plus(output, inputs), after

    def unroll(
        self, length: int, inputs: Any, begin_state: Sequence[Symbol] | None = None, layout: str = "NTC",
        merge_outputs: bool | None = None,
    ) -> Unrolled:  # fmt: skip
        """As `BaseRNNCell.unroll`, by the cell inside."""
        self.reset()
        states = self.begin_state() if begin_state is None else begin_state
        outputs, after = self.base_cell.unroll(length, inputs, states, layout, merge_outputs)
        if isinstance(outputs, Symbol):
            return _plus(outputs, merge(inputs, layout)), after
        return [_plus(*pair) for pair in zip(outputs, as_steps(self, length, inputs, layout), strict=True)], after


def _plus(output: Symbol, inputs: Symbol) -> Symbol:
    return sym.elemwise_add(output, inputs, name=f"{output.name}_plus_residual")  # type: ignore[no-any-return]
