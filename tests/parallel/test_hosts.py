"""Several hosts: network namespaces on one machine, with names, shared memory and links of their own, two ranks each."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.parallel.mpi_helper import Run, find_mpirun, run_ranks
from tests.parallel.training import TRAININGS, Trainer

DEADLINE, GRACE = 4.0, 5.0
UNSHARE = ["unshare", "-nmp" if os.geteuid() == 0 else "-Urnmp", "--fork", "--kill-child"]
TRY = """set -e
mount -t tmpfs none /run
mkdir /run/netns
ip netns add h1
ip link add bridge type bridge
ip link add link1 type veth peer name eth0 netns h1
nsenter --net=/run/netns/h1 unshare -umip --fork --mount-proc hostname h1
"""
SLOW = "netem delay 2ms rate 1gbit", "tbf rate 200mbit burst 64kbit latency 100ms"


@functools.cache
def why_no_hosts() -> str:
    """Why no hosts can be made here, or an empty text."""
    missing = [name for name in ("unshare", "nsenter", "ip") if shutil.which(name) is None]
    if missing:
        return f"hosts are namespaces, and there is no {missing[0]}"
    done = subprocess.run([*UNSHARE, "sh", "-c", TRY], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20)
    return f"hosts are namespaces: {done.stderr.strip().splitlines()[-1]}" if done.returncode else ""


@functools.cache
def shapes() -> str:
    """What this kernel can do to a link, the best first; empty where ``tc`` can do nothing."""
    for shape in SLOW if shutil.which("tc") else ():
        link = "ip link add link1 type veth peer name link2 && tc qdisc add dev link1 root "
        if not subprocess.run([*UNSHARE, "sh", "-c", link + shape], capture_output=True, timeout=20).returncode:
            return shape
    return ""


@pytest.fixture(autouse=True)
def _hosts() -> None:
    if why_no_hosts():
        pytest.skip(why_no_hosts())


pytestmark = pytest.mark.mpi


def run_hosts(script: str, hosts: int, *arguments: object, shape: str = "", **options: float) -> Run:
    """Run a script with two ranks on each of several hosts, from another one."""
    names = [f"h{i}" for i in range(1, hosts + 1)]
    mpirun = Path(str(find_mpirun()))
    if (mpirun.parent / "mpiexec.hydra").exists():
        how = ["-localhost", "h0", "-launcher", "ssh", "-launcher-exec", "ENTER", "-ppn", "2", "-hosts", ",".join(names)]
    else:
        how = ["--prtemca", "plm_ssh_agent", "ENTER", "--host", ",".join(f"{name}:2" for name in names)]
        kept = ("PYTHONPATH", "PYTHONWARNINGS", "ARRAYEXEC_TIMEOUT", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OMPI_MCA_osc")
        how += [word for name in kept for word in ("-x", name)]
    lab = [*UNSHARE, sys.executable, str(Path(__file__).with_name("hosts.py")), str(hosts), shape]
    return run_ranks(script, 2 * hosts, *arguments, before=lab, options=how, env={"ARRAYEXEC_TIMEOUT": str(DEADLINE)}, **options)


def errors(run: Run) -> str:
    """What was written of errors, but for the remarks of Open MPI on process groups."""
    return "".join(line for line in run.err.splitlines(True) if "Warning: setpgid" not in line)


def test_cutting_a_link_ends_the_job_and_names_the_host() -> None:
    run = run_hosts("cut.py", 2, "cut h2")
    took = run.after("failing at")
    print(f"{took:.1f} s, exit code {run.code}")
    assert run.code != 0
    assert "trained" not in run.out
    lost = r"CollectiveTimeoutError: ranks 2-3 \(all of host h2\) are missing in allreduce of gradient bucket 0 \(step 3\)"
    assert re.search(lost, run.err), run.err
    assert re.search(r"waiting +ranks 0-1\n.*\n    last seen of rank 3 ", run.err), run.err
    assert "see whether that host runs and can be reached" in run.err
    assert took <= DEADLINE + GRACE


@pytest.mark.full
def test_cutting_one_of_three_hosts_names_that_one() -> None:
    run = run_hosts("cut.py", 3, "cut h3", timeout=90)
    took = run.after("failing at")
    print(f"{took:.1f} s, exit code {run.code}")
    assert run.code != 0
    assert re.search(r"ranks 4-5 \(all of host h3\) are missing in allreduce of gradient bucket 0 \(step 3\)", run.err), run.err
    assert took <= DEADLINE + GRACE


def test_the_same_without_a_cut() -> None:
    run = run_hosts("cut.py", 2, "")
    assert (run.code, run.out, errors(run)) == (0, "trained\n", errors(run))


def equal_to_one_host(run: Run, path: Path) -> None:
    assert run.code == 0, run.err
    with np.load(path) as archive:
        found = dict(archive)
    ranks = 4 if "hosts=2" in path.name else 6
    for name, training in TRAININGS.items():
        alone = training(Trainer(None, ranks if name == "norm" else 1))  # norms are of a rank's own rows
        for parameter, want in alone.items():
            difference = np.abs(found[f"{name}/{parameter}"] - want).max()
            assert difference <= 1e-5 * np.abs(want).max(), (name, parameter)


@pytest.mark.full
@pytest.mark.parametrize("hosts", [2, 3])
@pytest.mark.parametrize("slow", [False, True])
def test_training_on_hosts_equals_training_alone(hosts: int, slow: bool, tmp_path: Path) -> None:
    if slow and not shapes():
        pytest.skip("tc of this kernel can neither delay nor limit")
    path = tmp_path / f"hosts={hosts}.npz"
    run = run_hosts("trainings.py", hosts, path, 1, shape=shapes() if slow else "", timeout=240)
    print(f"{hosts} hosts, {shapes() if slow else 'no limit'}: {run.seconds:.1f} s")
    equal_to_one_host(run, path)
