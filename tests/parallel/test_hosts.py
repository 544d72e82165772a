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


def hydra() -> bool:
    """Whether mpirun is that of MPICH; else it is taken for Open MPI's."""
    return (Path(str(find_mpirun())).parent / "mpiexec.hydra").exists()


def run_hosts(script: str, hosts: int, *arguments: object, shape: str = "", **options: float) -> Run:
    """Run a script with two ranks on each of several hosts, from another one."""
    names = [f"h{i}" for i in range(1, hosts + 1)]
    if hydra():
        how = ["-localhost", "h0", "-launcher", "ssh", "-launcher-exec", "ENTER", "-ppn", "2", "-hosts", ",".join(names)]
    else:
        how = ["--prtemca", "plm_ssh_agent", "ENTER", "--map-by", "ppr:2:node:oversubscribe"]
        how += ["--host", ",".join(f"{name}:2" for name in names)]
        kept = ("PYTHONPATH", "PYTHONWARNINGS", "ARRAYEXEC_TIMEOUT", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OMPI_MCA_osc")
        how += [word for name in kept for word in ("-x", name)]
    lab = [*UNSHARE, sys.executable, str(Path(__file__).with_name("hosts.py")), str(hosts), shape]
    return run_ranks(script, 2 * hosts, *arguments, before=lab, options=how, env={"ARRAYEXEC_TIMEOUT": str(DEADLINE)}, **options)


@pytest.mark.parametrize("hosts", [2, pytest.param(3, marks=pytest.mark.full)])
def test_cutting_a_link_ends_the_job_and_names_the_host(hosts: int, tmp_path: Path) -> None:
    run = run_hosts("cut.py", hosts, f"cut h{hosts}", tmp_path)
    took, err = run.after("failing at"), run.err
    print(f"{hosts} hosts: {took:.1f} s, exit code {run.code}")
    assert run.code != 0
    assert "trained" not in run.out
    assert took <= DEADLINE + GRACE
    # A rank that did not get the end of a collective before the cut is missing in the next one, too.
    missing = r"CollectiveTimeoutError: ranks [\d, -]+ \(all of host{}\) are missing in allreduce of [\w ]+ \(step \d\)"
    assert re.search(missing.format(f" h{hosts}"), err), err
    first = 2 * hosts - 2  # rank on the lost host
    assert re.search(rf"waiting +ranks? 0.*\n(.*\n)*    last seen of rank {first + 1} ", err), err
    assert "see whether that host runs and can be reached" in err
    # That host cannot tell anybody, but its ranks end, too.
    others = "s h1, h2" if hosts == 3 else " h1"
    texts = [path.read_text() for path in tmp_path.iterdir()]
    assert any(re.search(missing.format(others), text) for text in texts), texts


@pytest.mark.full
def test_the_same_without_a_cut(tmp_path: Path) -> None:
    run = run_hosts("cut.py", 2, "", tmp_path)
    assert (run.code, run.out) == (0, "trained\n"), run.out + run.err


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
