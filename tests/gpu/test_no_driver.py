"""The CuPy wheel on a machine without an NVIDIA driver: import, detection, refusal, and names that exist.

Skipped where CuPy is not installed. Nothing here needs a card; `run.py` beside this file does.
"""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import arrayexec
from tests.strict_device import MISSING, MISSING_KEYWORDS, UFUNC_METHODS

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed", exc_type=ImportError)

PACKAGE = Path(arrayexec.__file__).resolve().parent


def run(program: str, environment: dict[str, str], **more: str) -> str:
    """The output of a program that must neither fail nor say anything on stderr."""
    found = subprocess.run(
        [sys.executable, "-W", "error::UserWarning:arrayexec", "-c", program],
        env={**environment, **more},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (found.returncode, found.stderr) == (0, "")
    return found.stdout


def test_import_does_not_touch_cupy(subprocess_env: dict[str, str]) -> None:
    program = """
import sys, arrayexec
from arrayexec.context import gpu, num_gpus
gpu(0), gpu(1) == gpu(1), repr(gpu(0))
print('cupy' in sys.modules)
"""
    assert run(program, subprocess_env) == "False\n"


def test_gpus_switched_off(subprocess_env: dict[str, str]) -> None:
    program = """
import sys
from arrayexec.context import gpu, num_gpus
print(num_gpus(), 'cupy' in sys.modules)
"""
    assert run(program, subprocess_env, ARRAYEXEC_DEVICE="cpu") == "0 False\n"


@pytest.mark.skipif(cupy.cuda.is_available(), reason="there is a GPU here")
def test_refusal_says_why(subprocess_env: dict[str, str]) -> None:
    program = """
import time
import numpy
from arrayexec.context import gpu, num_gpus
from arrayexec.errors import BackendUnavailableError
print(num_gpus())
start = time.perf_counter()
for use in (lambda: gpu(0).zeros((2,), numpy.float32, 'arena'), lambda: gpu(0).enter(), lambda: gpu(0).xp):
    try:
        use()
    except BackendUnavailableError as error:
        print(error)
print(time.perf_counter() - start < 1)
"""
    environment = {key: value for key, value in subprocess_env.items() if key != "ARRAYEXEC_DEVICE"}
    number, *refusals, quick = run(program, environment).splitlines()
    assert (number, quick) == ("0", "True")
    assert len(refusals) == 12
    assert refusals[:4] == refusals[4:8] == refusals[8:]
    first, needed, install, instead = refusals[:4]
    assert first.startswith("gpu(0) cannot be used: CUDARuntimeError: cudaError")
    assert "NVIDIA driver" in needed
    assert 'pip install "arrayexec[cuda12]"' in install
    assert instead == "  or run on the processor: arrayexec.cpu()"


def dotted(node: ast.AST) -> str:
    """``a.b.c`` of an attribute chain that starts at a name, else an empty text."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def namespace_uses() -> Iterator[tuple[str, str, frozenset[str]]]:
    """(where, name, keywords) of each use of the array namespace in the package."""
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        calls = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
        for node in ast.walk(tree):
            chain = dotted(node) if isinstance(node, ast.Attribute) else ""
            for prefix in ("self.xp.", "cupy.", "xp."):
                if chain.startswith(prefix):
                    call = calls.get(id(node))
                    keywords = frozenset(word.arg for word in call.keywords if word.arg) if call else frozenset()
                    yield f"{path.name}:{node.lineno}", chain.removeprefix(prefix), keywords
                    break


def resolve(module: object, name: str) -> object:
    for part in name.split("."):
        module = getattr(module, part)
    return module


def test_every_name_that_is_used_exists() -> None:
    uses = list(namespace_uses())
    assert any(name == "cuda.Stream" for _, name, _ in uses)
    missing, unknown = [], []
    for where, name, keywords in uses:
        try:
            function = resolve(cupy, name)
        except AttributeError:
            missing.append(f"{where}: {name}")
            continue
        try:
            parameters = inspect.signature(function).parameters  # type: ignore[arg-type]
        except (TypeError, ValueError):
            continue
        if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            unknown += [f"{where}: {name}({word}=)" for word in keywords - set(parameters)]
    assert missing == []
    assert unknown == []


def test_streams_events_and_pinned_memory_have_the_methods_we_call() -> None:
    wanted = {
        "cuda.Stream": ("record", "wait_event", "synchronize", "__enter__", "__exit__"),
        "cuda.Event": ("synchronize",),
        "cuda.Device": ("id", "__enter__", "__exit__"),
        "cuda.MemoryPointer": ("ptr", "copy_from_host_async", "__add__"),
        "ndarray": ("data", "device", "flags", "view", "reshape", "dtype", "fill"),
    }
    for name, methods in wanted.items():
        kind = resolve(cupy, name)
        assert [method for method in methods if not hasattr(kind, method)] == []
    # context.py compares the caller's stream with its own by ==, which must compare the streams, not the objects
    assert cupy.cuda.Stream.__eq__ is not object.__eq__


def test_the_strict_device_lacks_what_cupy_lacks() -> None:
    for path in MISSING:
        with pytest.raises(AttributeError):
            resolve(cupy, path)
    for name, keywords in MISSING_KEYWORDS.items():
        try:
            parameters = set(inspect.signature(resolve(cupy, name)).parameters)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            continue
        assert parameters & keywords == set(), name
    functions = [
        name
        for name in dir(np)
        if not name.startswith("_") and callable(getattr(np, name)) and not isinstance(getattr(np, name), type)
    ]
    not_computing = {"get_include", "info", "test", "show_runtime", "setbufsize", "getbufsize", "seterrcall", "geterrcall"}
    dates_and_files = {"busday_count", "busday_offset", "is_busday", "isnat", "datetime_as_string", "datetime_data", "fromregex", "polyder"}
    for name in functions:
        if not hasattr(cupy, name):
            assert name in MISSING | not_computing | dates_and_files, f"CuPy has no {name}"
    for names in UFUNC_METHODS.values():
        assert all(isinstance(getattr(cupy, name), cupy.ufunc) for name in names)

