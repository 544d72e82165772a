"""The script for a machine with a GPU, tried on the strict device: it must be right the first time it meets a card."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from arrayexec.train.optimizer import Optimizer
from tests.gpu import run


def test_script_runs_and_reports(root: Path, tmp_path: Path, subprocess_env: dict[str, str]) -> None:
    report = tmp_path / "report.json"
    command = [sys.executable, str(root / "tests/gpu/run.py"), "--context", "strict", "--json", str(report)]
    done = subprocess.run(
        [*command, "--sections", "memory", "streams", "updates"], env=subprocess_env, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(report.read_text())
    assert found["passed"]
    assert [row["passed"] for row in found["sections"]["memory"]["rows"]] == [True] * 4
    ours = [name for name, cls in Optimizer.opt_registry.items() if cls.__module__.startswith("arrayexec.")]  # not tests'
    assert len(found["sections"]["updates"]["rows"]) == 2 * len(ours)
    assert found["machine"]["context"] == "strict(0)"
    assert done.stdout.splitlines()[-1].startswith("passed in ")


@pytest.mark.mpi
def test_nccl_on_the_fake(root: Path, tmp_path: Path, subprocess_env: dict[str, str]) -> None:
    report = tmp_path / "report.json"
    command = [sys.executable, str(root / "tests/gpu/run.py"), "--context", "strict", "--json", str(report)]
    done = subprocess.run([*command, "--sections", "nccl"], env=subprocess_env, capture_output=True, text=True, timeout=180)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    rows = json.loads(report.read_text())["sections"]["nccl"]["rows"]
    assert [row["passed"] for row in rows] == [True] * 5


def test_what_does_not_fit_into_the_time_has_failed(root: Path, tmp_path: Path, subprocess_env: dict[str, str]) -> None:
    report = tmp_path / "report.json"
    command = [sys.executable, str(root / "tests/gpu/run.py"), "--context", "strict", "--json", str(report)]
    done = subprocess.run(
        [*command, "--sections", "memory", "--seconds", "0"], env=subprocess_env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1
    found = json.loads(report.read_text())
    assert not found["passed"]
    assert found["sections"]["memory"]["rows"][-1]["text"] == "not run within 0 s"


def test_an_exception_is_a_failed_row() -> None:
    with run.failing_row("broken") as row:
        row["passed"] = True
        raise ZeroDivisionError("of course")
    assert not row["passed"]
    assert row["text"].startswith("ZeroDivisionError: of course (")


def test_without_a_gpu_it_says_why(root: Path, tmp_path: Path, subprocess_env: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, str(root / "tests/gpu/run.py"), "--json", str(tmp_path / "x.json")],
        env={**subprocess_env, "ARRAYEXEC_DEVICE": "cpu"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "BackendUnavailableError: gpu(0) cannot be used: GPUs are switched off by ARRAYEXEC_DEVICE=cpu" in done.stderr
    assert not (tmp_path / "x.json").exists()
