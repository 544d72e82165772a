"""``.params`` files that MXNet wrote: read to the bit, and written back to the byte."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from arrayexec.errors import FileFormatError
from arrayexec.files import load, save

DATA = Path(__file__).parent / "mxnet"
CASES = [case for case in json.loads((DATA / "manifest.json").read_text())["cases"] if case["kind"] == "params_load"]
NETS = sorted((DATA / "params").glob("net_*.params"))
REWRITTEN = ["pload_dict_f32", "pload_dtypes", "pload_list_noname"]  # dense, in the layout that is written today


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_load(case: dict) -> None:
    path, expect = DATA / case["params"], case["expect"]
    if expect["result"] == "error":
        with pytest.raises(FileFormatError):
            load(path)
        return
    loaded = load(path)
    if expect["names"] is None:
        assert isinstance(loaded, list)
        values = loaded
    else:
        assert isinstance(loaded, dict)
        assert list(loaded) == expect["names"]
        values = list(loaded.values())
    with np.load(DATA / case["npz"]) as archive:
        for value, told in zip(values, expect["arrays"], strict=True):
            wanted = archive[told["key"]]
            assert value is not None
            assert (value.dtype, value.shape) == (np.dtype(told["dtype"]), tuple(told["shape"]))
            assert value.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("path", [*NETS, *(DATA / f"params/{name}.params" for name in REWRITTEN)], ids=lambda p: p.stem)
def test_written_back_to_the_byte(path: Path, tmp_path: Path) -> None:
    save(tmp_path / "copy.params", load(path))
    assert (tmp_path / "copy.params").read_bytes() == path.read_bytes()


def test_every_case_is_there() -> None:
    assert len(CASES) == 8
    assert len(NETS) == 19
