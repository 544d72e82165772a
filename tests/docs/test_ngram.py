"""The bar of the character model: probabilities that sum to one, worked by hand, and the number for all surnames."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("names", reason="the surnames come from the package names")
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(scope="module")
def ngram() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ngram_example", EXAMPLES / "ngram.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_by_hand(ngram: ModuleType) -> None:
    model = ngram.NGram(["ab", "aa"], 1)
    # Counted without context: a 3, b 1, end 2, so n = 6 and t = 3. After a: b 1, a 1, end 1, so n = 3 and t = 3.
    base = {"a": (3 + 3 / 27) / 9, "b": (1 + 3 / 27) / 9, "z": (3 / 27) / 9}
    assert model.probability("a", "q") == pytest.approx(base["a"])  # q was never seen
    assert model.probability("b", "a") == pytest.approx((1 + 3 * base["b"]) / 6)
    assert model.probability("z", "a") == pytest.approx(3 * base["z"] / 6)
    assert model.probability("a", "^") == pytest.approx((2 + base["a"]) / 3)


def test_probabilities_sum_to_one(ngram: ModuleType) -> None:
    model = ngram.NGram(["ab", "aab", "bcd"], 3)
    for context in ("^^^", "^^a", "zzz", "aab"):
        assert sum(model.probability(c, context) for c in ngram.CHARACTERS) == pytest.approx(1)


def test_all_surnames(ngram: ModuleType) -> None:
    train, held_out = ngram.load()
    assert (len(train), len(held_out), sum(len(name) + 1 for name in held_out)) == (79919, 8880, 69672)
    assert not set(train) & set(held_out)
    assert f"{ngram.NGram(train, 4).nats_per_char(held_out):.3f}" == "2.187"


@pytest.mark.parametrize("name", ["train.py", "train_names.py"])
def test_an_example_is_short(name: str) -> None:
    assert len((EXAMPLES / name).read_text().splitlines()) < 120
