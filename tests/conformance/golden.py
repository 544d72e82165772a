"""The recorded cases: their arrays, their graphs, and the comparison that their tolerances ask for."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from arrayexec import files
from arrayexec.registry import find_op
from arrayexec.symbol import Symbol, load_json

DATA = Path(__file__).parent / "mxnet"
Case = dict[str, Any]
Arrays = dict[str, np.ndarray[Any, Any]]


@functools.cache
def _manifest() -> list[Case]:
    return json.loads((DATA / "manifest.json").read_text())["cases"]  # type: ignore[no-any-return]


@functools.cache
def _archive(path: str) -> Mapping[str, np.ndarray[Any, Any]]:
    return np.load(DATA / path, allow_pickle=False)  # type: ignore[no-any-return]


def cases(*kinds: str) -> list[Case]:
    """Recorded cases of these kinds."""
    return [case for case in _manifest() if case["kind"] in kinds]


def array(case: Case, key: str) -> np.ndarray[Any, Any]:
    """A recorded array, a copy of its own."""
    return np.array(_archive(case["npz"])[key])


def arrays(case: Case, field: str) -> Arrays:
    """The recorded arrays that a field (name -> key) speaks of."""
    return {name: array(case, key) for name, key in case[field].items()}


def inputs(case: Case) -> tuple[Arrays, Arrays]:
    """Arguments and auxiliary states of a case, from its archive and its .params file."""
    args, aux = arrays(case, "args"), arrays(case, "aux") if "aux" in case else {}
    stored = files.load(DATA / case["params"]) if "params" in case else {}
    assert isinstance(stored, dict)
    for key, value in stored.items():
        kind, _, name = key.partition(":")
        (args if kind == "arg" else aux)[name] = np.array(value)
    return args, aux


def symbol_text(case: Case) -> str:
    """The case's symbol file."""
    return (DATA / case["symbol"]).read_text()


def load_symbol(case: Case) -> Symbol:
    """The case's symbol."""
    return load_json(symbol_text(case))


def operators(case: Case) -> set[str]:
    """Names of the operators in a case's graph."""
    return {node["op"] for node in json.loads(symbol_text(case))["nodes"]} - {"null"}


def missing(case: Case) -> set[str]:
    """Operators of a case that nobody registered."""
    return {name for name in operators(case) if find_op(name) is None}


def assert_close(case: Case, what: str, got: Any, want: np.ndarray[Any, Any]) -> None:
    """Type, shape and values as recorded, within the case's tolerance."""
    assert got.dtype == want.dtype, f"{what}: type {got.dtype}, recorded {want.dtype}"
    assert got.shape == want.shape, f"{what}: shape {got.shape}, recorded {want.shape}"
    np.testing.assert_allclose(got, want, case["rtol"], case["atol"], err_msg=what)
