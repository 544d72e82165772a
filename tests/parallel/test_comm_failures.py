"""What goes wrong on one rank ends the job, soon, with a message that names the rank and what it did."""

from __future__ import annotations

import re

import pytest

from tests.parallel.mpi_helper import Run, run_ranks

pytestmark = pytest.mark.mpi

DEADLINE = 5.0  # what run_ranks sets
GRACE = 5.0  # of rule R11

STEP = "allreduce of gradient bucket 0 (step 2)"
WAITING = f"arrayexec: rank 0 of 3 failed in step 2; last collective: {STEP}\n"
TRACEBACK = "Traceback (most recent call last):\n"
RAISED = "arrayexec: rank 1 of 3 failed in step 2; last collective: allreduce of gradient bucket 0 (step 1)\n"
LEFT = (
    WAITING
    + TRACEBACK
    + f"""\
arrayexec.errors.PeerFailure: rank 1 left (exit) while rank 0 waits for it in {STEP}
  collectives:
    rank 1 left after  allreduce of gradient bucket 0 (step 1)
    rank 0 waits in    {STEP}
  every rank must run the same number of steps; what ends early must end on all ranks"""
)
LATE = f"""\
{WAITING}{TRACEBACK}\
arrayexec.errors.CollectiveTimeoutError: rank 1 is missing in {STEP}: rank 0 has waited for 5 s
  collective number 4:
    waiting              ranks 0, 2
    last seen of rank 1  %s
  see what that rank does (stopped, swapping, a slow batch); a longer deadline: \
comm.init(timeout=seconds) or ARRAYEXEC_TIMEOUT"""
MET = "in allreduce of gradient bucket 0 (step 1), which is complete"

# event: (seconds it may take, exit codes, our message); rank N: all ranks raise, and the first one speaks
EVENTS: dict[str, tuple[float, tuple[int, ...], str]] = {
    "exception": (GRACE, (1,), RAISED + TRACEBACK + "ValueError: bad row 17"),
    "exception in a thread": (
        GRACE,
        (1,),
        RAISED + "Exception in thread reader:\n" + TRACEBACK + "ValueError: bad row 17",
    ),
    "exception on all ranks": (
        GRACE,
        (1, 9),
        RAISED.replace("rank 1", "rank N") + TRACEBACK + "ValueError: bad row 17",
    ),
    "sys.exit": (GRACE, (87,), LEFT),
    "early return": (GRACE, (87,), LEFT),
    "fewer batches": (
        GRACE,
        (1,),
        f"""\
{WAITING}{TRACEBACK}\
arrayexec.errors.CollectiveError: the ranks are in different collectives: rank 0 waits in {STEP}, \
rank 1 in barrier (end of epoch)
  collective number 4:
    rank 0  {STEP}
    rank 1  barrier (end of epoch)
  every rank must run the same number of steps and the same calls in the same order""",
    ),
    "SIGKILL": (GRACE, (9, 137), ""),
    "SIGSTOP": (DEADLINE + GRACE, (86,), LATE % MET),
    "stopped in a collective": (DEADLINE + GRACE, (86,), LATE % f"waiting in {STEP}, T s ago"),
    "busy": (
        DEADLINE + GRACE,
        (86,),
        LATE % "at failure_events.py:N in fail (step 2) after allreduce of gradient bucket 0 (step 1), T s ago",
    ),
    "swallowed": (
        DEADLINE + GRACE,
        (86,),
        f"arrayexec: rank 0 ends the job: rank 1 is missing in {STEP}: rank 0 has waited for 5 s",
    ),
    "stopped at the end": (
        DEADLINE + GRACE,
        (86,),
        "arrayexec: rank 0 is done, but ends the job: no answer from rank 1",
    ),
    "other model": (
        GRACE,
        (1, 9),  # 9: the launcher reports the death of the others
        f"""\
arrayexec: rank N of 3 failed in step 1; last collective: agreement on model (step 1)
{TRACEBACK}\
arrayexec.errors.PlanMismatchError: model: the ranks must hold the same, but 'fc_weight' differs
  found:
    ranks 0, 2  (64, 10)
    rank 1      (64, 11)
  every rank must run the same program with the same model and options""",
    ),
    "other size": (
        GRACE,
        (1, 9),
        f"""\
arrayexec: rank N of 3 failed in step 1; last collective: agreement on allreduce (step 1)
{TRACEBACK}\
arrayexec.errors.PlanMismatchError: allreduce: the ranks must hold the same, but 'array' differs
  found:
    ranks 0, 2  float64 (10,)
    rank 1      float64 (11,)
  every rank must run the same program with the same model and options""",
    ),
}


def complaint(run: Run, any_rank: bool = False) -> str:
    text = re.sub(r"py:\d+", "py:N", re.sub(r"\d+ s ago", "T s ago", run.complaint()))
    return re.sub(r"rank \d of", "rank N of", text) if any_rank else text


@pytest.mark.parametrize("event", EVENTS)
def test_one_failing_rank_ends_the_job_with_one_message(event: str) -> None:
    seconds, codes, text = EVENTS[event]
    run = run_ranks("failure_events.py", 3, event, timeout=40)
    took = run.after("failing at")
    print(f"{event}: {took:.1f} s, exit code {run.code}")
    assert complaint(run, any_rank="rank N of" in text) == text
    assert run.code in codes
    assert took <= seconds
    if event == "SIGKILL":
        assert re.search(r"EXIT CODE: 9|signal 9|Killed", run.out + run.err)


def test_a_rank_that_finishes_earlier_is_no_fault() -> None:
    # a rank that waits at its end for longer than a deadline hears that the others are there
    run = run_ranks("failure_events.py", 3, "finishes later", timeout=40, env={"ARRAYEXEC_TIMEOUT": "3"})
    assert (run.code, run.out, run.err) == (0, "", "")
    assert run.seconds >= 5


def test_the_deadline_is_longer_in_the_first_step() -> None:
    run = run_ranks("first_step.py", 2, timeout=40, env={"ARRAYEXEC_TIMEOUT": "1"})
    assert (run.code, run.out) == (0, "slow first step done\n")


