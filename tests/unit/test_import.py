"""What ``import arrayexec`` costs and brings in."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

LIMIT_MS = 50

PROGRAM = """
import sys, time
import numpy
before, start = set(sys.modules), time.perf_counter()
import arrayexec
seconds = time.perf_counter() - start
import json
print(json.dumps([seconds * 1000, sorted(set(sys.modules) - before)]))
"""


def measure(environment: dict[str, str]) -> tuple[float, list[str]]:
    """Milliseconds that the import takes on top of NumPy's, and the modules that it adds."""
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert run.stderr == ""
    milliseconds, modules = json.loads(run.stdout)
    return milliseconds, modules


def test_import_brings_in_numpy_and_the_standard_library(subprocess_env: dict[str, str]) -> None:
    _, modules = measure(subprocess_env)
    rooms = {name.partition(".")[0] for name in modules}
    assert "arrayexec" in rooms
    assert rooms - {"arrayexec", "numpy"} - sys.stdlib_module_names == set()


def test_import_leaves_operator_families_alone(subprocess_env: dict[str, str]) -> None:
    _, modules = measure(subprocess_env)
    families = {name for name in modules if name.startswith("arrayexec.ops.")}
    assert not families, "a family of operators is imported when one of its names is first used"


def test_import_is_quick(subprocess_env: dict[str, str]) -> None:
    measure(subprocess_env)  # writes the byte code
    medians = []
    for _ in range(4):  # another program may have the processor: only the best round counts
        medians.append(statistics.median(measure(subprocess_env)[0] for _ in range(5)))
        if medians[-1] <= LIMIT_MS:
            break
    assert min(medians) <= LIMIT_MS, f"medians of {medians} ms on top of NumPy's own time"
