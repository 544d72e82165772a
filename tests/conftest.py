"""Markers that skip with a reason, and one set of Hypothesis settings."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent

try:
    import hypothesis
except ImportError:
    pass
else:
    # The same examples in every run; the long tier looks at more of them.
    for name, examples in (("short", 25), ("full", 400)):
        hypothesis.settings.register_profile(
            name,
            max_examples=examples,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=[hypothesis.HealthCheck.too_slow],
        )
    hypothesis.settings.load_profile("full" if os.environ.get("ARRAYEXEC_FULL") else "short")


def why_no_mpi() -> str:
    """Why ranks cannot be started here, or an empty text."""
    if importlib.util.find_spec("mpi4py") is None:
        return "mpi4py is not installed"
    beside = Path(sys.executable).parent / "mpirun"
    if not beside.exists() and shutil.which("mpirun") is None:
        return "there is no mpirun"
    return ""


def why_no_gpu() -> str:
    """Why no GPU can be used here, or an empty text."""
    from arrayexec.context import gpu
    from arrayexec.errors import BackendUnavailableError

    try:
        gpu(0).synchronize()
    except BackendUnavailableError as error:
        return str(error).partition("\n")[0]
    return ""


def why_not_full() -> str:
    """Why the long tier does not run, or an empty text."""
    return "" if os.environ.get("ARRAYEXEC_FULL") else "long tier: set ARRAYEXEC_FULL=1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip marked tests whose needs are not met, each with the reason."""
    for marker, why in (("mpi", why_no_mpi), ("gpu", why_no_gpu), ("full", why_not_full)):
        marked = [item for item in items if item.get_closest_marker(marker)]
        reason = why() if marked else ""
        if reason:
            for item in marked:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def seed() -> None:
    """Every test starts with the seed that a program starts with, whatever the one before it set."""
    streams = sys.modules.get("arrayexec.streams")
    if streams is not None:
        streams.seed(0)


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the source tree."""
    return ROOT


@pytest.fixture
def subprocess_env() -> dict[str, str]:
    """An environment in which a child process finds the same arrayexec as this one."""
    import arrayexec

    home = str(Path(arrayexec.__file__).resolve().parent.parent)
    paths = [home, os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


@pytest.fixture
def gpus() -> Iterator[list[Any]]:
    """Three GPUs of the tests, which NCCL joins."""
    from arrayexec import gpu
    from tests.parallel import fake_nccl

    remove = fake_nccl.install(3)
    yield [gpu(i) for i in range(3)]
    remove()
