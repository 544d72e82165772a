"""Parallel models on several ranks: what is shared beside gradients, what is refused, who is late."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.parallel.mpi_helper import run_ranks

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("ranks", [2, 3])
def test_what_ranks_do_beside_steps(ranks: int, tmp_path: Path) -> None:
    run = run_ranks("parallelized_more.py", ranks, tmp_path, timeout=90)
    assert (run.code, run.out, run.err) == (0, "", "")


def test_a_run_names_the_rank_that_does_not_come() -> None:
    run = run_ranks("parallelized_late.py", 2, 1, timeout=60)
    assert run.code != 0
    assert "BarrierTimeoutError: rank 1 is missing in barrier (step 2 of the model 'sgd'): rank 0 has waited for 1 s" in run.err
    assert run.after("late at") < 1 + 5


def test_updates_by_hand_and_numbers_of_rows_are_agreed_on() -> None:
    run = run_ranks("parallelized_differ.py", 2, timeout=60)
    assert (run.code, run.out, run.err) == (0, "", "")


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize(("uneven", "combine"), [("drop", False), ("join", False), ("join", True)])
def test_readers_that_end_at_different_times(uneven: str, combine: bool, devices: int) -> None:
    run = run_ranks("parallelized_uneven.py", 2, uneven, devices, combine, timeout=60)
    assert (run.code, run.out, run.err) == (0, "", "")


@pytest.mark.parametrize(("ranks", "per_host"), [(2, None), (3, 2), (4, 2), (3, 1)])
def test_updates_in_parts(ranks: int, per_host: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if per_host is not None:
        monkeypatch.setenv("ARRAYEXEC_RANKS_PER_HOST", str(per_host))
    run = run_ranks("parallelized_shards.py", ranks, tmp_path, timeout=120)
    assert (run.code, run.out, run.err) == (0, "", "")
