"""The ResNet trainer, small: alone, on devices, under mpirun, and going on from a checkpoint."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.parallel.mpi_helper import run_ranks

SMALL = ("--blocks", "1", "--images", "32", "--batch", "16")


def last_line(text: str) -> dict[str, float]:
    """The numbers of the last line."""
    words = text.splitlines()[-1].split()
    assert [word.partition("=")[0] for word in words] == ["test_accuracy", "loss", "images_per_s", "ranks"]
    return {name: float(value) for name, _, value in (word.partition("=") for word in words)}


def train(root: Path, env: dict[str, str], *options: str) -> dict[str, float]:
    command = [sys.executable, str(root / "examples" / "parallelize_resnet.py"), *SMALL, *options]
    env = {**env, "OPENBLAS_NUM_THREADS": "1"}  # beside other tests two threads wait for each other
    run = subprocess.run(command, env=env, check=True, timeout=120, capture_output=True, text=True)
    assert run.stderr == ""
    return last_line(run.stdout)


def test_devices_and_a_checkpoint_change_no_loss(root: Path, tmp_path: Path, subprocess_env: dict[str, str]) -> None:
    alone = train(root, subprocess_env, "--epochs", "2")
    saved = ("--epochs", "2", "--checkpoint", str(tmp_path / "model.npz"))
    first = train(root, subprocess_env, *saved, "--stop", "1")
    assert abs(first["loss"] - alone["loss"]) > 0.01
    assert train(root, subprocess_env, *saved, "--devices", "3,0")["loss"] == pytest.approx(alone["loss"], abs=2e-3)


LEARNS = ("--blocks", "1", "--images", "256", "--batch", "16", "--epochs", "3")


def test_it_learns(root: Path, subprocess_env: dict[str, str]) -> None:
    """As its page says: at least 98 % of images that it has not seen, after three epochs."""
    assert train(root, subprocess_env, *LEARNS)["test_accuracy"] >= 0.98


@pytest.mark.mpi
def test_it_learns_on_ranks(root: Path) -> None:
    run = run_ranks(str(root / "examples" / "parallelize_resnet.py"), 2, *LEARNS, timeout=120)
    assert (run.code, run.err) == (0, "")
    assert last_line(run.out)["test_accuracy"] >= 0.98


@pytest.mark.mpi
def test_ranks_go_on_where_others_stopped(root: Path, tmp_path: Path, subprocess_env: dict[str, str]) -> None:
    alone = train(root, subprocess_env, "--epochs", "2")
    saved = (*SMALL, "--epochs", 2, "--checkpoint", tmp_path / "model.npz")
    for ranks, stop in ((4, 1), (2, 2)):
        run = run_ranks(str(root / "examples" / "parallelize_resnet.py"), ranks, *saved, "--stop", stop, timeout=120)
        assert (run.code, run.err) == (0, "")
    found = last_line(run.out)
    assert found["loss"] == pytest.approx(alone["loss"], abs=2e-3)
    assert found["ranks"] == 2


@pytest.mark.mpi
def test_ranks_change_no_loss(root: Path, subprocess_env: dict[str, str]) -> None:
    alone = train(root, subprocess_env, "--epochs", "2")
    example = root / "examples" / "parallelize_resnet.py"
    run = run_ranks(str(example), 4, *SMALL, "--epochs", 2, timeout=120)
    assert (run.code, run.err) == (0, "")
    found = last_line(run.out)
    assert found["loss"] == pytest.approx(alone["loss"], abs=2e-3)
    assert found["ranks"] == 4
