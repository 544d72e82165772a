"""Files of models: a symbol and its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..files import load, save
from ..symbol import Symbol
from ..symbol import load as load_symbol
from .base_module import joined_params, split_params
from .symbol_changes import without_amp_casts

Array = Any


def save_checkpoint(
    prefix: str, epoch: int, symbol: Symbol | None, arg_params: Mapping[str, Array],
    aux_params: Mapping[str, Array] | None = None, remove_amp_cast: bool = True,
) -> None:  # fmt: skip
    """Write ``prefix-symbol.json`` (unless there is no symbol) and ``prefix-%04d.params``, each whole or not at all.

    ``remove_amp_cast``: the casts of mixed precision are left out of the symbol.
    """
    if symbol is not None:
        (without_amp_casts(symbol) if remove_amp_cast else symbol).save(f"{prefix}-symbol.json")
    save(f"{prefix}-{epoch:04d}.params", joined_params(arg_params, aux_params or {}))


def load_params(prefix: str, epoch: int) -> tuple[dict[str, Array], dict[str, Array]]:
    """Parameters and auxiliary states of ``prefix-%04d.params``; bare names count as parameters."""
    path = f"{prefix}-{epoch:04d}.params"
    return split_params(load(path), path)


def load_checkpoint(prefix: str, epoch: int) -> tuple[Symbol, dict[str, Array], dict[str, Array]]:
    """Symbol, parameters and auxiliary states that `save_checkpoint` wrote.

    Files whose names have no ``arg:`` and ``aux:`` are read by the symbol's auxiliary states.
    """
    symbol = load_symbol(f"{prefix}-symbol.json")
    arg_params, aux_params = load_params(prefix, epoch)
    for name in symbol.list_auxiliary_states():
        if name in arg_params and name not in aux_params:
            aux_params[name] = arg_params.pop(name)
    return symbol, arg_params, aux_params
