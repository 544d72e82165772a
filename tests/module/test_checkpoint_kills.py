"""A kill or a full disk at any moment of a save leaves the checkpoint before it, or the new one, and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "kill_saver.py"
FULL = bool(os.environ.get("ARRAYEXEC_FULL"))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="children are forked")
def test_whatever_ends_a_save_the_newest_file_is_whole(tmp_path: Path, subprocess_env: dict[str, str]) -> None:
    kills, every = (1000, 1) if FULL else (20, 3)
    environment = {**subprocess_env, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", str(SCRIPT), str(tmp_path), str(kills), str(every)]
    run = subprocess.run(command, env=environment, timeout=1700, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    print(run.stdout)
    found = json.loads(run.stdout)
    # the bytes are on the disk before the name is, and the name before old files go
    assert " ".join(found["order"][2:]) == "open write fsync chmod replace open fsync close listdir unlink listdir"
    assert found["random"]["kills"] == kills and found["random"]["half-written files"] > kills / 4
    assert found["random"]["checkpoints"] > 0
    for how in ("killed", "failed"):
        assert found[how]["old"] > 5 and found[how]["new"] > 0 and found[how]["old"] + found[how]["new"] == found[how]["ended"]
