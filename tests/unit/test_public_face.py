"""The names of the package: each leads somewhere, or says that its part is not there."""

from __future__ import annotations

import inspect

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


@pytest.mark.parametrize("name", [name for name in dir(ax) if name not in NOT_YET and not name.startswith("_")])
def test_names_are_documented(name: str) -> None:
    assert inspect.getdoc(getattr(ax, name))


def test_error_classes_are_found() -> None:
    assert ax.ShapeError is ax.errors.ShapeError
    assert issubclass(ax.BucketError, ax.ArrayExecError)
