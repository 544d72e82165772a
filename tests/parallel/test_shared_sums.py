"""Sums in memory that ranks share, inside a host and between hosts; hosts are pretended on one machine."""

from __future__ import annotations

import pytest

from tests.parallel.mpi_helper import Run, run_ranks

pytestmark = pytest.mark.mpi


def good(run: Run) -> str:
    assert (run.code, run.err) == (0, ""), run.err
    return run.out


def hosts(of: int) -> dict[str, str]:
    return {"ARRAYEXEC_RANKS_PER_HOST": str(of)}


# 3 ranks of 2: hosts with different numbers of ranks; 4 of 1: nobody to share memory with
@pytest.mark.parametrize(("ranks", "per_host"), [(1, 1), (2, 2), (3, 3), (4, 2), (3, 2), (4, 1)])
def test_sums_are_those_of_the_definition_to_the_bit(ranks: int, per_host: int) -> None:
    good(run_ranks("shared_sums.py", ranks, env=hosts(per_host)))


def test_sums_have_the_same_bits_from_run_to_run() -> None:
    first, second = (good(run_ranks("shared_sums.py", 4, env=hosts(2))) for _ in range(2))
    assert first == second


@pytest.mark.parametrize(("ranks", "per_host"), [(2, 2), (4, 2)])
def test_updates_in_parts_and_local_steps_end_where_whole_ones_do(ranks: int, per_host: int) -> None:
    out = good(run_ranks("shared_updates.py", ranks, env=hosts(per_host)))
    assert "all the same" in out


def test_managers_use_shared_memory_where_there_is_room() -> None:
    assert good(run_ranks("shared_room.py", 2)) == "the same without room\n"
