"""Densities of random numbers against numbers of MXNet 1.9.1, and against closed forms where it has none."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arrayexec.errors import ShapeError
from tests.ops.runs import run, shapes_of

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "recorded" / "densities.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['op']}-{case['is_log']}")
def test_as_recorded(case: dict[str, Any]) -> None:
    arrays = {name: np.array(values, np.float32) for name, values in case["params"].items()}
    arrays["sample"] = np.array(case["sample"], np.float32)
    found = run(case["op"], arrays, [np.array(case["head"], np.float32)], is_log=case["is_log"])
    np.testing.assert_allclose(found.out, case["out"], rtol=3e-6, atol=1e-6)
    for name in ("sample", *case["params"]):
        np.testing.assert_allclose(found.gradients[name], case[f"d{name}"], rtol=2e-5, atol=4e-6, err_msg=name)


@pytest.mark.parametrize(("sets", "each"), [((1,), 5000), ((3000,), 1), ((0,), 4), ((2,), 0), ((2, 3), 1500)])
def test_more_samples_than_are_gone_over_at_once(sets: tuple[int, ...], each: int) -> None:
    random = np.random.default_rng(0)
    x, mu, sigma = random.normal(size=(*sets, each)), random.normal(size=sets), random.uniform(1, 2, sets)
    head = random.normal(size=x.shape)
    found = run("_random_pdf_normal", {"sample": x, "mu": mu, "sigma": sigma}, [head])
    z = (x - mu[..., None]) / sigma[..., None]
    wanted = np.exp(-0.5 * z * z) / (sigma[..., None] * math.sqrt(2 * math.pi))
    np.testing.assert_allclose(found.out, wanted, rtol=1e-12)
    np.testing.assert_allclose(found.gradients["mu"], (head * wanted * z).sum(-1) / sigma, rtol=1e-9, atol=1e-12)


def test_parameters_may_be_as_many_as_samples() -> None:
    x = np.array([0.5, 1.5])
    found = run("_random_pdf_exponential", {"sample": x, "lam": np.array([1.0, 2.0])}).out
    np.testing.assert_allclose(found, [math.exp(-0.5), 2 * math.exp(-3)], rtol=1e-14)


def test_one_dirichlet_sample() -> None:
    arrays = {"sample": np.array([0.25, 0.75]), "alpha": np.array([2.0, 3.0])}
    np.testing.assert_allclose(run("_random_pdf_dirichlet", arrays).out, [12 * 0.25 * 0.75**2], rtol=1e-12)


def test_shapes() -> None:
    found = shapes_of("_random_pdf_normal", {"sample": (4, 3, 2), "mu": (4, 3)})
    assert found["sigma"] == (4, 3)
    with pytest.raises(ShapeError, match="must have at most as many dims as sample"):
        shapes_of("_random_pdf_normal", {"sample": (4,), "mu": (4, 3)})
    with pytest.raises(ShapeError, match="must have at most as many dims as sample"):
        shapes_of("_random_pdf_dirichlet", {"sample": (4,), "alpha": (3, 4)})
    assert (4, 3) in shapes_of("_random_pdf_dirichlet", {"sample": (4, 3, 2), "alpha": (2,)}).values()
