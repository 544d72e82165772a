"""Files that other packages wrote, read here, and files written here, read by them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arrayexec.files import load, read, save

TYPES = "float64 float32 float16 int64 int32 int16 int8 uint64 uint32 uint16 uint8 bool".split()
ARRAYS = {kind: np.arange(6).astype(kind).reshape(2, 3) for kind in TYPES}
ARRAYS |= {"scalar": np.array(2.5), "none": np.zeros((0, 3), np.float32), "größe": np.ones(1, np.float16), "turned": np.arange(6.0).reshape(2, 3).T}


def check(found: Any, wanted: dict[str, np.ndarray]) -> None:
    assert set(found) == set(wanted)
    for name, array in wanted.items():
        assert (found[name].dtype, found[name].shape, found[name].tolist()) == (array.dtype, array.shape, array.tolist())


def test_safetensors_both_ways(tmp_path: Path) -> None:
    theirs = pytest.importorskip("safetensors.numpy")
    path = tmp_path / "a.safetensors"
    straight = {**ARRAYS, "turned": ARRAYS["turned"].copy()}  # it writes the memory of others in the wrong order
    theirs.save_file(straight, path, metadata={"format": "np"})
    found = read(path)
    check(found.arrays, ARRAYS)
    assert found.metadata == {"format": "np"}
    save(path, ARRAYS, metadata={"epoch": "3"})
    check(theirs.load_file(path), ARRAYS)
    assert list(load(path)) == list(ARRAYS)
    with pytest.importorskip("safetensors").safe_open(path, framework="np") as opened:
        assert opened.metadata() == {"epoch": "3"}


def test_bfloat16_in_safetensors(tmp_path: Path) -> None:
    types = pytest.importorskip("ml_dtypes")
    values = np.array([1, -2.5, 3.140625, np.inf], types.bfloat16)
    path = tmp_path / "a.safetensors"
    save(path, {"a": values, "b": np.ones(1)})
    found: Any = load(path)
    assert found["a"].dtype == np.float32 and found["a"].tolist() == [1, -2.5, 3.140625, np.inf]
    theirs = pytest.importorskip("safetensors.numpy")
    assert theirs.load_file(path)["a"].tobytes() == values.tobytes()


def test_npz_both_ways(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, **ARRAYS)
    check(load(path), ARRAYS)
    save(path, ARRAYS, metadata={"epoch": "3"})
    with np.load(path) as found:
        check({name: found[name] for name in ARRAYS}, ARRAYS)
        assert found["__metadata__.json"] == b'{"epoch": "3"}'
