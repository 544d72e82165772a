"""Stores by key under a real mpirun."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.parallel.mpi_helper import run_ranks

pytestmark = pytest.mark.mpi
SCRIPT = str(Path(__file__).parent / "kvstore_ranks.py")


@pytest.mark.parametrize("ranks", [2, 3])
def test_sums_updates_and_files_on_all_ranks(tmp_path: Path, ranks: int) -> None:
    run = run_ranks(SCRIPT, ranks, tmp_path)
    assert (run.code, run.err) == (0, ""), run.err


def test_a_pull_does_not_wait_for_ever_for_a_rank_that_left(tmp_path: Path) -> None:
    run = run_ranks(SCRIPT, 2, tmp_path, "leave")
    assert run.code != 0 and run.seconds < 40 and "rank 0" in run.complaint(), run.err
