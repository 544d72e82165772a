"""Optimizer states of MXNet in the form of our updater's: by name of the parameter, each array by what it is."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy

from ..errors import CheckpointError
from .optimizer_base import Optimizer

_MASTER_LAST = frozenset(("sgd", "ccsgd", "nag", "lars"))
"""With a float32 weight beside them, the states of these stand before it; those of all others behind."""


def from_mxnet(found: Mapping[str, Any], optimizer: Optimizer, source: str = "the states") -> dict[str, Any]:
    """What `Updater.set_states` takes, of what `files.load_mxnet_states` gave.

    Indices become names by the optimizer's ``idx2name``; of several devices' states the first one's are taken. MXNet
    writes counts of updates only with the optimizer (``dump_optimizer=True``): a warning says where they are missing.
    Raises CheckpointError where the states are not of such an optimizer or such parameters.
    """
    dumped = found["optimizer"] or {}
    kind = type(optimizer).__name__.lower()
    written = str(dumped.get("class", kind)).lower()
    if written != kind:
        raise CheckpointError(f"{source}: the states must be of the optimizer {kind!r}, but they are of {written!r}")
    if not dumped:
        warnings.warn(
            f"{source} holds no counts of updates (MXNet wrote it without its optimizer): they go on from "
            f"{optimizer.num_update}; give begin_num_update= where they matter",
            stacklevel=2,
        )
    named, counted = dumped.get("idx2name", {}), dumped.get("_index_update_count", {})
    extra = {name: dumped[name] for name in optimizer.extra_state() if name in dumped}
    num_update = dumped.get("num_update", optimizer.num_update)
    for value, kinds in ((named, str), (counted, int), ({0: num_update}, int), (extra, (int, float))):
        if not isinstance(value, dict) or not all(isinstance(item, kinds) for item in value.values()):
            raise CheckpointError(f"{source}: its optimizer must hold names and counts, but holds {str(value)[:80]}")
    names = _names(found["states"], named or dict(optimizer.idx2name), source)
    return {
        "optimizer": kind,
        "num_update": num_update,
        "counts": {names[key]: count for key, count in counted.items() if key in names},
        "states": {
            name: _named(found["states"][key], optimizer, kind, f"{source}: the state of {name!r}")
            for key, name in names.items()
        },
        **({"extra": extra} if extra else {}),
    }


def _names(states: Mapping[Any, Any], idx2name: dict[Any, str], source: str) -> dict[Any, str]:
    """Names of the parameters by the keys of their states, one key a parameter."""
    indices = [key for key in states if not isinstance(key, str)]
    names = {key: key for key in states if isinstance(key, str)}
    devices = 1 if not indices or not idx2name or max(indices) in idx2name else max(indices) // len(idx2name) + 1
    taken = set(names.values())
    for index in sorted(indices):
        name = idx2name.get(index // devices)
        if name is None or (devices > 1 and index - index % devices not in states):
            raise CheckpointError(
                f"{source}: there is a state of parameter {index}, but the optimizer names {len(idx2name)} of them: "
                "give it param_idx2name= as it was"
            )
        if name not in taken:
            names[index] = name
            taken.add(name)
    return names


def _named(state: Any, optimizer: Optimizer, kind: str, who: str) -> dict[str, numpy.ndarray[Any, Any]]:
    arrays = _leaves(state)
    wanted = optimizer.used_states()
    if len(arrays) == len(wanted) + 1 and optimizer.multi_precision:
        wanted = (*wanted, "master") if kind in _MASTER_LAST else ("master", *wanted)
    if len(arrays) != len(wanted):
        raise CheckpointError(f"{who} must be {', '.join(wanted) or 'nothing'}, but {len(arrays)} arrays are saved")
    return dict(zip(wanted, arrays, strict=True))


def _leaves(state: Any) -> list[numpy.ndarray[Any, Any]]:
    if state is None:
        return []
    return [array for part in state for array in _leaves(part)] if isinstance(state, tuple) else [numpy.asarray(state)]
