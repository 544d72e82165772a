"""Training on ranks that is resumed, by as many ranks or others, under a real mpirun."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.module.resuming import near, same
from tests.parallel.mpi_helper import run_ranks

pytestmark = pytest.mark.mpi
SCRIPT = str(Path(__file__).parent / "resume_ranks.py")


class Runs:
    """Trainings of one kind in one folder."""

    def __init__(self, folder: Path, face: str, net: str, rule: str, devices: int, at: int) -> None:
        self.folder, self.options, self.at = folder, (face, net, rule, devices), at

    def __call__(self, mode: str, ranks: int) -> dict[str, Any]:
        out = self.folder / f"{mode}{ranks}.npz"
        run = run_ranks(SCRIPT, ranks, mode, *self.options, self.at, self.folder / "kept", out)
        assert (run.code, run.err) == (0, ""), run.err
        with np.load(out) as found:
            return dict(found)


@pytest.mark.parametrize(
    ("face", "net", "rule", "devices"),
    [("manager", "norm", "adam", 1), ("module", "norm", "nadam", 2), ("module", "dropout", "momentum", 1)],
)
def test_the_same_ranks_go_on_bit_for_bit(tmp_path: Path, face: str, net: str, rule: str, devices: int) -> None:
    runs = Runs(tmp_path, face, net, rule, devices, at=7)
    whole = runs("whole", 2)
    runs("save", 2)
    same(runs("resume", 2), whole)


@pytest.mark.parametrize(("face", "rule", "before", "after"), [("module", "adam", 2, 1), ("manager", "momentum", 1, 3)])
def test_other_ranks_go_on_within_rounding(tmp_path: Path, face: str, rule: str, before: int, after: int) -> None:
    runs = Runs(tmp_path, face, "dropout", rule, 1, at=6)
    whole = runs("whole", before)
    runs("save", before)
    near(runs("resume", after), whole)


def test_a_rank_that_is_killed_while_it_writes(tmp_path: Path) -> None:
    runs = Runs(tmp_path, "module", "norm", "adam", 1, at=6)
    whole = runs("whole", 2)
    run = run_ranks(SCRIPT, 2, "killed", *runs.options, 6, tmp_path / "kept", tmp_path / "none")
    assert run.code != 0 and run.seconds < 30, run.err
    names = sorted(path.name for path in (tmp_path / "kept").iterdir())
    assert len(names) == 2 and names[0].startswith(".checkpoint-00000002.states.") and names[1] == "checkpoint-00000001.states"
    same(runs("resume", 2), whole)


def test_what_rank_0_cannot_do_is_said_on_all(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    Runs(tmp_path, "module", "norm", "adam", 1, at=1)("refused", 2)


def test_fit_is_stopped_and_called_again(tmp_path: Path) -> None:
    run = run_ranks(str(Path(__file__).parent / "fit_ranks.py"), 2, tmp_path)
    assert (run.code, run.err) == (0, ""), run.err
