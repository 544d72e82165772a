"""GPU arrays among real ranks on a fake NCCL: who carries what, in which order, and how a job ends."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest

from tests.parallel.mpi_helper import run_ranks

pytestmark = pytest.mark.mpi

STAGED = 19  # arrays of the script that NCCL does not sum: 2 types, and 4 shapes or none of 13


def result(ranks: int, script: str, *arguments: str) -> dict[str, Any]:
    run = run_ranks(script, ranks, *arguments)
    assert (run.code, run.err) == (0, ""), run.err
    found: dict[str, Any] = json.loads(run.out)
    return found


@pytest.mark.parametrize(("ranks", "backend"), [(1, "nccl"), (2, "nccl"), (3, "nccl"), (2, "auto")])
def test_every_collective_gives_the_closed_form(ranks: int, backend: str) -> None:
    found = result(ranks, "nccl_ranks.py", backend, "own")
    assert found == {"meetings": [["meet", ranks, 0, 0]], "calls": 48 + 2 * ranks, "staged": STAGED, "why": ""}


@pytest.mark.parametrize(
    ("gpus", "why"),
    [
        ("one", [f"GPU 0000:01:00.0 of {socket.gethostname()} is used by several ranks"] * 2),
        ("bare", ["can use it", "CuPy finds no NCCL library"]),
    ],
)
def test_where_nccl_cannot_serve_arrays_go_through_pinned_memory(gpus: str, why: list[str]) -> None:
    found = result(2, "nccl_ranks.py", "auto", gpus)
    assert (found["meetings"], found["calls"]) == ([], 0)
    assert found["staged"] > STAGED
    assert found["why"].splitlines()[:4] == [
        f"NCCL cannot carry arrays of GPUs among the ranks: {why[-1]}",
        "  ranks:",
        f"    rank 0  {why[0]}",
        f"    rank 1  {why[1]}",
    ]


def test_with_backend_mpi_nothing_of_cupy_is_used() -> None:
    found = result(2, "nccl_ranks.py", "mpi", "own")
    assert found == {"meetings": [], "calls": 0, "staged": 0, "why": "backend mpi"}


@pytest.mark.parametrize("gpus", ["one", "bare"])
def test_nccl_that_was_asked_for_and_cannot_serve_ends_the_job(gpus: str) -> None:
    run = run_ranks("nccl_ranks.py", 2, "nccl", gpus)
    assert run.code == 1
    assert "arrayexec.errors.BackendUnavailableError: NCCL cannot carry arrays of GPUs among the ranks: " in run.err
    assert "  or backend='mpi': through host memory, as without any backend named" in run.err


def test_gradient_buckets_lie_where_nccl_sums_them() -> None:
    assert result(2, "nccl_buckets.py", "nccl") == {"calls": 5, "buckets": 6}


def test_devices_of_each_rank_and_then_ranks() -> None:
    run = run_ranks("nccl_groups.py", 2)
    assert (run.code, run.err, sorted(run.out.splitlines())) == (0, "", ["rank 0 done", "rank 1 done"])


def test_parallel_models_on_gpus_of_ranks_train_as_on_processors() -> None:
    run = run_ranks("nccl_parallelized.py", 2, "momentum", "uneven", "combined", "clipped", "by hand", "dynamic memory")
    assert (run.code, run.err, sorted(run.out.splitlines())) == (0, "", ["rank 0 done", "rank 1 done"])


# how a job ends

TIMEOUT = "CollectiveTimeoutError: allreduce of gradient bucket 0 on GPUs (step 2) did not complete in 3 s, though all ranks have come to it"
FAULTS = {
    "exception": (1, 5.0, "ValueError: bad row 17"),
    "SIGSTOP": (86, 8.0, "CollectiveTimeoutError: rank 1 is missing in allreduce of gradient bucket 0 on GPUs (step 2): rank 0 has waited for 3 s"),
    "fewer batches": (87, 5.0, "PeerFailure: rank 1 left (exit) while rank 0 waits for it in allreduce of gradient bucket 0 on GPUs (step 2)"),
    "host array": (1, 5.0, "CollectiveError: the ranks are in different collectives: rank "),
    "stuck": (86, 8.0, TIMEOUT),
    "late_error": (1, 5.0, "CollectiveError: NCCL failed in an allreduce on gpu(1): NCCL_ERROR_REMOTE_ERROR: remote process exited or there was a network error"),
    "refused_launch": (1, 5.0, "CollectiveError: NCCL failed in an allreduce on gpu(1): NCCL_ERROR_UNHANDLED_CUDA_ERROR: unhandled cuda error"),
    "refused_meeting": (1, 5.0, "CollectiveError: NCCL failed when the ranks met on gpu(1): NCCL_ERROR_SYSTEM_ERROR: unhandled system error"),
    "stuck_meeting": (86, 8.0, "CollectiveTimeoutError: meeting in NCCL (step 0) did not complete in 3 s, though all ranks have come to it"),
    "refused_id": (1, 5.0, "BackendUnavailableError: NCCL cannot carry arrays of GPUs among the ranks: NCCL gives no id to meet by: NCCL_ERROR_SYSTEM_ERROR: unhandled system error"),
}
SHORT = ("SIGSTOP", "late_error")


@pytest.mark.parametrize(
    "fault", [pytest.param(f, marks=[] if f in SHORT else pytest.mark.full) for f in FAULTS]
)
def test_a_fault_ends_the_job_in_time_and_says_what_it_was(fault: str) -> None:
    code, seconds, text = FAULTS[fault]
    run = run_ranks("nccl_failures.py", 2, fault, timeout=40, env={"ARRAYEXEC_TIMEOUT": "3"})
    assert run.code == code, run.err
    assert text in run.err
    if "meeting" not in fault and fault != "refused_id":
        assert run.after("failing at") < seconds
    if fault in ("SIGSTOP", "stuck", "fewer batches", "late_error", "refused_launch"):
        assert "has ended NCCL: True" in run.err, "its kernels would go on"
