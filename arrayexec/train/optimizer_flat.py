"""Runs of parameters: those that lie behind each other in memory, as do their gradients, are updated as one array.

Executors lay parameters and gradients in flat segments; states are laid out alike here. A run is cut where factors
change. Only small neighbours (biases, scales of normalisations) go together whatever their factors are: these then
become arrays, one number an element.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import numpy

from ..context import Array, Context, context_of, copyto
from ..executor import span
from .optimizer_base import Factors, Key, Optimizer, Scratch, State

_SMALL = 1 << 16  # elements of a stretch below which a call costs more than the numbers that it moves
_SMALL_GPU = 1 << 18
Blocks = MutableMapping[Key, tuple[State, int]]
"""Flat states in which the states of a parameter lie, and where."""


@dataclasses.dataclass(frozen=True)
class Member:
    """One parameter of a run: its number in the call, where its elements lie."""

    number: int
    start: int
    stop: int


class Run:
    """Flat arrays of parameters that lie behind each other, of their gradients and states."""

    def __init__(self, weight: Array, grad: Array, state: State, members: Sequence[Member]) -> None:
        self.context: Context = context_of(weight)
        self.weight, self.grad, self.state, self.members = weight, grad, state, members
        self._vectors: dict[tuple[int, str], tuple[list[float], Array]] = {}

    def renumber(self, numbers: Sequence[int]) -> None:
        """Give every member the number in the call that stands at its own in ``numbers``."""
        self.members = [dataclasses.replace(one, number=numbers[one.number]) for one in self.members]

    def step(self, optimizer: Optimizer, factors: Sequence[Factors | None], scratch: Scratch) -> None:
        """Move all parameters, each by its factors (None: not at all)."""
        for first, last in self._stretches(factors, optimizer.elementwise):
            members = self.members[first:last]
            low, high = members[0].start, members[-1].stop
            state = {name: array[low:high] for name, array in self.state.items()}
            parts = [slice(one.start - low, one.stop - low) for one in members]
            mine: list[Any] = [factors[one.number] for one in members]

            def spread(found: Sequence[Factors], first: int = first, last: int = last) -> Factors:
                return self._spread(first, last, found)

            optimizer.step(self.weight[low:high], self.grad[low:high], state, scratch, mine, parts, spread)

    def _stretches(self, factors: Sequence[Factors | None], elementwise: bool) -> Iterator[tuple[int, int]]:
        """Members first … last - 1 that move together."""
        limit = _SMALL if self.context.xp is numpy else _SMALL_GPU
        found: list[tuple[int, int]] = []
        before: Factors | None = None
        for place, member in enumerate(self.members):
            mine = factors[member.number]
            if mine is not None:
                if elementwise and (mine is before or mine == before):
                    found[-1] = found[-1][0], place + 1
                else:
                    found.append((place, place + 1))
            before = mine
        held: tuple[int, int] | None = None
        kind: Factors = {}
        for first, last in found:
            small = self.members[last - 1].stop - self.members[first].start < limit
            mine = factors[self.members[first].number]
            if held is not None and small and held[1] == first and _alike(mine or {}, kind):
                held = held[0], last
                continue
            if held is not None:
                yield held
            held, kind = ((first, last) if small else None), mine or {}
            if not small:
                yield first, last
        if held is not None:
            yield held

    def _spread(self, first: int, last: int, found: Sequence[Factors]) -> Factors:
        """Factors of members as one: numbers where they are equal, else arrays."""
        same = found[0]
        if all(one is same or one == same for one in found):
            return same
        mixed = dict(same)
        for name, value in same.items():
            values = [one[name] for one in found]
            if any(one != value for one in values):
                mixed[name] = self._vector(first, last, name, values)
        return mixed

    def _vector(self, first: int, last: int, name: str, values: list[float]) -> Array:
        known = self._vectors.get((first, name))
        if known is not None and known[0] == values:
            return known[1]
        members = self.members[first:last]
        ends = [*(one.start for one in members[1:]), members[-1].stop]
        lengths = [end - one.start for end, one in zip(ends, members, strict=True)]
        kind = self.weight.dtype if self.weight.dtype.itemsize > 2 else numpy.dtype(numpy.float32)
        host = numpy.repeat(numpy.array(values, kind), lengths)
        vector = known[1] if known is not None and known[1].shape == host.shape else None
        if vector is None:
            vector = self.context.empty(host.shape, kind, "state")
        copyto(vector, host)
        self._vectors[first, name] = values, vector
        return vector


def _alike(one: Factors, other: Factors) -> bool:
    """Whether two parameters can be moved by one call: both get a whole step, or none does (`LBSGD`)."""
    return one is other or one.get("moves") == other.get("moves")


def runs_of(
    optimizer: Optimizer, keys: Sequence[Key], grads: Sequence[Array], weights: Sequence[Array],
    states: MutableMapping[Key, Any], blocks: Blocks, first_values: Callable[[Key, State], None],
) -> list[Run]:  # fmt: skip
    """All parameters in runs; makes the states of those that have none, ``first_values(key, state)`` fills them.

    The arrays of a run must be flat: what `fits` says no to is not given here.
    """
    runs = []
    for chain in _chains(grads, weights):
        for part in _of_one_block(chain, keys, states, blocks):
            offset = part[0].start
            size = part[-1].stop - offset
            members = [Member(one.number, one.start - offset, one.stop - offset) for one in part]
            first = part[0].number
            if keys[first] not in states:
                state = _allocate(optimizer, members, size, keys, weights, states, blocks, first_values)
            elif keys[first] in blocks:
                flat, place = blocks[keys[first]]
                state = {name: array[place : place + size] for name, array in flat.items()}
            else:
                state = {name: array.reshape(-1) for name, array in states[keys[first]].items()}
            weight, grad = (_stretched(arrays[first], size) for arrays in (weights, grads))
            runs.append(Run(weight, grad, state, members))
    return runs


def fits(weight: Array, grad: Array) -> bool:
    """Whether a parameter can be a part of a run."""
    return weight.size > 0 and bool(weight.flags.c_contiguous and grad.flags.c_contiguous)


def _allocate(
    optimizer: Optimizer, members: Sequence[Member], size: int, keys: Sequence[Key], weights: Sequence[Array],
    states: MutableMapping[Key, Any], blocks: Blocks, first_values: Callable[[Key, State], None],
) -> State:  # fmt: skip
    sample = weights[members[0].number]
    context, (names, kind) = context_of(sample), optimizer.state_like(sample)
    flat = {name: context.zeros((size,), kind, "state") for name in names}
    for one in members:
        key, weight = keys[one.number], weights[one.number]
        state = {name: array[one.start : one.stop].reshape(weight.shape) for name, array in flat.items()}
        for name, array in state.items():
            if optimizer.starts_as_copy(name):
                copyto(array, weight)
        first_values(key, state)
        states[key], blocks[key] = state, (flat, one.start)
    return flat


def _stretched(array: Array, size: int) -> Array:
    """The flat array of ``size`` elements that begins where ``array`` does."""
    if array.size == size:
        return array.reshape(-1)
    xp = context_of(array).xp
    return xp.lib.stride_tricks.as_strided(array.reshape(-1), (size,), (array.dtype.itemsize,))


def _chains(grads: Sequence[Array], weights: Sequence[Array]) -> Iterator[list[Member]]:
    """Parameters that lie behind each other, as do their gradients; where they lie counts from the first."""
    places = [(span(weight), span(grad)) for weight, grad in zip(weights, grads, strict=True)]
    order = sorted(range(len(weights)), key=lambda number: (places[number][0].owner, places[number][0].start))
    chain: list[Member] = []
    for number in order:
        weight, size = weights[number], weights[number].size
        start = 0
        if chain:
            last = chain[-1].number
            (w, g), (w_next, g_next) = places[last], places[number]
            room = w_next.start - w.start
            behind = (
                (weight.dtype, grads[number].dtype) == (weights[last].dtype, grads[last].dtype)
                and room % weight.dtype.itemsize == 0
                and w_next.start in (w.stop, w.padded) and w_next.owner == w.owner
                and g_next.start in (g.stop, g.padded) and g_next.owner == g.owner
                and (g_next.start - g.start) * weight.dtype.itemsize == room * grads[number].dtype.itemsize
            )  # fmt: skip
            if behind:
                start = chain[-1].start + room // weight.dtype.itemsize
            else:
                yield chain
                chain = []
        chain.append(Member(number, start, start + size))
    if chain:
        yield chain


def _of_one_block(
    chain: Sequence[Member], keys: Sequence[Key], states: Mapping[Key, Any], blocks: Blocks
) -> Iterator[list[Member]]:
    """Parts of a chain whose states are all to be made, or lie as the parameters do."""
    part: list[Member] = []
    for one in chain:
        if part:
            key, before = keys[one.number], keys[part[-1].number]
            room = one.start - part[-1].start
            mine, others = blocks.get(key), blocks.get(before)
            if mine is not None and others is not None:
                together = mine[0] is others[0] and mine[1] - others[1] == room
            else:
                together = key not in states and before not in states
            if not together:
                yield part
                part = []
        part.append(one)
    if part:
        yield part
