"""Replicas that drift apart are found, on demand and every so many steps."""

from __future__ import annotations

import re

import numpy as np
import pytest

import arrayexec as ax
from arrayexec.errors import InconsistentReplicaError
from arrayexec.parallel.consistency import check_replicas
from tests.parallel.mpi_helper import run_ranks


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("how", "devices", "steps"),
    # an update gives what the leading device has to the other one
    [("lead", [0], 6), ("another device", [1], 6), ("every second step", [0, 1], 4)],
)
def test_one_bit_on_one_rank_is_found(how: str, devices: list[int], steps: int) -> None:
    run = run_ranks("drift.py", 3, how)
    assert run.code != 0
    text = run.complaint()
    assert f"InconsistentReplicaError: replicas must hold the same, but 'fc2_weight' differs after {steps} steps" in text
    rows = {(int(r), int(d)): digest for r, d, digest in re.findall(r"    rank (\d) cpu\((\d)\)  ([0-9a-f]{16})\n", text)}
    assert list(rows) == [(rank, device) for rank in range(3) for device in range(2)]
    odd = [place for place, digest in rows.items() if digest != rows[0, 0]]
    assert odd == [(2, device) for device in devices]
    assert len(set(rows.values())) == 2


def test_devices_of_one_process() -> None:
    same = {"a": np.arange(3.0), "b": np.ones(2, np.float32)}
    other = {"a": np.arange(3.0), "b": np.array([1, np.nextafter(np.float32(1), np.float32(2))], np.float32)}
    check_replicas({"cpu(0)": same, "cpu(1)": dict(reversed(same.items()))}, None, "here")
    with pytest.raises(InconsistentReplicaError) as caught:
        check_replicas({"cpu(0)": same, "cpu(1)": other}, None, "after 3 steps")
    lines = str(caught.value).splitlines()
    assert lines[0] == "replicas must hold the same, but 'b' differs after 3 steps"
    assert [line.split()[0] for line in lines[1:]] == ["hashes:", "cpu(0)", "cpu(1)", "something"]
    with pytest.raises(InconsistentReplicaError, match="rank 0 cpu"):
        check_replicas({"cpu(0)": same, "cpu(1)": other}, ax.comm.init("local"), "after 3 steps")
