"""``mx.rnn``: recurrent cells over symbols of this namespace, and their checkpoints."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ...errors import UnknownNameError
from ...train import rnn as _core
from . import model
from .array import unwrap, wrap_all
from .io import BucketSentenceIter
from .refused import found_in
from .symbol import own

__path__: list[str] = []  # programs import from modules inside this one
__all__ = [
    "BaseRNNCell", "BucketSentenceIter", "do_rnn_checkpoint", "encode_sentences", "load_rnn_checkpoint",
    "save_rnn_checkpoint",
]  # fmt: skip


class _Cell:
    """A cell of the engine whose symbols and weights are those of this namespace."""

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """One step: its output and the new states."""
        return _owned(super().__call__(*args, **keywords))  # type: ignore[misc]

    def unroll(self, *args: Any, **keywords: Any) -> Any:
        """All steps: their outputs and the last states."""
        return _owned(super().unroll(*args, **keywords))  # type: ignore[misc]

    def begin_state(self, *args: Any, **keywords: Any) -> Any:
        """The states before the first step."""
        return _owned(super().begin_state(*args, **keywords))  # type: ignore[misc]

    def unfuse(self) -> Any:
        """The same computation as a stack of cells."""
        found = super().unfuse()  # type: ignore[misc]
        found.__class__ = _class(type(found))
        return found

    def unpack_weights(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Parameters gate by gate."""
        return wrap_all(super().unpack_weights(unwrap(dict(args))))  # type: ignore[misc, no-any-return]

    def pack_weights(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Parameters as the symbol has them."""
        return wrap_all(super().pack_weights(unwrap(dict(args))))  # type: ignore[misc, no-any-return]


def _owned(value: Any) -> Any:
    return type(value)(map(_owned, value)) if isinstance(value, list | tuple) else own(value)


class BaseRNNCell(_core.BaseRNNCell):
    """Base of cells: a subclass gives one step."""


_classes: dict[type, type] = {_core.BaseRNNCell: BaseRNNCell}


def _class(core: type) -> type:
    """The class here that stands for one of the engine."""
    if core not in _classes:
        _classes[core] = type(core.__name__, (_Cell, core, BaseRNNCell), {"__doc__": core.__doc__})
    return _classes[core]


def encode_sentences(
    sentences: Iterable[Iterable[str]], vocab: dict[str, int] | None = None, invalid_label: int = -1,
    invalid_key: str = "\n", start_label: int = 0, unknown_token: str | None = None,
) -> tuple[list[list[int]], dict[str, int]]:  # fmt: skip
    """Sentences as lists of numbers, and the numbers of words.

    Without ``vocab`` a new word gets the next number from ``start_label`` on, leaving out ``invalid_label``. With one,
    a word that it has not counts as ``unknown_token``; UnknownNameError where there is none.
    """
    numbers = {invalid_key: invalid_label} if vocab is None else vocab
    following = (number for number in itertools.count(start_label) if number != invalid_label)

    def number_of(word: str) -> int:
        if word not in numbers and vocab is not None:
            if unknown_token is None:
                raise UnknownNameError(f"encode_sentences: vocab has no {word!r}; give unknown_token, or no vocab")
            word = unknown_token
        if word not in numbers:
            taken = set(numbers.values()) if vocab is not None else ()
            numbers[word] = next(number for number in following if number not in taken)
        return numbers[word]

    return [[number_of(word) for word in sentence] for sentence in sentences], numbers


def _listed(cells: Any) -> list[Any]:
    return list(cells) if isinstance(cells, list | tuple) else [cells]


def save_rnn_checkpoint(
    cells: Any, prefix: str, epoch: int, symbol: Any, arg_params: Mapping[str, Any], aux_params: Mapping[str, Any]
) -> None:
    """Write a checkpoint with the weights of the cells gate by gate."""
    for cell in _listed(cells):
        arg_params = cell.unpack_weights(arg_params)
    model.save_checkpoint(prefix, epoch, symbol, arg_params, aux_params)


def load_rnn_checkpoint(cells: Any, prefix: str, epoch: int) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Symbol and parameters of such a checkpoint, as the cells have them."""
    symbol, arg_params, aux_params = model.load_checkpoint(prefix, epoch)
    for cell in _listed(cells):
        arg_params = cell.pack_weights(arg_params)
    return symbol, arg_params, aux_params


def do_rnn_checkpoint(cells: Any, prefix: str, period: int = 1) -> Callable[..., None]:
    """Callback after an epoch: write such a checkpoint every ``period`` epochs."""

    def save(epoch: int, symbol: Any, arg_params: Mapping[str, Any], aux_params: Mapping[str, Any]) -> None:
        if (epoch + 1) % max(1, period) == 0:
            save_rnn_checkpoint(cells, prefix, epoch + 1, symbol, arg_params, aux_params)

    return save


def __getattr__(name: str) -> Any:
    found = found_in(_core, "rnn", name, __dir__())
    is_cell = isinstance(found, type) and issubclass(found, _core.BaseRNNCell)
    return _class(found) if is_cell else found


def __dir__() -> list[str]:
    return sorted({*__all__, *_core.__all__})
