"""Every refusal of checkpoints, files of states and stores by key.

The texts stand in ``texts_checkpoint.txt``; how they are recorded: ``recorder.py``.
"""

from __future__ import annotations

import io
import json
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

import arrayexec as ax
from arrayexec.module.checkpoint import Checkpoints, load, resume, save
from arrayexec.train import metric
from arrayexec.train.state_files import from_bytes, load_states, save_states
from tests.errors.recorder import PACKAGE, Recorder, checks_of
from tests.module.resuming import Training

FILES = (
    "module/checkpoint.py", "module/rank_files.py", "module/kvstore.py", "module/trained_state.py", "train/state_files.py",
)  # fmt: skip
ELSEWHERE = {
    "module/rank_files.py": {
        "raise error": "tests/module/test_resume_ranks.py::test_what_rank_0_cannot_do_is_said_on_all",
        "on rank 0": "tests/module/test_resume_ranks.py::test_what_rank_0_cannot_do_is_said_on_all",
    },
}
RECORDER = Recorder(
    Path(__file__).parent / "texts_checkpoint.txt", [PACKAGE / name for name in FILES], ["_Fault"], ELSEWHERE
)
cases, case = RECORDER.cases, RECORDER.case


# files of states


def written(tree: Any, version: int = 1, **members: Any) -> Any:
    """Read a file with this tree."""
    file = io.BytesIO()
    text = json.dumps({"arrayexec states": version, "tree": tree}).encode()
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in {**members, "tree": np.frombuffer(text, np.uint8)}.items():
            with archive.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, np.asarray(array))
    return from_bytes(file.getvalue(), "a.states")


def other_file(raw: bytes) -> Callable[[], Any]:
    def read() -> Any:
        Path("a.states").write_bytes(raw)
        return load_states("a.states")

    return read


@case
def damaged() -> None:
    save_states("a.states", {"weight": {"mean": np.arange(100)}})
    raw = bytearray(Path("a.states").read_bytes())
    raw[400] ^= 1
    Path("a.states").write_bytes(raw)
    load_states("a.states")


@case
def truncated() -> None:
    save_states("a.states", {"weight": np.arange(100)})
    Path("a.states").write_bytes(Path("a.states").read_bytes()[:500])
    load_states("a.states")


@case
def in_itself() -> None:
    endless: list[Any] = []
    endless.append(endless)
    save_states("a.states", endless)


cases(
    strange_value=lambda: save_states("a.states", {"weight": {"mean": [0, object()]}}),
    texts=lambda: save_states("a.states", {"weight": np.array(["a"])}),
    strange_key=lambda: save_states("a.states", {"weight": {b"mean": 0}}),
    pickle=other_file(b"\x80\x04}."),
    empty=other_file(b""),
    folder=lambda: (Path("a.states").mkdir(), load_states("a.states")),
    web_page=other_file(b"<!DOCTYPE html><html></html>"),
    not_states=lambda: (np.savez("a.npz", x=np.arange(3)), load_states("a.npz")),
    not_json=lambda: (np.savez("a.npz", tree=np.arange(3, dtype=np.uint8)), load_states("a.npz")),
    newer=lambda: written(None, version=2),
    strange_tree=lambda: written(["dict", [["w", {"x": 1}]]]),
    strange_list=lambda: written(["dict", [["w", ["set", []]]]]),
    no_member=lambda: written(["dict", [["w", ["array", "0 w", "float32"]]]]),
    other_member=lambda: written(["array", "0", "float32"], **{"0": np.arange(2)}),
)


# checkpoints


def model(net: str = "dropout", rule: str = "adam") -> Any:
    training = Training("manager", net, rule)
    return training.model, training.updater


@case
def other_model() -> None:
    save("a", *model())
    resume("a", *model("norm"))


@case
def other_shape() -> None:
    save("a", *model())
    held = load("a")
    held["parts"][0]["parameters"]["fc1_weight"] = np.zeros((16, 7), np.float32)
    save_states("a", held)
    resume("a", *model())


@case
def other_strangers() -> None:
    save("a", *model("norm"))
    held = load("a")
    held["parts"][0]["parameters"]["fc3_weight"] = np.zeros(1, np.float32)
    save_states("a", held)
    resume("a", *model("norm"))


@case
def other_optimizer() -> None:
    save("a", *model())
    resume("a", *model(rule="momentum"))


@case
def without_optimizer() -> None:
    save("a", model()[0])
    resume("a", *model())


@case
def other_number() -> None:
    save("a", [model()[0]] * 2)
    resume("a", *model())


@case
def other_metric() -> None:
    save("a", *model(), metric=metric.create("acc"))
    resume("a", *model(), metric=metric.create(["acc", "mse"]))


@case
def other_version() -> None:
    save_states("a", {"checkpoint": 7})
    resume("a", *model())


@case
def not_a_checkpoint() -> None:
    save_states("a", [1, 2])
    resume("a", *model())


@case
def half_a_checkpoint() -> None:
    save_states("a", {"checkpoint": 1, "epoch": 0})
    resume("a", *model())


@case
def kept_inputs() -> None:
    save("a", *model())
    held = load("a")
    held["ranks"] = [{**held["ranks"][0], "inputs": [[np.zeros(2)]]}] * 2
    save_states("a", held)
    resume("a", *model())


@case
def all_damaged() -> None:
    keeper, trained = Checkpoints("kept"), model()
    for _ in range(2):
        Path(keeper.save(*trained)).write_bytes(b"PK")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        keeper.resume(*trained)


cases(
    no_model=lambda: save("a", SimpleNamespace()),
    updater_of_no_kind=lambda: save("a", model()[0], {}),
    extra_of_no_kind=lambda: save("a", *model(), extra={"x": {1, 2}}),
    keep=lambda: Checkpoints("kept", keep=0),
    every=lambda: Checkpoints("kept", every=1.5),  # type: ignore[arg-type]
    name=lambda: Checkpoints("kept", name="../a"),
)


# stores by key


def store(kind: str = "local", **first: Any) -> Any:
    made = ax.kv.create(kind)
    for key, value in {"w": np.zeros((2, 3), np.float32), **first}.items():
        made.init(key, value)
    return made


def ones(*shape: int) -> Any:
    return np.ones(shape, np.float32)


cases(
    kind=lambda: ax.kv.create("zzz"),
    near_kind=lambda: ax.kv.create("dist_sinc"),
    no_kind=lambda: ax.kv.create(3),  # type: ignore[arg-type]
    servers=lambda: ax.kv.create("dist_async"),
    twice=lambda: store().init("w", ones(2)),
    no_array=lambda: store().init("v", [1.0, 2.0]),
    mixed_keys=lambda: store().init(3, ones(2)),
    odd_key=lambda: store().init(1.5, ones(2)),  # type: ignore[arg-type]
    counts_differ=lambda: store().push(["w", "w"], [ones(2, 3)]),
    push_nothing=lambda: store().push("w", []),
    push_without_init=lambda: store().push("v", ones(2)),
    pull_without_init=lambda: store(weight=ones(1)).pull("weigth", ones(1)),
    push_shape=lambda: store().push("w", [ones(2, 3), ones(3, 2)]),
    pull_shape=lambda: store().pull("w", ones(6)),
    pull_nothing=lambda: store().pull("w"),
    rows_of_nothing=lambda: store().row_sparse_pull("w", out=ones(2, 3)),
    rows_outside=lambda: store().row_sparse_pull("w", out=ones(2, 3), row_ids=np.array([0, 2])),
    compression_option=lambda: store("device").set_gradient_compression({"type": "2bit", "treshold": 0.5}),
    compression_local=lambda: store().set_gradient_compression({"type": "2bit"}),
    compression_kind=lambda: store("device").set_gradient_compression({"type": "fp16"}),
    compression_threshold=lambda: store("dist_sync").set_gradient_compression({"type": "2bit", "threshold": 0}),
    states_without_optimizer=lambda: store().save_optimizer_states("a"),
)

(
    found, test_text, test_no_text_is_left_over, test_every_refusal_is_reached,
    test_what_is_held_elsewhere_is_there,
) = checks_of(RECORDER)  # fmt: skip
