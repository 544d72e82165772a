"""What ``pip install`` is told."""

from __future__ import annotations

import configparser
import re
import subprocess
from pathlib import Path

import pytest

import arrayexec

PACKAGE = Path(arrayexec.__file__).resolve().parent
EXTRAS = {"mpi", "jit", "bf16", "cuda12", "cuda13", "images", "examples", "test", "docs", "dev"}


@pytest.fixture
def config(root: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(delimiters=("=",))
    parser.read(root / "setup.cfg")
    return parser


def requirements(text: str) -> dict[str, str]:
    """``name: the rest`` of each requirement."""
    lines = [line.strip() for line in text.splitlines()]
    return dict(re.fullmatch(r"([\w-]+)(.*)", line).groups() for line in lines if line)  # type: ignore[union-attr]


def test_core_needs_numpy_alone(config: configparser.ConfigParser) -> None:
    assert requirements(config["options"]["install_requires"]) == {"numpy": ">=2"}
    assert config["options"]["python_requires"] == ">=3.11"
    versions = re.findall(r"Python :: (3\.\d+)", config["metadata"]["classifiers"])
    assert versions == ["3.11", "3.12", "3.13", "3.14"]


def test_extras(config: configparser.ConfigParser) -> None:
    extras = {name: requirements(text) for name, text in config["options.extras_require"].items()}
    assert set(extras) == EXTRAS
    assert set(extras["mpi"]) == {"mpi4py", "mpich"}
    assert set(extras["jit"]) == {"numba"}
    assert set(extras["images"]) == {"pillow"}
    assert extras["cuda12"] == {"cupy-cuda12x": "[ctk]>=14,<15"}
    assert extras["cuda13"] == {"cupy-cuda13x": "[ctk]>=14,<15"}
    # one command sets up the tests: they cover ranks, compiled kernels and the examples
    for extra in ("mpi", "jit", "bf16", "examples"):
        assert extras[extra].items() <= extras["test"].items()


def test_errors_name_extras_that_exist(root: Path) -> None:
    told = set()
    for path in [*PACKAGE.rglob("*.py"), root / "README.md", *(root / "docs").rglob("*.md")]:
        if path.exists():
            for group in re.findall(r"arrayexec\[([\w,]+)\]", path.read_text()):
                told |= set(group.split(","))
    assert told <= EXTRAS


def test_version_is_said_once(config: configparser.ConfigParser, root: Path) -> None:
    changelog = (root / "CHANGELOG.md").read_text()
    version = config["metadata"]["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    assert "## Unreleased" in changelog or f"## {version}" in changelog
    assert (root / "LICENSE").read_text().strip().startswith("Apache License")
    assert (PACKAGE / "py.typed").exists()


@pytest.mark.parametrize("script", [".ci/run", ".ci/full"])
def test_scripts_are_valid_and_executable(root: Path, script: str) -> None:
    path = root / script
    if not path.exists():
        pytest.skip("not in this copy of the tree")
    assert path.stat().st_mode & 0o111
    subprocess.run(["bash", "-n", str(path)], check=True, timeout=30)
