"""Modules on ranks train as one process does, and all ranks have the same bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.module import ranked
from tests.parallel.mpi_helper import run_ranks

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize(("ranks", "devices"), [(2, 1), (2, 2), (4, 1)])
def test_ranks_train_as_one(ranks: int, devices: int, tmp_path: Path) -> None:
    path = tmp_path / "found.npz"
    run = run_ranks(str(Path(__file__).with_name("module_ranks.py")), ranks, path, devices, timeout=60)
    assert (run.code, run.out, run.err) == (0, "", "")
    with np.load(path) as archive:
        found = dict(archive)
    if devices == 1:  # ranks round their sums, one process the gradients of each device
        for key, want in ranked.rounded("device", None, ranks).items():
            np.testing.assert_allclose(found[f"rounded/{key}"], want, 1e-5, 1e-6, err_msg=key)
    for name, training in ranked.TRAININGS.items():
        alone = training("local", None, 1)
        assert {key for key in found if key.startswith(f"{name}/")} == {f"{name}/{key}" for key in alone}
        for key, want in alone.items():
            np.testing.assert_allclose(found[f"{name}/{key}"], want, 2e-4, 2e-5, err_msg=f"{name}/{key}")
