"""Parallel models on strict devices: the same numbers as on processors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import arrayexec as ax
from arrayexec.context import asnumpy
from arrayexec.parallel import model_checks
from tests.parallel.parallelized import MODELS, alike, batches, train
from tests.strict_device import strict

HOST_ONLY = {"shared"}  # devices share no memory


@pytest.mark.parametrize("name", [name for name in MODELS if name not in HOST_ONLY])
def test_the_same_as_on_processors(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted, _ = train(name, [0, 1])
    monkeypatch.setattr(model_checks, "num_gpus", lambda: 2)
    monkeypatch.setattr(model_checks, "gpu", strict)
    ax.random.seed(7)
    net, _, options = MODELS[name]
    model = ax.parallelize_gpu(ax.ModelHelper(name), None, net, devices=[1, 0], **options).init()
    assert model.options.prefixes == ("gpu_1", "gpu_0")
    for data, label in batches(name):
        model.feed("data", data)
        model.feed("label", label)
        model.run()
    found: dict[str, Any] = {key: asnumpy(value) for key, value in {**model.master.params, **model.master.computed}.items()}
    alike(found, wanted, name)
    for key in found:
        if key in model.master.params or key in model.master.computed:
            np.testing.assert_array_equal(asnumpy(model.blob(key, 0)), found[key], err_msg=key)
    model.check_consistency()
    assert set(model.losses()) == {"gpu_1/loss_scaled", "gpu_0/loss_scaled"}
