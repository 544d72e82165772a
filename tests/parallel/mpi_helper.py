"""Run a script of ``tests/parallel/scripts`` on several ranks of a real MPI, with a hard time limit."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import arrayexec

SCRIPTS = Path(__file__).resolve().parent / "scripts"


@dataclass(frozen=True)
class Run:
    """How a job ended."""

    code: int
    out: str
    err: str
    seconds: float
    ended: float  # time.time()

    def after(self, text: str) -> float:
        """Seconds from the moment that a rank printed as ``text <time.time()>`` to the end of the job."""
        times = re.findall(rf"{re.escape(text)} ([\d.]+)", self.err)
        assert times, self.err
        return self.ended - min(map(float, times))

    def complaint(self) -> str:
        """What our side wrote about a failure: without the frames of tracebacks and the launcher's words."""
        ours, inside, quoting = list[str](), False, False
        # other ranks may speak in the middle of a traceback
        for line in re.sub(r"failing at [\d.]+\n", "", self.err).splitlines():
            if line.startswith("arrayexec: rank"):
                inside = True
            elif line.startswith(("Abort(", "=====", "prterun", "------")):
                inside = False
            quoting = quoting and line.startswith("  ")
            if inside and line and not quoting:
                ours.append(line)
            quoting = quoting or line.startswith("Traceback")
        return "\n".join(ours)


def find_mpirun() -> str | None:
    """The mpirun beside this Python, else that of the path."""
    beside = Path(sys.executable).parent / "mpirun"
    return str(beside) if beside.exists() else shutil.which("mpirun")


def run_ranks(
    script: str,
    ranks: int,
    *arguments: object,
    timeout: float = 60,
    env: dict[str, str] | None = None,
    before: Sequence[str] = (),
    options: Sequence[str] = (),
) -> Run:
    """Run ``scripts/<script>`` under ``mpirun -n ranks``; fails the test if it takes longer than ``timeout``.

    ``before``: what runs mpirun. ``options``: of mpirun.
    """
    mpirun = find_mpirun()
    assert mpirun is not None, "tests that start ranks carry the marker mpi"
    home = str(Path(arrayexec.__file__).resolve().parent.parent)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH", "")))),
        "PYTHONWARNINGS": "error",
        "ARRAYEXEC_TIMEOUT": "5",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        # Open MPI refuses root and more ranks than cores otherwise; MPICH needs nothing.
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_osc": "^ucx",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        **(env or {}),
    }
    # LAUNCHER: its process group, for what a terminal does
    shell = ["sh", "-c", 'LAUNCHER=$$ exec "$@"', "sh"]
    program = [sys.executable, str(SCRIPTS / script), *map(str, arguments)]
    command = [*shell, *before, mpirun, *options, "-n", str(ranks), *program]
    begin = time.monotonic()
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    ) as job:
        try:
            out, err = job.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            # The launcher passes SIGTERM on to the ranks and then kills them.
            for end in (signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(job.pid, end)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    job.wait(3)
            out, err = job.communicate()
            raise AssertionError(
                f"{script} on {ranks} ranks did not end in {timeout} s\n{out[-2000:]}\n{err[-4000:]}"
            ) from None
        ended = time.time()
    return Run(job.returncode, out, err, time.monotonic() - begin, ended)
