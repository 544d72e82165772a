"""The command line: what it lists is what the registry holds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import arrayexec as ax
from arrayexec.cli import catalogue, main
from arrayexec.registry import get_op

PAGE = Path(__file__).parents[2] / "docs" / "operators.md"


def test_ops_lists_every_operator_with_its_aliases_and_attributes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert set(lines) == {get_op(name).form.name for name in " ".join(ax.ops.FAMILIES.values()).split()}
    for name, line in lines.items():
        form = get_op(name).form
        assert all(alias in line for alias in form.aliases)
        assert all(f"{attribute}: " in line for attribute in form.attributes)
        assert ("gradient: no " in line) == (form.backward is None)


def test_ops_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", "flatten", "SwapAxis"]) == 0
    assert capsys.readouterr().out.splitlines()[0].startswith("Flatten (also flatten)")
    assert main(["ops", "SwapAxes"]) == 1
    assert "did you mean" in capsys.readouterr().err


def test_what_an_operator_infers() -> None:
    found = catalogue.entry("FullyConnected")
    assert "weight ← data" in " ".join(found.infers) and "data ← " in " ".join(found.infers)
    assert found.gradient.startswith("yes") and found.backends[:2] == ("numpy", "cupy")
    assert catalogue.entry("SoftmaxOutput").gradient.startswith("head") or "or head" in catalogue.entry("SoftmaxOutput").gradient
    assert catalogue.entry("argmax").gradient == "no"
    assert "num_hidden: whole number" in found.attributes and "no_bias: bool = False" in found.attributes


def test_the_page_is_fresh() -> None:
    assert PAGE.read_text(encoding="utf-8") == catalogue.page() + "\n", (
        "docs/operators.md is stale: python -m arrayexec ops --markdown > docs/operators.md"
    )


def test_run_as_a_module(subprocess_env: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "arrayexec", "ops", "identity"],
        env=subprocess_env, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("_copy (also identity")
