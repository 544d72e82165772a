"""Whatever one rank does, wherever it does it: the job ends in time, with an exit code and a message that tell.

One cell an event runs always, all of them in the long tier.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import pytest

from tests.parallel.mpi_helper import run_ranks

GRACE = 5.0  # of rule R11
DEADLINE, LONG = 3.0, 60.0  # of waits, where the event leads to a timeout and where it must not

# place: (what rank 1 was doing, what the others wait in)
PLACES = {
    "start": ("", ""),
    "init": ("", r"agreement on the model and its training"),
    "first step": (" in step 0", r"allreduce of gradient bucket 0 \(step 0\)"),
    "mid backward": (" in step 2", r"allreduce of gradient bucket \d \(step 2\)"),
    "checkpoint": (" in checkpoint", r"barrier \(checkpoint\)"),
    "evaluation": (" in evaluation", r"agreement on allreduce \(evaluation\)"),
}
FIRST = ("start", "init", "first step")  # deadlines are four times as long there


@dataclass(frozen=True)
class Event:
    """What must come of an event: exit codes, message, seconds, and what is different at some places."""

    codes: tuple[int, ...]
    text: str = ""
    quick: str = "init"
    deadline: float = LONG
    at: dict[str, str] = field(default_factory=dict)
    harmless: tuple[str, ...] = ()
    impossible: dict[str, str] = field(default_factory=dict)


FAILED = r"arrayexec: rank 1 of 3 failed{doing}; .*"
GONE = r"arrayexec: rank 1 ended before comm\.init\(\)|prterun detected|prterun has exited due to process rank 1"
LEFT = r"PeerFailure: rank 1 left \(exit\) while rank 0 waits for it in {waits}"
LATE = r"TimeoutError: rank 1 is missing in {waits}: rank \d has waited .*last seen of rank 1 .*"
STUCK = r"Timeout \(0:00:12\)!.* in connect"  # MPI starts when all ranks start it
DIFFERS = r"PlanMismatchError: the model and its training: the ranks must hold the same"
NO_FRAME = {"mid backward": "what backward calls returns to it"}
FULL = r"evaluated 96 rows"
BOUND = {
    "start": "there is no model yet",
    "first step": "the model was bound before it",
    "mid backward": "the model was bound before it",
}

EVENTS = {
    "exception": Event((1,), FAILED + r"ValueError: bad row 17", "mid backward", at={"start": r"bad row 17.*" + f"(?:{GONE})"}),
    "exception in a thread": Event(
        (1,), FAILED + r"Exception in thread reader.*ValueError: bad row 17", "checkpoint", harmless=("start",),
        at={"start": r"Exception in thread reader"},
    ),
    "sys.exit": Event((87,), LEFT, "evaluation", at={"start": GONE}),
    "os._exit": Event((87,), LEFT, "checkpoint", at={"start": GONE}),
    "early return": Event((87,), LEFT, "start", at={"start": GONE}, impossible=NO_FRAME),
    "SIGKILL": Event((9, 137), r"EXIT CODE: 9|signal 9|Killed", "mid backward"),
    "SIGSTOP": Event((86,), LATE, "mid backward", DEADLINE, at={"start": STUCK}),
    "slow rank": Event((86,), LATE + r"failure_matrix\.py:\d+ in act", "evaluation", DEADLINE, at={"start": STUCK}),
    "Ctrl-C": Event((), quick="checkpoint"),
    "fork in a data worker": Event(
        (1,), r"this process was forked from rank 1 .*" + FAILED + r"RuntimeError: a data worker", "first step",
        harmless=("start",), at={"start": FULL},
    ),
    "model": Event(
        (1, 9), DIFFERS + r", but \"parameter 'fc2_weight'\" differs", impossible=BOUND,
        at={"checkpoint": FAILED + r"ShapeError: set_params: 'fc2_weight' must be"},
    ),
    "parameter order": Event(
        (1, 9), DIFFERS + r" entries in one order", harmless=("checkpoint",), impossible=BOUND,
        at={"checkpoint": FULL},
    ),
    "dtype": Event(
        (1, 9), DIFFERS + r", but \"input 'data'\" differs", harmless=("checkpoint",), impossible=BOUND,
        at={"checkpoint": FULL},
    ),
    "option": Event(
        (1, 9), DIFFERS + r", but \"node 'drop'\" differs", "first step",
        at={"first step": r"PlanMismatchError: the optimizer: .*'lr' differs"},
        impossible={**BOUND, "first step": "", "checkpoint": "it has no options"},
    ),
    "fewer batches": Event(
        (1, 9), DIFFERS + r", but 'batches an epoch' differs", "checkpoint", harmless=("evaluation",),
        at={
            "first step": r"different collectives: rank 0 waits in allreduce of gradient bucket 0 \(step 0\), rank 1 in ",
            "checkpoint": r"different collectives: rank 0 waits in allreduce of gradient bucket 0 \(step 7\), rank 1 in ",
            "evaluation": r"evaluated 88 rows",
        },
        impossible={"start": "there are no batches yet", "mid backward": "a batch is whole or not there"},
    ),
}  # fmt: skip


def cells() -> list[object]:
    found = []
    for (name, event), place in product(EVENTS.items(), PLACES):
        if not event.impossible.get(place):
            marks = [] if place == event.quick else [pytest.mark.full]
            found.append(pytest.param(name, place, marks=marks, id=f"{name}-{place}".replace(" ", "_")))
    return found


@pytest.mark.mpi
@pytest.mark.parametrize(("name", "place"), cells())
def test_the_job_ends_in_time_and_says_why(name: str, place: str, tmp_path: Path) -> None:
    event, (doing, waits) = EVENTS[name], PLACES[place]
    run = run_ranks(
        "failure_matrix.py", 3, name, place, tmp_path / "model.npz",
        timeout=90, env={"ARRAYEXEC_TIMEOUT": str(event.deadline)},
    )  # fmt: skip
    took = run.after("failing at")
    row = f"| {name} | {place} | {run.code} | {took:.1f} |\n"
    print(row)
    if os.environ.get("ARRAYEXEC_TABLE"):
        with open(os.environ["ARRAYEXEC_TABLE"], "a") as table:
            table.write(row)
    text = event.at.get(place, event.text).replace("{doing}", re.escape(doing)).replace("{waits}", waits)
    assert re.search(text, run.out + run.err, re.S), run.out + run.err
    if place in event.harmless:
        assert run.code == 0
        assert "evaluated" in run.out
        return
    assert "evaluated" not in run.out
    assert run.code != 0
    if event.codes and place != "start":
        assert run.code in event.codes
    allowed = event.deadline * (4 if place in FIRST else 1) if event.deadline == DEADLINE else 0
    assert took <= allowed + GRACE


def test_every_cell_that_is_left_out_has_a_reason() -> None:
    assert all(set(event.impossible) | set(event.at) | set(event.harmless) <= set(PLACES) for event in EVENTS.values())
    assert sum(1 for cell in cells()) == len(EVENTS) * len(PLACES) - 15
    assert all(event.quick in PLACES and not event.impossible.get(event.quick) for event in EVENTS.values())
