"""Ranks train as devices do: the same parameters, on all ranks and in every run the same bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.parallel.mpi_helper import run_ranks
from tests.parallel.training import TRAININGS, Arrays, Trainer

pytestmark = pytest.mark.mpi


def trained(path: Path, ranks: int, devices: int) -> Arrays:
    """What all trainings gave: ``training/parameter`` → array."""
    run = run_ranks("trainings.py", ranks, path, devices, timeout=60)
    assert (run.code, run.out, run.err) == (0, "", "")
    with np.load(path) as archive:
        return dict(archive)


@pytest.mark.parametrize(("ranks", "devices"), [(2, 1), (4, 1), (2, 2)])
def test_ranks_equal_devices(ranks: int, devices: int, tmp_path: Path) -> None:
    found = trained(tmp_path / "first.npz", ranks, devices)
    for name, training in TRAININGS.items():
        alone = training(Trainer(None, ranks * devices if name == "norm" else 1))  # norms are of a device's own rows
        assert {key for key in found if key.startswith(f"{name}/")} == {f"{name}/{parameter}" for parameter in alone}
        for parameter, want in alone.items():
            difference = np.abs(found[f"{name}/{parameter}"] - want).max()
            assert difference <= 1e-5 * np.abs(want).max(), (name, parameter)
    if ranks == 4:
        again = trained(tmp_path / "second.npz", ranks, devices)
        for key, value in found.items():
            np.testing.assert_array_equal(again[key], value, err_msg=key)
