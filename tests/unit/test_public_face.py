"""The names of the package: each leads somewhere, or says that its part is not there."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys

import pytest

import arrayexec as ax

NOT_YET = {
    "ModelHelper", "kv", "kvstore", "mod", "model", "module", "parallelize", "parallelize_bmuf",
    "parallelize_cpu", "parallelize_gpu", "parallelize_ideep",
}  # fmt: skip
"""Names whose modules later work brings; exactly these."""


def leads(name: str) -> bool:
    try:
        getattr(ax, name)
    except AttributeError as error:
        assert "is not part of this installation: no module" in str(error)
        return False
    return True


def test_every_name_leads_somewhere() -> None:
    assert {name for name in dir(ax) if not leads(name)} == NOT_YET


def test_modules_are_imported_under_their_public_names(subprocess_env: dict[str, str]) -> None:
    program = f"""
import importlib, sys
for name in {sorted(set(ax._MODULES) - NOT_YET)}:
    first = importlib.import_module("arrayexec." + name)
    assert first is getattr(sys.modules["arrayexec"], name) is sys.modules["arrayexec." + name], name
    assert first is sys.modules[first.__name__] and first.__spec__.name == first.__name__, name
"""
    subprocess.run([sys.executable, "-W", "error", "-c", program], env=subprocess_env, check=True, timeout=60)


def test_names_are_imported_from_modules() -> None:
    from arrayexec.executor_manager import DataParallelExecutorManager, _split_input_slice  # the seed's names

    assert DataParallelExecutorManager is ax.executor_manager.DataParallelExecutorManager
    assert _split_input_slice(4, [1, 1]) == [slice(0, 2), slice(2, 4)]
    with pytest.raises(ModuleNotFoundError, match="arrayexec.nobody"):
        importlib.import_module("arrayexec.nobody")


@pytest.mark.parametrize("name", [name for name in dir(ax) if name not in NOT_YET and not name.startswith("_")])
def test_names_are_documented(name: str) -> None:
    assert inspect.getdoc(getattr(ax, name))


def test_error_classes_are_found() -> None:
    assert ax.ShapeError is ax.errors.ShapeError
    assert issubclass(ax.BucketError, ax.ArrayExecError)
