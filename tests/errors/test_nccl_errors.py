"""Every refusal of NCCL's communicator and group: its whole text, on the tests' fake NCCL and with ranks that are made up.

The texts stand in ``texts_nccl.txt``; how they are recorded: ``recorder.py``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

import arrayexec as ax
from arrayexec.comm import guard, nccl
from arrayexec.comm.nccl import DeviceGroup, NCCLCommunicator
from tests.errors.recorder import PACKAGE, Recorder, checks_of
from tests.parallel import fake_nccl

RECORDER = Recorder(Path(__file__).parent / "texts_nccl.txt", [PACKAGE / "comm" / "nccl.py"])
cases = RECORDER.cases


def faked(call: Callable[[], Any], gpus: int = 3, available: bool = True, **faults: bool) -> Callable[[], Any]:
    """A case with so many fake GPUs."""

    def made() -> None:
        remove = fake_nccl.install(gpus, available)
        try:
            vars(fake_nccl.faults).update(faults)
            call()
        finally:
            remove()

    return made


def zeros(number: int, *dims: int, dtype: Any = np.float32) -> Any:
    return ax.gpu(number).zeros(dims or (2,), dtype, "gradient")


def group(*numbers: int) -> DeviceGroup:
    return DeviceGroup([ax.gpu(number) for number in numbers])


# --- groups of devices -----------------------------------------------------------------------------------------------


def switched_off() -> None:
    with mock.patch.dict(os.environ, ARRAYEXEC_DEVICE="cpu"):
        group(0)


cases(
    group_of_none=lambda: DeviceGroup([]),
    group_of_one_twice=lambda: group(0, 0),
    group_of_processors=lambda: DeviceGroup([ax.cpu(0), ax.cpu(1)]),
    group_without_gpus=switched_off,
    group_without_library=faked(lambda: group(0, 1), available=False),
    group_refused=faked(lambda: group(0, 1), refused_meeting=True),
)


def late() -> None:
    made = group(0, 1)
    made.allreduce([zeros(0), zeros(1)])
    made.wait(0.01)


def after_that() -> None:
    made = group(0)
    try:
        made.allreduce([zeros(0)])
        made.wait(0.01)
    except Exception:
        made.broadcast([zeros(0)])


def wait_after_that() -> None:
    made = group(0)
    made.allreduce([zeros(0)])
    try:
        made.wait(0.01)
    except Exception:
        made.wait(0.01)


def error_that_came_later() -> None:
    made = group(0)
    made.allreduce([zeros(0)])
    made.wait()


cases(
    group_root=faked(lambda: group(0, 1).broadcast([zeros(0), zeros(1)], 2)),
    group_count=faked(lambda: group(0, 1).allreduce([zeros(0)])),
    group_place=faked(lambda: group(0, 1).allreduce([zeros(0), zeros(0)])),
    group_unlike=faked(lambda: group(0, 1).allreduce([zeros(0), zeros(1, 3)])),
    group_strided=faked(lambda: group(0).allreduce([zeros(0, 4, 4)[:, ::2]])),
    group_type=faked(lambda: group(0).allreduce([zeros(0, dtype=np.int16)])),
    group_flags=faked(lambda: group(0).allreduce([zeros(0, dtype=bool)])),
    group_late=faked(late, stuck=True),
    group_after_a_failure=faked(after_that, stuck=True),
    group_wait_after_a_failure=faked(wait_after_that, stuck=True),
    group_launch=faked(lambda: group(0).allreduce([zeros(0)]), refused_launch=True),
    group_error_later=faked(error_that_came_later, late_error=True),
)

# --- ranks -----------------------------------------------------------------------------------------------------------


def ranks(required: bool = True, **others: str) -> NCCLCommunicator:
    """Rank 0 of two; ``others``: what rank 1 says where that is different."""
    made = object.__new__(NCCLCommunicator)
    link = SimpleNamespace(rank=0, size=2, collect=list, threaded=False)
    vars(made).update(
        rank=0, size=2, where="step 1", seconds=0.0, _timeout=5.0, _factor=1, _required=required, _channels={},
        _guard=guard.Guard(link, str), _mpi=SimpleNamespace(Exception=OSError), why_staged="",
        allgather_object=lambda mine, what: [mine, {**mine, "device": "GPU 0000:01:00.0 of node7", **others}],
    )  # fmt: skip
    return made


def meet(required: bool = True, **others: str) -> None:
    with mock.patch.object(nccl.socket, "gethostname", return_value="node6"):
        ranks(required, **others)._open(ax.gpu(0))


def launch() -> None:
    made = ranks()
    vars(made).update(size=1, allgather_object=lambda mine, what: [mine])
    made._channels[ax.gpu(0)] = made._open(ax.gpu(0))
    fake_nccl.faults.refused_launch = True
    made._begin(zeros(0), None, None)


cases(
    rank_without_library=faked(lambda: meet(why="CuPy finds no NCCL library")),
    rank_with_the_same_gpu=faked(lambda: meet(device="GPU 0000:01:00.0 of node6")),
    rank_without_id=faked(meet, refused_id=True),
    rank_refused=faked(meet, refused_meeting=True),
    rank_launch=faked(launch),
)


def test_ranks_without_nccl_are_no_error_unless_it_is_required() -> None:
    def stage() -> None:
        made = ranks(required=False, why="CuPy finds no NCCL library")
        assert made._open(ax.gpu(0)) is None
        assert made.why_staged.startswith("NCCL cannot carry arrays of GPUs among the ranks: CuPy finds no NCCL library\n")

    faked(stage)()


(
    found, test_text, test_no_text_is_left_over, test_every_refusal_is_reached,
    test_what_is_held_elsewhere_is_there,
) = checks_of(RECORDER)  # fmt: skip
