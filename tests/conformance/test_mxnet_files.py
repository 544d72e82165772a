"""Files that MXNet 1.9.1 wrote (``mxnet_files/``): arrays to the bit, written back to the byte; optimizer states."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import arrayexec as ax
from arrayexec.files import load, load_mxnet_states, save

DATA = Path(__file__).parent / "mxnet_files"
AGAIN = ["list", "names", "big_rank", "np_shape", "gluon-0007", "bare"]
OLD = sorted(path.name.removesuffix(".json") for path in (DATA / "old").glob("*.json") if ".resaved" not in path.name)
STATES = ["sgd_plain", "sgd_momentum", "sgd_multi_precision", "adam", "rmsprop_centered", "adam_with_optimizer"]


@pytest.mark.parametrize("name", AGAIN)
def test_written_back_to_the_byte(name: str, tmp_path: Path) -> None:
    save(tmp_path / "copy.params", load(DATA / f"{name}.params"))
    assert (tmp_path / "copy.params").read_bytes() == (DATA / f"{name}.params").read_bytes()


def test_nothing_written_to_the_byte(tmp_path: Path) -> None:
    save(tmp_path / "copy.params", {})
    assert (tmp_path / "copy.params").read_bytes() == (DATA / "empty.params").read_bytes()
    assert load(DATA / "empty.params") == {}


def test_every_type_to_the_byte(tmp_path: Path) -> None:
    types = pytest.importorskip("ml_dtypes")
    arrays: Any = load(DATA / "dict.params")
    assert [name for name, array in arrays.items() if array.dtype != name] == ["bfloat16"]
    arrays["bfloat16"] = np.array([1, -2.5, 3.140625, np.inf], types.bfloat16)
    save(tmp_path / "copy.params", arrays)
    assert (tmp_path / "copy.params").read_bytes() == (DATA / "dict.params").read_bytes()


def test_bfloat16_as_float32() -> None:
    found = load(DATA / "dict.params")["bfloat16"]  # type: ignore[call-overload]
    assert found.dtype == np.float32
    assert found.tolist() == [1, -2.5, 3.140625, np.inf]


def test_sparse_arrays() -> None:
    found: Any = load(DATA / "sparse.params")
    assert found["rs"].tolist() == [[1, 2], [0, 0], [0, 0], [3, 4], [0, 0]]
    assert found["csr"].tolist() == [[0, 1, 0], [2, 0, 3]]
    assert load(DATA / "csr.params")["c"].tolist() == [[0, 1, 0], [2, 0, 3]]  # type: ignore[call-overload]


def test_shapes_of_numpy() -> None:
    found: Any = load(DATA / "np_shape.params")
    assert (found["scalar"].shape, found["scalar"]) == ((), 2.5)
    assert (found["zero"].shape, found["plain"].tolist()) == ((2, 0, 3), [1, 2, 3])


def test_exported_gluon_pair_runs() -> None:
    net = ax.sym.load(DATA / "gluon-symbol.json")
    arrays: Any = load(DATA / "gluon-0007.params")
    bare: Any = load(DATA / "bare.params")
    assert list(bare)[:3] == ["0.weight", "0.bias", "1.gamma"]
    with np.load(DATA / "gluon_io.npz") as pair:
        executor = net.simple_bind(ax.cpu(), grad_req="null", data=pair["x"].shape)
        executor.copy_params_from(
            *({k.partition(":")[2]: v for k, v in arrays.items() if k.startswith(kind)} for kind in ("arg:", "aux:"))
        )
        (found,) = executor.forward(is_train=False, data=pair["x"])
        np.testing.assert_allclose(found, pair["y"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", OLD)
def test_old_graphs_are_written_anew_to_the_byte(name: str) -> None:
    assert ax.sym.load(DATA / f"old/{name}.json").tojson() == (DATA / f"old/{name}.resaved.json").read_text()


def test_every_old_graph_is_there() -> None:
    assert len(OLD) == 14


def flat(found: Any, key: str = "") -> dict[str, np.ndarray]:
    if found is None:
        return {}
    if isinstance(found, np.ndarray):
        return {key: found}
    pairs = found.items() if isinstance(found, dict) else enumerate(found)
    return {name: array for k, part in pairs for name, array in flat(part, f"{key}/{k}".lstrip("/")).items()}


@pytest.mark.parametrize("name", STATES)
def test_optimizer_states(name: str) -> None:
    found = load_mxnet_states(DATA / f"{name}.states")
    assert list(found["states"]) == [0, 1]
    arrays = flat(found["states"])
    with np.load(DATA / f"{name}.npz") as wanted:
        assert list(arrays) == list(wanted)
        for key, array in arrays.items():
            assert (array.dtype, array.tobytes()) == (wanted[key].dtype, wanted[key].tobytes())


@pytest.mark.parametrize("name", ["adam_with_optimizer", "adam_protocol0", "adam_protocol2"])
def test_optimizer_beside_its_states(name: str) -> None:
    found = load_mxnet_states(DATA / f"{name}.states")
    optimizer = found["optimizer"]
    assert (optimizer["class"], optimizer["num_update"], optimizer["beta2"]) == ("Adam", 3, 0.999)
    assert optimizer["_index_update_count"] == {0: 3, 1: 3}
    assert optimizer["idx2name"] == {0: "w_weight", 1: "b_bias"}
    assert optimizer["lr_scheduler"]["class"] == "MultiFactorScheduler"
    assert optimizer["lr_scheduler"]["step"] == [2, 4]
    twin = load_mxnet_states(DATA / "adam_with_optimizer.states")["states"]
    assert [a.tobytes() for a in flat(found["states"]).values()] == [a.tobytes() for a in flat(twin).values()]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_arrays_of_numpy_in_states(protocol: int, tmp_path: Path) -> None:
    states = {0: np.arange(6, dtype=">f4").reshape(2, 3), "w": (np.asfortranarray(np.ones((2, 3))), np.float64(0.5), 3)}
    (tmp_path / "a.states").write_bytes(pickle.dumps(states, protocol))
    found = load_mxnet_states(tmp_path / "a.states")
    assert found["optimizer"] is None
    assert found["states"][0].dtype == np.float32 and found["states"][0].tolist() == states[0].tolist()
    assert found["states"]["w"][0].tolist() == np.ones((2, 3)).tolist()
    assert found["states"]["w"][1:] == (0.5, 3)


def test_states_through_load() -> None:
    found = load(DATA / "adam.states", format="mxnet-pickle")
    assert list(found) == ["states", "optimizer"]
