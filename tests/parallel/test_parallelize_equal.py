"""N devices on M ranks train as one device does, whatever the optimizer, the ids, the net type, the memory option."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.parallel.mpi_helper import run_ranks
from tests.parallel.parallelized import MODELS, alike, batches, build, check_parts, train, train_in_parts


@pytest.mark.parametrize("name", MODELS)
def test_devices_equal_one(name: str) -> None:
    alone, _ = train(name, [3])
    before = build(name, [3]).master.params
    assert all(np.abs(alone[key] - value).max() > 1e-4 for key, value in before.items() if key.endswith("_w"))
    for ids in ([1, 0], [5, 2, 9], range(4)):
        alike(train(name, ids)[0], alone, (name, ids))


@pytest.mark.parametrize("name", ["adam", "combined, uneven", "dynamic memory"])
def test_net_types_and_memory_change_no_bit(name: str) -> None:
    wanted, _ = train(name, [0, 1, 2], net_type="dag")
    plain = {"dynamic_memory_management": False, "optimize_gradient_memory": False}
    for more in ({"net_type": "simple"}, {"net_type": "async_scheduling", "num_threads_per_device": 1}, plain,
                 {**plain, "optimize_gradient_memory": True}, {**plain, "dynamic_memory_management": True}):  # fmt: skip
        for key, value in train(name, [0, 1, 2], **more)[0].items():
            np.testing.assert_array_equal(value, wanted[key], err_msg=f"{name} {more} {key}")


@pytest.mark.parametrize("name", ["momentum", "clipped", "adam", "shared"])
def test_gradients_of_several_batches_add_up(name: str) -> None:
    alone, _ = train(name, [0])
    for ids, more in (([0], {}), ([1, 0], {}), ([0, 1], {"optimize_gradient_memory": True})):
        found, model = train_in_parts(name, ids, **more)
        alike(found, alone, (name, ids))
        assert model.iteration == len(batches(name))


@pytest.mark.parametrize("devices", [1, 2, 5])
def test_without_combining_parts_are_normalised_by_themselves(devices: int) -> None:
    check_parts(devices)


def test_combining_matters() -> None:
    apart, model = train("combined", [0, 1], combine_spatial_bn=False)
    together, _ = train("combined", [0, 1])
    assert np.abs(apart["fc_w"] - together["fc_w"]).max() > 1e-2
    assert np.array_equal(model.blob("bn_last_rm", 0), model.blob("bn_last_rm", 1))


@pytest.mark.mpi
@pytest.mark.parametrize(("ranks", "devices"), [(2, 1), (4, 1), (2, 2)])
def test_ranks_equal_one(ranks: int, devices: int, tmp_path: Path) -> None:
    found = []
    for number in range(2 if ranks == 4 else 1):
        run = run_ranks("parallelized_ranks.py", ranks, tmp_path / f"{number}.npz", devices, timeout=90)
        assert (run.code, run.out, run.err) == (0, "", "")
        with np.load(tmp_path / f"{number}.npz") as archive:
            found.append(dict(archive))
    for name in MODELS:
        alone, _ = train(name, [0])
        alike({key: found[0][f"{name}/{key}"] for key in alone}, alone, (name, ranks, devices))
    for key, value in found[-1].items():
        np.testing.assert_array_equal(value, found[0][key], err_msg=key)
