"""Collectives, gradient buckets and shared memory under a real mpirun."""

from __future__ import annotations

import json

import pytest

from tests.parallel.mpi_helper import Run, run_ranks

pytestmark = pytest.mark.mpi


def good(run: Run) -> str:
    assert (run.code, run.err) == (0, ""), run.err
    return run.out


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_every_collective_gives_the_closed_form(ranks: int) -> None:
    good(run_ranks("collectives.py", ranks))


def test_sums_have_the_same_bits_from_run_to_run() -> None:
    first, second = (good(run_ranks("collectives.py", 3)) for _ in range(2))
    assert json.loads(first) == json.loads(second)


def test_gradients_are_summed_in_buckets_while_they_are_written() -> None:
    first, second = (json.loads(good(run_ranks("gradient_buckets.py", 2))) for _ in range(2))
    assert first == second
    # wherever the gradients lie, the sums are the same bits
    assert len(set(first["digests"].values())) == 1
    assert min(first["buckets"].values()) >= 3


def test_gradients_of_four_ranks() -> None:
    result = json.loads(good(run_ranks("gradient_buckets.py", 4)))
    assert result["buckets"]["own segment"] == result["buckets"]["shared segment"]


def test_a_shared_segment_outlives_the_communicator_and_asks_for_room() -> None:
    out = good(run_ranks("shared_memory.py", 2))
    assert out.count('{"last": 3.0}') == 2
    assert "the 2 ranks need 2251799813685248 bytes of shared memory, but /dev/shm has " in out


def test_a_forked_child_may_not_communicate() -> None:
    assert good(run_ranks("fork.py", 2)) == (
        "allreduce: this process was forked from rank 1 and must not use its communicator\n"
        "  start workers with the 'spawn' or 'forkserver' method, or before comm.init()\n"
    )
