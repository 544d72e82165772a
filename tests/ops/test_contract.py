"""Every operator keeps the contract, finds its family, and runs on a device that is not the host."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arrayexec import ops
from arrayexec.context import asnumpy, copyto
from arrayexec.registry import Op, find_op, get_op
from arrayexec.testing import check_op
from arrayexec.testing.bodies import modes, unequal
from arrayexec.testing.numbers import check_integers
from arrayexec.testing.trial import Trial
from tests.strict_device import StrictArray, strict

LISTED = {name: family for family, names in ops.FAMILIES.items() for name in names.split()}

# Their gradient is by definition not the derivative of what they output.
NO_DERIVATIVE = {
    "SoftmaxOutput", "IdentityAttachKLSparseReg", "amp_cast", "_joined_moments",
    "_contrib_box_nms", "_contrib_gradientmultiplier", "_contrib_round_ste", "_contrib_sign_ste",
}  # fmt: skip


def canonical() -> list[str]:
    """Every operator once, under its first name."""
    return sorted({get_op(name).form.name for name in LISTED})


NAMES = canonical()


@pytest.mark.parametrize("name", NAMES)
def test_contract(name: str) -> None:
    check_op(name, derivative=name not in NO_DERIVATIVE)


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"Custom"}))  # what a custom body does is its author's choice
def test_whole_numbers_are_refused_or_run(name: str) -> None:
    cls = get_op(name)
    assert [fault for example in cls.examples for fault in check_integers(Trial(cls, example))] == []


def examples() -> Iterator[Any]:
    for name in NAMES:
        for number, example in enumerate(get_op(name).examples):
            yield pytest.param(get_op(name), example, id=f"{name}-{number}")


@pytest.mark.parametrize(("cls", "example"), list(examples()))
def test_runs_on_a_device_that_is_not_the_host(cls: type[Op], example: dict[str, Any]) -> None:
    context = strict()

    def put(array: np.ndarray) -> StrictArray:
        there = context.empty(array.shape, array.dtype, "input")
        copyto(there, array)
        return there

    trial = Trial(cls, example, np.float32)
    for is_train in modes(trial):
        with context.enter():
            arrays = {name: put(array) for name, array in trial.arrays().items()}
            heads = [put(array) for array in trial.heads()]
            there = trial.outcome(arrays, is_train, None, heads, xp=context.xp).named()
        found = {name: asnumpy(array) for name, array in there.items()}
        here = trial.outcome(is_train=is_train).named()
        assert unequal(found, here, 1e-5, 1e-6) == ""


def test_every_listed_name_is_in_its_file() -> None:
    for name, family in LISTED.items():
        module = importlib.import_module(f"arrayexec.ops.{family}")
        cls = find_op(name)
        assert cls is not None, f"{name} is listed under {family} but nobody registers it"
        assert cls.__module__ == module.__name__ or family in ("elemwise", "broadcast"), f"{name}: {cls.__module__}"
        assert name in (cls.form.name, *cls.form.aliases)


def test_every_registered_name_is_listed() -> None:
    for name in NAMES:
        form = get_op(name).form
        for known in (form.name, *form.aliases):
            assert known in LISTED, f"{known} is registered by {form.name} but not listed in FAMILIES"


def test_every_family_file_is_listed() -> None:
    home = Path(ops.__file__).parent
    files = {path.stem for path in home.glob("*.py")} - {"__init__"}
    registering = {stem for stem in files if "@register_op" in (home / f"{stem}.py").read_text(encoding="utf-8")}
    assert registering <= set(ops.FAMILIES)
    assert set(ops.FAMILIES) <= files
