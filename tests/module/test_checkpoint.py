"""Training that is resumed is training that was never interrupted."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import arrayexec as ax
from arrayexec.errors import CheckpointError
from arrayexec.module.checkpoint import Checkpoints
from tests.module.resuming import STEPS, Training, near, same
from tests.parallel.parallelized import batches, build, train
from tests.strict_device import strict

FACES = ["manager", "module"]


def interrupted(folder: Path, at: int, before: Any, after: Any) -> dict[str, Any]:
    """What comes out if training stops after ``at`` steps, and other objects go on from its file."""
    keeper = Checkpoints(folder)
    training = before()
    training.go_on(at)
    training.save(keeper)
    training = after()
    training.resume(keeper)
    assert training.steps == at
    training.go_on(STEPS, live=at < 4)
    return training.result()


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize(
    ("net", "rule", "devices", "handle"),
    [
        ("dropout", "adam", 1, "pad"), ("dropout", "momentum", 3, "roll_over"), ("norm", "momentum", 1, "pad"),
        ("norm", "nadam", 2, "discard"), ("norm", "adam", 3, "roll_over"),
    ],
)  # fmt: skip
def test_the_same_devices_go_on_bit_for_bit(
    tmp_path: Path, face: str, net: str, rule: str, devices: int, handle: str
) -> None:
    def made(seed: int = 7) -> Training:
        return Training(face, net, rule, devices, seed=seed, last_batch_handle=handle)

    whole = made()
    whole.go_on(STEPS)
    for at in (1, 5, 7):  # in the first epoch; at the end of one; in the middle of the next
        same(interrupted(tmp_path / str(at), at, made, lambda: made(seed=8)), whole.result())


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("rule", ["momentum", "adam"])
@pytest.mark.parametrize(("before", "after"), [(1, 2), (3, 1), (2, 3)])
def test_other_devices_go_on_within_rounding(tmp_path: Path, face: str, rule: str, before: int, after: int) -> None:
    whole = Training(face, "dropout", rule, before)
    whole.go_on(STEPS)
    found = interrupted(
        tmp_path, 7, lambda: Training(face, "dropout", rule, before), lambda: Training(face, "dropout", rule, after, seed=1)
    )
    near(found, whole.result())


def test_states_of_devices_stay_their_own_and_others_get_the_mean(tmp_path: Path) -> None:
    first, second, other = (Training("manager", "norm", "adam", n) for n in (2, 2, 3))
    first.go_on(3)
    path = first.save(Checkpoints(tmp_path))
    means = [store.aux["bn_moving_mean"].copy() for store in first.model.stores]
    assert not np.array_equal(*means)
    ax.checkpoint.resume(path, second.model, **second.given())
    assert all(np.array_equal(s.aux["bn_moving_mean"], m) for s, m in zip(second.model.stores, means, strict=True))
    ax.checkpoint.resume(path, other.model, **other.given())
    for store in other.model.stores:
        assert np.allclose(store.aux["bn_moving_mean"], np.mean(means, axis=0, dtype="f8"), rtol=1e-7)


def test_saving_changes_nothing(tmp_path: Path) -> None:
    whole, saved = (Training("manager", "norm", "momentum", 2) for _ in range(2))
    whole.go_on(STEPS)
    for step in range(1, STEPS + 1):
        saved.go_on(step)
        saved.save(Checkpoints(tmp_path, keep=2))
    same(saved.result(), whole.result())
    assert [Path(path).name for path in Checkpoints(tmp_path).paths()] == [
        f"checkpoint-{STEPS - 1:08d}.states", f"checkpoint-{STEPS:08d}.states",
    ]  # fmt: skip


def test_the_newest_whole_file_is_taken(tmp_path: Path) -> None:
    keeper, training = Checkpoints(tmp_path, keep=None), Training("manager", "dropout", "adam")
    assert keeper.resume(training.model, **training.given()) is None and keeper.latest() is None
    paths = []
    for step in (2, 4, 6):
        training.go_on(step)
        paths.append(training.save(keeper))
    raw = Path(paths[2]).read_bytes()
    Path(paths[2]).write_bytes(raw[: len(raw) // 2])
    Path(paths[1]).write_bytes(b"")
    again = Training("manager", "dropout", "adam")
    with pytest.warns(UserWarning, match="is damaged, and left out") as warned:
        again.resume(keeper)
    assert again.steps == 2 and [Path(p).name in str(w.message) for p, w in zip(paths[:0:-1], warned, strict=True)] == [True] * 2
    again.go_on(3)
    assert Path(again.save(keeper)).name == "checkpoint-00000004.states"
    Path(paths[0]).write_bytes(raw[:-1])
    Path(keeper.paths()[-1]).unlink()
    with pytest.warns(UserWarning), pytest.raises(CheckpointError, match="all checkpoints in .* are damaged"):
        keeper.resume(again.model, **again.given())


def test_an_iterator_that_does_not_tell_its_place_is_drawn_once_more(tmp_path: Path) -> None:
    def made() -> Training:
        training = Training("manager", "dropout", "momentum")

        class Silent(type(training.data)):  # type: ignore[misc]
            get_state = set_state = ax.io.DataIter.get_state

        training.data.__class__ = Silent
        return training

    whole = made()
    whole.go_on(STEPS)
    with pytest.warns(UserWarning, match="Silent has no get_state.* 3 batches"):
        found = interrupted(tmp_path, 3, made, made)
    same(found, whole.result())


def test_several_models_in_one_file(tmp_path: Path) -> None:
    first, second = Training("manager", "dropout", "adam"), Training("manager", "norm", "adam")
    models = [first.model, second.model]
    first.go_on(2)
    second.go_on(3)
    ax.checkpoint.save(tmp_path / "a", models, epoch=1, extra={"name": np.arange(3)})
    fresh = [Training("manager", "dropout", "adam"), Training("manager", "norm", "adam")]
    position = ax.checkpoint.resume(tmp_path / "a", [training.model for training in fresh])
    assert position[:2] == (1, 0) and position.extra["name"].tolist() == [0, 1, 2]
    for training, other in zip(fresh, (first, second), strict=True):
        for name, array in other.model.stores[0].parameters.items():
            assert np.array_equal(training.model.stores[0].parameters[name], array)
    assert [training.model.step for training in fresh] == [2, 3]
    with pytest.raises(CheckpointError, match="trained symbols of the model must be 2, as the file has, but it has 1"):
        ax.checkpoint.resume(tmp_path / "a", models[0])


@pytest.mark.parametrize("name", ["adam", "shared", "combined"])
@pytest.mark.parametrize("devices", [[0, 1], [5, 3, 4]])
def test_parallel_models(tmp_path: Path, name: str, devices: list[int]) -> None:
    wanted, _ = train(name, [0, 1])
    model, keeper = build(name, [0, 1]), Checkpoints(tmp_path)
    for number, (data, label) in enumerate(batches(name)):
        if number == 3:
            keeper.save(model, batch=3)
            ax.random.seed(99)
            model = build(name, devices)
            assert keeper.resume(model) == (0, 3, None) and model.iteration == 3
        model.feed("data", data)
        model.feed("label", label)
        model.run()
    for key, value in wanted.items():
        if devices == [0, 1]:
            assert np.array_equal(model.blob(key), value), key
        else:
            assert np.abs(model.blob(key) - value).max() <= 1e-5 * np.abs(value).max(), key


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("net", ["dropout", "norm"])
def test_arrays_that_are_not_in_host_memory(tmp_path: Path, face: str, net: str) -> None:
    def made() -> Training:
        return Training(face, net, "adam", contexts=[strict(0), strict(1)])

    whole = made()
    whole.go_on(STEPS)
    same(interrupted(tmp_path, 7, made, made), whole.result())


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes in folders here")
def test_pipes_and_folders_with_names_of_checkpoints_are_left_out(tmp_path: Path) -> None:
    keeper, training = Checkpoints(tmp_path, keep=1), Training("manager", "dropout", "adam")
    (tmp_path / "checkpoint-00000003.states").mkdir()
    training.go_on(2)
    training.save(keeper)
    os.mkfifo(tmp_path / "checkpoint-00000009.states")
    with pytest.warns(UserWarning, match="must be a file, but it is a device or a pipe"):
        Training("manager", "dropout", "adam").resume(keeper)


def test_a_metric_that_does_not_fit_changes_nothing(tmp_path: Path) -> None:
    training = Training("module", "dropout", "adam")
    training.go_on(2)
    ax.checkpoint.save(tmp_path / "a", training.model, metric=ax.metric.create("acc"))
    fresh = Training("module", "dropout", "adam")
    before = fresh.model.get_params()[0]
    with pytest.raises(CheckpointError, match="the metric must be the one that was saved"):
        ax.checkpoint.resume(tmp_path / "a", fresh.model, metric=ax.metric.create(["acc", "mse"]))
    assert all(np.array_equal(before[name], array) for name, array in fresh.model.get_params()[0].items())
    assert fresh.model.optimizer.num_update == 0
