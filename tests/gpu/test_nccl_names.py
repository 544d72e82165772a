"""The CuPy wheel's NCCL without a driver: the names and signatures that the engine and the tests' fake have, refusals.

Skipped where CuPy is not installed; signatures need the NCCL wheel beside it. Nothing here needs a card.
"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pytest

from arrayexec.comm import nccl as ours
from tests.parallel import fake_nccl

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed", exc_type=ImportError)
    from cupy.cuda import nccl

with_library = pytest.mark.skipif(not nccl.available, reason="CuPy finds no NCCL library")
without_gpu = pytest.mark.skipif(cupy.cuda.is_available(), reason="there is a GPU here")


def test_streams_events_and_pinned_memory_have_what_nccl_needs() -> None:
    wanted = {
        cupy.cuda.Stream: ("ptr", "record", "wait_event"),
        cupy.cuda.Event: ("done",),
        cupy.cuda.Device: ("pci_bus_id",),
        cupy.cuda: ("alloc_pinned_memory", "get_current_stream"),
    }
    for where, names in wanted.items():
        # the number of a stream is there once it is made
        missing = [name for name in names if not hasattr(where, name) and name != "ptr"]
        assert missing == []
    assert "out" in inspect.signature(cupy.asnumpy).parameters


def of_cython(function: Any) -> list[str]:
    """The names of the parameters of a Cython function, which stand in the first line of its docstring."""
    first = function.__doc__.partition("\n")[0]
    inside = re.fullmatch(r"[\w.]+\((.*)\)", first).group(1)  # type: ignore[union-attr]
    return [part.split("=")[0].split()[-1] for part in inside.split(",") if part.strip()]


@with_library
@pytest.mark.parametrize("name", ["allReduce", "broadcast", "check_async_error", "abort", "initAll"])
def test_the_fake_has_the_signatures_of_the_wheel(name: str) -> None:
    fake = inspect.signature(getattr(fake_nccl.NcclCommunicator, name)).parameters
    assert of_cython(getattr(nccl.NcclCommunicator, name)) == list(fake)


@with_library
def test_the_fake_is_made_and_grouped_as_that_of_the_wheel() -> None:
    fake = list(inspect.signature(fake_nccl.NcclCommunicator).parameters)
    assert of_cython(nccl.NcclCommunicator) == fake
    for name in ("groupStart", "groupEnd", "get_unique_id"):
        assert of_cython(getattr(nccl, name)) == list(inspect.signature(getattr(fake_nccl, name)).parameters)
    assert issubclass(nccl.NcclError, RuntimeError)
    given = nccl.get_unique_id()  # works without a GPU
    assert (type(given), len(given)) == (type(fake_nccl.get_unique_id()), 128)


@with_library
def test_types_have_the_numbers_that_the_fake_knows() -> None:
    for name, number in fake_nccl._NUMBERS.items():
        assert getattr(nccl, f"NCCL_{name.upper()}") == number
    assert nccl.NCCL_SUM == 0
    for kind, known in (("f2", "FLOAT16"), ("f4", "FLOAT32"), ("f8", "FLOAT64"), ("i1", "INT8"), ("u1", "UINT8"), ("i4", "INT32"), ("q", "INT64")):
        assert ours._element(np.dtype(kind)) == (getattr(nccl, f"NCCL_{known}"), 1)
    assert ours._element(np.dtype("c8")) == (nccl.NCCL_FLOAT32, 2)
    assert ours._element(np.dtype("c16")) == (nccl.NCCL_FLOAT64, 2)
    assert [ours._element(np.dtype(kind))[0] for kind in ("h", "H", "g", "G")] == [None] * 4
    # what NCCL does not sum goes through host memory
    assert not any(hasattr(nccl, f"NCCL_{name}") for name in ("INT16", "UINT16", "FLOAT128", "BOOL"))


@without_gpu
def test_refusals_say_why(subprocess_env: dict[str, str]) -> None:
    program = """
import arrayexec as ax
from arrayexec.comm.nccl import DeviceGroup, why_not
from arrayexec.errors import BackendUnavailableError
print(why_not())
try:
    DeviceGroup([ax.gpu(0)])
except BackendUnavailableError as error:
    print(error)
"""
    environment = {key: value for key, value in subprocess_env.items() if key != "ARRAYEXEC_DEVICE"}
    found = subprocess.run([sys.executable, "-W", "error::UserWarning", "-c", program], env=environment, capture_output=True, text=True, timeout=120)
    assert (found.returncode, found.stderr) == (0, "")
    why, first, *_ = found.stdout.splitlines()
    assert why.startswith("CUDARuntimeError: cudaError")
    assert first == f"gpu(0) cannot be used: {why}"


def test_a_missing_library_is_no_warning_but_a_reason(subprocess_env: dict[str, str]) -> None:
    program = """
import sys
from arrayexec import context
from arrayexec.comm import nccl
context.num_gpus = lambda: 1
print(nccl.why_not() in ("", "CuPy finds no NCCL library"), nccl._nccl().available)
"""
    found = subprocess.run([sys.executable, "-W", "error", "-c", program], env=subprocess_env, capture_output=True, text=True, timeout=120)
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout == f"True {nccl.available}\n"
